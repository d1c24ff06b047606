"""How long the first step and the first compiled plan take on one GPU, from the start of the process: cold and warm.

    python bench/warmup.py [--old CHECKOUT] [--json OUT] [--cases …] [--rungs …] [--rounds 1]

Each measurement is a process of its own, of the tree's own benchmark (`bench/train_step.py`, `bench/plan.py`). "cold"
has an empty cache of compiled code, "warm" the one that the process before left; trees take turns. `--old` is another
checkout (`git worktree add PATH v0.1.0`); there torch's own cache folders are kept in place of LPWM_CACHE. Python's
bytecode is kept, as an installed package has it. `modules_s` is when the modules are imported, `data_s` when model and
clips are there, `first_s` the first result on the host, `ready_s` the one after capturing, `step_ms` and `plan_ms` what
the compiled code then takes, `loss` of the fifth step: cold and warm must agree. `--cpu` measures CPU seconds (of all
processes) of three compiled steps and of one compiled search of a small model, where there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
CASES = ("pusht-deep", "pusht-mlp-lti", "piecewise-tiny")
RUNGS = ("deep-adaln", "mlp-lti")
VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
MOST = {"step cold": 35.0, "step warm": 12.0, "plan cold": 20.0, "plan warm": 6.0}  # seconds


def child(name: str, began: float) -> dict[str, Any]:
    """In the tree's folder: the seconds since `began`, the clock of the process that started this one."""
    import torch

    sys.path.insert(0, "bench")
    row: dict[str, Any] = {"import_s": time.time() - began}
    if name == "modules":
        for module in ("torch._inductor.compile_fx", "torch._dynamo", "torch._functorch.aot_autograd", "lpwm.train"):
            importlib.import_module(module)
        return row

    def done(key: str) -> None:
        torch.cuda.synchronize()
        row[key] = time.time() - began

    if name in CASES:
        bench = importlib.import_module("train_step")
        done("modules_s")
        model, clips, objective, batch, _ = bench.setting(name, "cuda")
        step = bench.our_step(model, clips, objective, batch, "cuda")
        step = step[0] if isinstance(step, tuple) else step
        done("data_s")
        step(0)
        done("first_s")
        for i in range(1, 5):
            out = step(i)
        done("ready_s")
        if isinstance(out, tuple):
            row["loss"] = float(out[1]["loss"])
        row["step_ms"] = bench.milliseconds(step, groups=3)
        row["peak_GiB"] = torch.cuda.max_memory_allocated() / 2**30
        return row
    bench = importlib.import_module("plan")
    problem = bench.make(name, "cuda", torch.bfloat16, bench.LATENT)
    solver = bench.CEM(bench.CEMConfig())
    plan = solver.solve(problem, seed=0, compile=True)
    done("first_s")
    row["cost"] = float(plan.costs_B.mean())
    row["plan_ms"] = 1000 * statistics.median(bench.seconds(lambda: solver.solve(problem, seed=0, compile=True), 5))
    return row


