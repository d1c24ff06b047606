"""CEM next to stable-worldmodel's CEMSolver (PyPI 0.1.1): the same weights, budget and environments in one process.

    PYTHONPATH=. PEER_PYTHON bench/cem_peer.py [--json OUT] [--cases deep-adaln mlp-lti mlp-lti-small] [--rounds 3]

PEER_PYTHON is a Python with stable-worldmodel and torch. Its side is its LeWM model, its rollout and its solver:
for Deep-AdaLN its own transformer with our weights copied in, for MLP∘LTI (which it lacks) our predictor module
inside its LeWM. `batch 1` is its default, one environment at a time; `batch 50` hands it all environments at once
(its LeWM fails there with a shape error, which is fixed here). Ours is `CEM().solve`, in float32 and with bf16
scoring. Latents stand for frames (identity encoders), since neither side encodes inside the iterations.

Rounds are interleaved (peer, ours, peer, ours …) and ratios are taken inside a round; the median is reported.
`wall` uses --threads threads (2); `cpu` is the process's CPU time on one thread, which other load disturbs less.
Plans of both sides are scored by one float32 model: costs must agree within the spread of the search's own noise.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from lpwm.core.rng import generator
from lpwm.model import ModelConfig, PredictorConfig, WorldModel
from lpwm.optim import initialize
from lpwm.plan import CEM, CEMConfig, LatentProblem

warnings.filterwarnings("ignore")
ENVIRONMENTS, HORIZON, ACTION = 50, 5, 10
# name: (rung, D, budget, the wanted ratio). The last is what `lpwm demo` plans with: its small models (D = 64)
# and the budget of `lpwm eval --preset quick`.
CASES = {
    "deep-adaln": ("deep-adaln", 192, CEMConfig(samples=24, elites=6, iterations=2), 2.0),
    "mlp-lti": ("mlp-lti", 192, CEMConfig(samples=300, elites=30, iterations=3), 8.0),
    "mlp-lti-small": ("mlp-lti", 192, CEMConfig(samples=32, elites=6, iterations=10), 8.0),
    "mlp-lti-demo": ("mlp-lti", 64, CEMConfig(samples=64, elites=8, iterations=8), 8.0),
}


def make(rung: str, latent: int) -> LatentProblem:
    """Random weights with open gates, action embeddings of unit size, and goals that some plan reaches."""
    model = WorldModel(ModelConfig(latent=latent, predictor=PredictorConfig(rung=rung)), ACTION).eval()
    initialize(model, 0)
    g = generator("bench cem_peer", rung)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=g))
        last = model.embed_action[-1]
        spread = model.embed_action(torch.randn(1000, ACTION, generator=g)).std()
        last.weight.div_(spread)
        last.bias.div_(spread)
        z = torch.relu(torch.randn(ENVIRONMENTS, 1, latent, generator=g))
        goal = model.rollout(z, torch.randn(ENVIRONMENTS, 1, HORIZON, ACTION, generator=g), last_only=True)
    return LatentProblem(model, z, goal[:, 0], None, HORIZON)


class Latents(nn.Module):
    """Its encoder's place: the 'frame' is the code already."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = nn.Parameter(torch.zeros(()))

    def forward(self, pixels, interpolate_pos_encoding=False):
        return SimpleNamespace(last_hidden_state=pixels[:, None])


def peer_model(model: WorldModel, rung: str) -> nn.Module:
    """Its LeWM with our weights."""
    from stable_worldmodel.wm.lewm import LeWM
    from stable_worldmodel.wm.lewm import module as parts

    c, latent = model.config.predictor, model.config.latent
    embed = parts.Embedder(ACTION, ACTION, latent, 4)
    ours = [m for m in model.embed_action if isinstance(m, nn.Linear)]
    with torch.no_grad():
        embed.patch_embed.weight.copy_(ours[0].weight[:, :, None])
        embed.patch_embed.bias.copy_(ours[0].bias)
        embed.embed[0].load_state_dict(ours[1].state_dict())
        embed.embed[2].load_state_dict(ours[2].state_dict())
    if rung == "mlp-lti":
        predictor, head = model.predictor, nn.ReLU()
    else:
        depth = len(model.predictor.blocks)
        predictor = parts.Predictor(
            num_frames=c.history,
            depth=depth,
            heads=c.heads,
            dim_head=c.head_dim,
            mlp_dim=c.mlp,
            input_dim=latent,
            hidden_dim=latent,
        )
        head = parts.MLP(latent, c.head_hidden, latent)
        copy_transformer(model.predictor, predictor, head)
        head = nn.Sequential(head, nn.ReLU())
    if rung == "mlp-lti":
        predictor.num_frames = c.history

    class Repaired(LeWM):
        """Its criterion broadcasts the goals of one environment only: with more the shapes clash. Mended here."""

        def criterion(self, info_dict):
            goal = info_dict["goal_emb"]
            if goal.dim() == 3 and goal.shape[0] > 1:
                info_dict = {**info_dict, "goal_emb": goal[:, None]}
            return super().criterion(info_dict)

    return Repaired(Latents(), predictor, embed, pred_proj=head).eval()