def child_on_cpu(what: str, rung: str) -> dict[str, Any]:
    import resource

    import torch

    from lpwm.losses import Objective, ObjectiveConfig, RDMRegConfig
    from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, ProjectorConfig, WorldModel
    from lpwm.optim import OptimConfig, build, initialize
    from lpwm.plan import CEM, CEMConfig, LatentProblem
    from lpwm.plan.solver import _compiled
    from lpwm.train.step import Stepper

    torch.set_num_threads(1)
    encoder = EncoderConfig(image_size=16, patch=8, width=24, depth=2, heads=1, head_dim=8, mlp=32)
    predictor = PredictorConfig(rung=rung, heads=2, head_dim=8, mlp=16, head_hidden=16)
    config = ModelConfig(latent=16, encoder=encoder, projector=ProjectorConfig(32), predictor=predictor)
    model = WorldModel(config, 3)
    initialize(model, 0)
    kind = torch.bfloat16

    def spent() -> float:
        both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(r.ru_utime + r.ru_stime for r in both)

    if what == "plan":
        z = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
        problem, before = LatentProblem(model.eval(), z[:2, None], z[2:], autocast=kind), spent()
        with torch.no_grad():
            solver, start = CEM(CEMConfig(samples=8, elites=2, iterations=2)), torch.zeros(2, problem.horizon, 3)
            out = solver._search(_compiled(CEM.iterate), problem, start, torch.tensor(0))
        row: dict[str, Any] = {"first_s": spent() - before, "cost": float(out["costs"].mean())}
        return row | traced()
    objective = Objective(ObjectiveConfig(rdmreg=RDMRegConfig(slices=32)), config.sparse)
    optimizer = build(model.train(), OptimConfig())
    stepper = Stepper(model, objective, optimizer, 6, precision=kind, compiled=True)
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (6, 4, 3, 16, 16), generator=g, dtype=torch.uint8)
    actions = torch.randn(6, 3, 3, generator=g)
    before = spent()
    for i in range(3):
        out = stepper(pixels, actions, objective.draw((0, i), (6, 4, 16)), 1.0, i)
    row = {"first_s": spent() - before, "loss": float(out["loss"])}
    row["weights"] = sum(float(p.detach().double().sum()) for p in model.parameters())
    return row | traced()


def traced() -> dict[str, Any]:
    from torch._dynamo.utils import counters

    kept = {k: v for k, v in counters["aot_autograd"].items() if k.startswith("autograd_cache")}
    return {"tracing": kept} | {f"of {k}": counters["stats"][k] for k in ("calls_captured", "unique_graphs")}


def measure(tree: Path, name: str, cache: Path, bytecode: Path) -> dict[str, Any]:
    kept = {v: str(cache / v) for v in VARIABLES} if tree != HERE else {"LPWM_CACHE": str(cache)}
    others = {k: v for k, v in os.environ.items() if k not in (*VARIABLES, "LPWM_CACHE")}
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, str(HERE / "bench" / "warmup.py"), "--child", name, repr(time.time())]
    env = others | kept | {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(bytecode)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    ended = subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True)
    if ended.returncode:
        return {"failed": ended.stderr[-1500:]}
    return json.loads(ended.stdout.splitlines()[-1]) | {"said": ended.stderr[-500:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="a checkout to compare with")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--rungs", nargs="*", default=list(RUNGS), choices=RUNGS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        name, began = args.child
        row = child_on_cpu(*name.split()[1:]) if name.startswith("cpu ") else child(name, float(began))
        print(json.dumps(row))
        return
    trees = {"new": HERE} | ({"old": args.old.resolve()} if args.old else {})
    rows: list[dict[str, Any]] = []
    compiled = tempfile.TemporaryDirectory()
    bytecode = Path(compiled.name)
    with tempfile.TemporaryDirectory() as cache:  # not counted
        measure(HERE, "modules", Path(cache), bytecode)
    for name in (
        [f"cpu {what} {rung}" for rung in args.rungs for what in ("step", "plan")]
        if args.cpu
        else [*args.rungs, *args.cases]
    ):
        for round in range(args.rounds):
            for which, tree in trees.items():
                with tempfile.TemporaryDirectory() as cache:
                    for state in ("cold", "warm"):
                        row = {"name": name, "tree": which, "cache": state, "round": round}
                        rows.append(row | measure(tree, name, Path(cache), bytecode))
                        most = MOST.get(f"{'step' if name in CASES else 'plan'} {state}") if not args.cpu else None
                        first = rows[-1].get("first_s", float("nan"))
                        print(f"{name:<15} {which:<8} {state}  first {first:6.1f} s (at most {most})", end="  ")
                        print({k: v for k, v in rows[-1].items() if isinstance(v, float)}, flush=True)
                        if "failed" in rows[-1]:
                            print(rows[-1]["failed"])
                        if args.json:
                            args.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