@torch.no_grad()
def copy_transformer(ours, theirs, head) -> None:
    theirs.pos_embedding.copy_(ours.position[None])
    theirs.transformer.norm.load_state_dict(ours.norm.state_dict())
    for a, b in zip(ours.blocks, theirs.transformer.layers, strict=True):
        b.norm1.eps = b.norm2.eps = a.plain.eps
        pairs = [
            (a.modulation, b.adaLN_modulation[1]),
            (a.norm1, b.attn.norm),
            (a.qkv, b.attn.to_qkv),
            (a.out, b.attn.to_out[0]),
            (a.norm2, b.mlp.net[0]),
            (a.up, b.mlp.net[1]),
            (a.down, b.mlp.net[4]),
        ]
        for x, y in pairs:
            y.load_state_dict(x.state_dict())
    for x, y in zip(ours.head, head.net, strict=True):
        if list(x.parameters()):
            y.load_state_dict(x.state_dict())


def peer_plan(model: nn.Module, problem: LatentProblem, config: CEMConfig, batch: int, seed: int):
    import gymnasium
    import numpy as np
    from stable_worldmodel.policy import PlanConfig
    from stable_worldmodel.solver import CEMSolver

    solver = CEMSolver(model, batch, config.samples, 1, config.iterations, config.elites, device="cpu", seed=seed)
    space = gymnasium.spaces.Box(-1, 1, (ENVIRONMENTS, 2), np.float32)
    solver.configure(action_space=space, n_envs=ENVIRONMENTS, config=PlanConfig(HORIZON, HORIZON, action_block=5))
    info = {"pixels": problem.z_BCD, "goal": problem.z_goal_BD[:, None], "action": torch.zeros(ENVIRONMENTS, 1, ACTION)}
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its own time
        return solver.solve(info)["actions"]


def timed(f, clock) -> float:
    begin = clock()
    f()
    return clock() - begin


def measure(case: str, rounds: int, threads: int) -> dict:
    rung, latent, config, bar = CASES[case]
    exact = make(rung, latent)
    half = LatentProblem(exact.model, exact.z_BCD, exact.z_goal_BD, None, HORIZON, autocast=torch.bfloat16)
    theirs = peer_model(exact.model, rung)
    with torch.no_grad():  # the two models are one function
        a = torch.randn(ENVIRONMENTS, 4, HORIZON, ACTION, generator=generator("check"))
        info = {"pixels": exact.z_BCD[:, None].expand(-1, 4, -1, -1), "action": a[:, :, :1]}
        predicted = theirs.rollout(info, a)["predicted_emb"][:, :, -1]
        worst = float((predicted - exact.model.rollout(exact.z_BCD, a, last_only=True)).abs().max())
    assert worst < 1e-3, f"the peer's model with our weights differs by {worst}"
    runs = {
        "peer, batch 1": lambda seed=0: peer_plan(theirs, exact, config, 1, seed),
        f"peer, batch {ENVIRONMENTS}": lambda seed=0: peer_plan(theirs, exact, config, ENVIRONMENTS, seed),
        "ours, float32": lambda seed=0: CEM(config).solve(exact, seed=seed).actions_BHA,
        "ours, bf16": lambda seed=0: CEM(config).solve(half, seed=seed).actions_BHA,
    }
    names = list(runs)
    wall: dict[str, list[float]] = {n: [] for n in names}
    cpu: dict[str, list[float]] = {n: [] for n in names}
    for _ in range(rounds):
        for clock, times, count in ((time.process_time, cpu, 1), (time.perf_counter, wall, threads)):
            torch.set_num_threads(count)
            for n in names:
                times[n].append(timed(runs[n], clock))
                print(f"  … {n}, {count} threads: {times[n][-1]:.2f} s", file=sys.stderr, flush=True)
    torch.set_num_threads(1)
    cost = {n: [score(exact, runs[n](seed=s)) for s in (1, 2)] for n in names}
    nothing = float(exact.value(torch.zeros(ENVIRONMENTS, 1, HORIZON, ACTION)).mean())
    row = {
        "case": case,
        "latent": latent,
        "bar": bar,
        "budget": vars(config),
        "threads": threads,
        "same_function_within": worst,
        "wall_s": wall,
        "cpu_s": cpu,
        "cost_by_seed": cost,
        "cost_of_zero_actions": nothing,
        "load": os.getloadavg()[0],
    }
    for clock, times in (("wall", wall), ("cpu", cpu)):
        for ours in names[2:]:
            for peer in names[:2]:
                ratios = [p / o for p, o in zip(times[peer], times[ours], strict=True)]
                row[f"{clock}: {peer} / {ours}"] = statistics.median(ratios)
    return row


@torch.no_grad()
def score(problem: LatentProblem, actions: torch.Tensor) -> float:
    return float(problem.value(actions[:, None]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    try:
        import stable_worldmodel  # noqa: F401
    except ImportError:
        raise SystemExit("this benchmark runs on a Python that has stable-worldmodel 0.1.1 installed.") from None
    rows = []
    for case in args.cases:
        row = measure(case, args.rounds, args.threads)
        rows.append(row)
        b = row["budget"]
        print(
            f"\n{case}, D={row['latent']}: {ENVIRONMENTS} environments × {b['samples']} samples × {b['iterations']} "
            f"iterations × {HORIZON} steps, load {row['load']:.1f}"
        )
        for n in row["wall_s"]:
            cost = row["cost_by_seed"][n]
            print(
                f"  {n:<16} wall {statistics.median(row['wall_s'][n]):8.2f} s   "
                f"cpu {statistics.median(row['cpu_s'][n]):8.2f} s   "
                f"cost {statistics.mean(cost):.5f} ± {statistics.stdev(cost):.5f}"
            )
        for key, value in row.items():
            if " / " in key:
                print(f"  {key:<44} {value:6.2f}×")
        print(f"  wanted: {row['bar']}× against batch 1, wall", flush=True)
        if args.json:
            args.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
