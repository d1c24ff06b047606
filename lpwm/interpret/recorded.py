"""Runs without a world, measured on held-out recordings alone.

depth      how errors of predictions grow with depth, next to copying the last frame
factors    linear probes of every state column, kept with the run (`factors`)
retrieval  whether the nearest code belongs to a near state, and to a near time
planning   from frame t to the frame k blocks ahead: how close planned actions come to the recorded ones

Legend: E trajectories, T frames one block apart, N frames of all, B windows, C context frames, H blocks ahead, A block.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lpwm.core import rng
from lpwm.core.config import digest
from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.core.json import dump_json
from lpwm.data import EpisodeData
from lpwm.data.normalize import from_blocks, to_blocks
from lpwm.evaluate.config import EvalConfig
from lpwm.evaluate.table import columns
from lpwm.interpret.config import FactorConfig, ProbeConfig
from lpwm.interpret.factors import fit_factors, targets_of
from lpwm.interpret.probes import accuracy, bootstrap, sum_by
from lpwm.interpret.results import SAMPLES, FactorScore, Floats, Ints, Result, WorldInfo
from lpwm.interpret.study import made
from lpwm.interpret.supports import Episode, held_out_episodes
from lpwm.plan import LatentProblem
from lpwm.plan.solver import chunked
from lpwm.stats import Interval
from lpwm.train import Loaded, load
from lpwm.train.monitors import evaluating

FRAMES = 3000  # held-out, at most
DEPTHS = 8
WINDOWS = 512  # behind the errors by depth


@dataclass(frozen=True)
class Retrieval:
    """The nearest code to each held-out frame: in other trajectories and in its own."""

    state: Interval | None  # the share of states nearer than its own, ½ by chance; None without states
    time: Interval  # blocks away in its own trajectory
    time_chance: float
    frames: int


@dataclass(frozen=True)
class PlannedActions:
    """Actions compared with the recorded ones, all normalized."""

    actions: str  # planned, random, repeated, recorded
    error: Interval  # RMS difference over all blocks
    first: Interval  # over the first
    left: Interval  # predicted distance to the goal as a share of that of the start


@dataclass(frozen=True)
class Planning:
    """Plans from a held-out frame to the one `ahead` blocks later."""

    ahead: int
    problems: int
    rows: tuple[PlannedActions, ...]


@dataclass(frozen=True, kw_only=True)
class Recorded(Result):
    """A run without a world on its held-out recordings."""

    KIND: ClassVar[str] = "lpwm recorded evaluation"

    settings: EvalConfig
    trajectories: int
    depth: tuple[float, ...]  # mean((ẑ − z)²)/mean(z²) from one frame
    copy: tuple[float, ...]  # of copying it
    windows: int  # behind both
    factors: tuple[FactorScore, ...]
    retrieval: Retrieval
    planning: tuple[Planning, ...]


@dataclass(frozen=True)
class RecordedEvaluation:
    """What `lpwm eval` measures of runs without a world, a result each."""

    runs: tuple[Recorded, ...]

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        record = {"kind": SAMPLES, "readings": [run.to_json() for run in self.runs]}
        if path is not None:
            make_folder(Path(path).parent)
            write_whole(Path(path), dump_json(record))
        return record

    @classmethod
    def from_json(cls, record: Any, where: str = "") -> "RecordedEvaluation":
        several = record.get("readings") if isinstance(record, Mapping) else None
        if not isinstance(several, Sequence) or not several:
            raise UserError(f"{where or 'this'} holds no evaluation of recordings.")
        return cls(tuple(Recorded.from_json(r, f"{where}: readings[{i}]") for i, r in enumerate(several)))

    def table(self, width: int = 80) -> str:
        return "\n\n".join(table(run, width) for run in self.runs)


def evaluate_recorded(
    folders: Sequence[str | Path], config: EvalConfig, *, device: torch.device | str = "cpu", checkpoint: str = "latest"
) -> tuple[RecordedEvaluation, Path]:
    """Every run on its own held-out recordings, and where the result belongs: eval/ in the first run's folder. Of the
    protocol count episodes (planning problems), horizons (blocks ahead), solver, options, context and seed."""
    loaded = [load(path, device=device, checkpoint=checkpoint) for path in folders]
    for one in loaded:
        if one.world is not None:
            raise UserError(f"{one.path} has a world and others here have none: evaluate them apart.")
    result = RecordedEvaluation(tuple(recorded(one, config) for one in loaded))
    name = digest({"settings": config, "runs": [[one.run_hash, one.step] for one in loaded]})
    make_folder(Path(folders[0]) / "eval")
    return result, Path(folders[0]) / "eval" / f"recorded-{name}.json"


def recorded(loaded: Loaded, config: EvalConfig | None = None, data: EpisodeData | None = None) -> Recorded:
    """All four measurements of one run."""
    config = config or EvalConfig()
    data = loaded.episodes() if data is None else data
    episodes = held_out_episodes(loaded, data, FRAMES, config.seed)
    windows = Windows(loaded, data, episodes)
    states = data.states.shape[1] > 0
    factors = fit_factors(loaded, FactorConfig(seed=config.seed), data).scores if states else ()
    targets = targets_of(loaded, data, episodes, {s.name: s.angle for s in factors}) if factors else None
    with torch.no_grad(), evaluating(loaded.model):
        depth, copy, count = windows.depth(config.seed)
        planning = tuple(windows.planning(H, config) for H in config.horizons)
    return Recorded(
        **made(loaded),
        world=WorldInfo(loaded.spec.name, dict(loaded.spec.options)),
        settings=config,
        trajectories=len(episodes),
        depth=depth,
        copy=copy,
        windows=count,
        factors=factors,
        retrieval=retrieval(episodes, targets, config.seed),
        planning=planning,
    )


class Windows:
    """Stretches of held-out trajectories: C frames seen, H to come, and the normalized action blocks between."""

    def __init__(self, loaded: Loaded, data: EpisodeData, episodes: Sequence[Episode]) -> None:
        self.loaded, self.model = loaded, loaded.model
        self.device = next(loaded.model.parameters()).device
        self.codes = [torch.from_numpy(e.z_TD).to(self.device) for e in episodes]
        self.blocks = []
        for e in episodes:
            start = int(data.offsets[e.number])
            raw = data.actions[start : start + (len(e.z_TD) - 1) * e.frameskip]
            self.blocks.append(to_blocks(loaded.stats.normalize(raw), e.frameskip).to(self.device))

    def draw(self, context: int, ahead: int, count: int, key: tuple[int | str, ...]) -> tuple[Ints, Tensor, Tensor]:
        """The trajectory of each of at most `count` windows, their codes (B, C + H, D) and blocks (B, C + H − 1, A)."""
        span = context + ahead
        at = [(e, t) for e, z in enumerate(self.codes) for t in range(len(z) - span + 1)]
        if not at:
            longest = max(map(len, self.codes))
            raise UserError(
                f"no held-out trajectory has {span} frames {self.loaded.frameskip} steps apart (the longest has "
                f"{longest}): look fewer blocks ahead (horizons), or hold out longer episodes."
            )
        order = np.random.default_rng(rng.seed_of("recorded windows", *key)).permutation(len(at))[:count]
        chosen = [at[i] for i in order]
        z = torch.stack([self.codes[e][t : t + span] for e, t in chosen])
        return np.array([e for e, _ in chosen]), z, torch.stack([self.blocks[e][t : t + span - 1] for e, t in chosen])

    def depth(self, seed: int) -> tuple[tuple[float, ...], tuple[float, ...], int]:
        """mean((ẑ − z)²)/mean(z²) at depth 1…H from one frame, the same for copying it, and of how many windows."""
        depths = min(DEPTHS, max(map(len, self.codes)) - 1)
        _, z, blocks = self.draw(1, depths, WINDOWS, (seed, "depth"))
        ahead = torch.cat([self.model.rollout(x[:, :1], a[:, None])[:, 0] for x, a in _split(z, blocks)])
        power = z[:, 1:].square().mean((0, 2))
        errors = [((x - z[:, 1:]).square().mean((0, 2)) / power).tolist() for x in (ahead, z[:, :1])]
        return tuple(errors[0]), tuple(errors[1]), len(z)

    def planning(self, ahead: int, config: EvalConfig) -> Planning:
        """Plans from frame t to frame t + H, next to the recorded actions, those of another window, and the last block
        again and again. Errors are RMS differences of normalized actions: √2 for independent ones."""
        most = max(map(len, self.codes)) - ahead
        context = max(2, min(config.context or self.model.history, most))  # a block before t, to repeat
        label, z, blocks = self.draw(context, ahead, config.episodes, (config.seed, "planning", ahead))
        seen = min(config.context or self.model.history, context)
        start, past = z[:, context - seen : context], blocks[:, context - seen : context - 1]
        goal, own = z[:, -1], blocks[:, context - 1 :]
        problem = LatentProblem(self.model, start, goal, past if seen > 1 else None, ahead, action_dim=own.shape[-1])
        plan = chunked(problem, config.build_solver(), seed=config.seed)
        others = np.random.default_rng(rng.seed_of("recorded others", config.seed)).permutation(len(own))
        every = {
            "planned": self._within_bounds(plan.actions_BHA),
            "random": own[torch.from_numpy(np.roll(others, 1)[np.argsort(others)]).to(own.device)],
            "repeated": blocks[:, context - 2 : context - 1].expand_as(own),
            "recorded": own,
        }
        actions = torch.stack(list(every.values()), 1)
        parts = [
            self.model.rollout(x, a, p if seen > 1 else None, last_only=True)
            for x, a, p in _split(start, actions, past)
        ]
        left = (torch.cat(parts) - goal[:, None]).square().mean(-1)
        far = (start[:, -1] - goal).square().mean(-1)
        rows = []
        for k, name in enumerate(every):
            off = (actions[:, k] - own).square().mean(-1)
            scores = ((off.mean(-1), torch.ones_like(far)), (off[:, 0], torch.ones_like(far)), (left[:, k], far))
            intervals = (_rms(label, over, under, (name, str(i))) for i, (over, under) in enumerate(scores))
            rows.append(PlannedActions(name, *intervals))
        return Planning(ahead, len(label), tuple(rows))

    def _within_bounds(self, blocks_BHA: Tensor) -> Tensor:
        spec, skip, stats = self.loaded.spec, self.loaded.frameskip, self.loaded.stats
        raw = from_blocks(stats.denormalize(blocks_BHA), skip)
        low, high = (raw.new_tensor(bound) for bound in (spec.action_low, spec.action_high))
        return to_blocks(stats.normalize(raw.clamp(low, high)), skip)


def _split(*tensors: Tensor, size: int = 128) -> list[tuple[Tensor, ...]]:
    return list(zip(*(t.split(size) for t in tensors), strict=True))


def _rms(label_B: Ints, over_B: Tensor, under_B: Tensor, key: tuple[str, ...]) -> Interval:
    """√(Σ over / Σ under) with its interval over trajectories."""
    tally = sum_by(label_B, under_B.double().cpu().numpy(), over_B.double().cpu().numpy())
    return bootstrap(tally, lambda sums: np.sqrt(sums[..., 1] / np.maximum(sums[..., 0], 1e-300)), ProbeConfig(), key)


def retrieval(episodes: Sequence[Episode], targets_NY: Floats | None, seed: int = 0) -> Retrieval:
    """For every frame its nearest code.

    state  among other trajectories: the share of them whose state is nearer than its own, 0 at best and ½ by chance;
           states by the standardized factors
    time   in its own trajectory: how many blocks away it is, next to the mean of the others
    """
    z = torch.from_numpy(np.concatenate([e.z_TD for e in episodes])).double()
    label: Ints = np.repeat(np.arange(len(episodes)), [len(e.z_TD) for e in episodes])
    at = np.concatenate([np.arange(len(e.z_TD)) for e in episodes])
    code_NN = torch.cdist(z, z).numpy()
    same_NN = label[:, None] == label[None]
    near = np.where(same_NN & ~np.eye(len(z), dtype=bool), code_NN, np.inf).argmin(1)
    apart_NN = np.abs(at[:, None] - at[None])
    others = np.maximum(same_NN.sum(1) - 1, 1)
    ones, config = np.ones(len(z)), ProbeConfig(seed=seed)
    time = bootstrap(sum_by(label, ones, apart_NN[np.arange(len(z)), near]), accuracy, config, ("time",))
    chance = float(((apart_NN * same_NN).sum(1) / others).mean())
    state = None
    if targets_NY is not None and len(episodes) > 1:
        y = torch.from_numpy((targets_NY - targets_NY.mean(0)) / np.maximum(targets_NY.std(0), 1e-12))
        state_NN = torch.cdist(y, y).numpy()
        nearest = np.where(same_NN, np.inf, code_NN).argmin(1)
        own = state_NN[np.arange(len(z)), nearest]
        below = ((state_NN < own[:, None]) & ~same_NN).sum(1) / np.maximum((~same_NN).sum(1) - 1, 1)
        state = bootstrap(sum_by(label, ones, below), accuracy, config, ("state",))
    return Retrieval(state, time, chance, len(z))


def table(run: Recorded, width: int = 80) -> str:
    """A run as text: errors by depth, probes, retrieval, planning."""

    def number(x: Interval, digits: int = 2) -> str:
        return f"{x.estimate:.{digits}f} [{x.low:.{digits}f}, {x.high:.{digits}f}]"

    heads = ["depth", *map(str, range(1, len(run.depth) + 1))]
    rows = [[what, *(f"{v:.3f}" for v in values)] for what, values in (("error", run.depth), ("copying", run.copy))]
    title = f"{run.run.name}: {run.trajectories} held-out trajectories\nrelative error of predictions"
    parts = [columns(heads, rows, width, title)]
    if run.factors:
        parts.append(factor_table(run.factors, width))
    r = run.retrieval
    near = f"the nearest code is {number(r.time, 1)} blocks away in its trajectory, by chance {r.time_chance:.1f}"
    if r.state:
        share = replace(r.state, **{k: 100 * getattr(r.state, k) for k in ("estimate", "low", "high")})
        near += f"\nin other trajectories {number(share, 1)} % of states are nearer than its own, by chance 50 %"
    parts.append("\n".join(textwrap.fill(line, width) for line in near.splitlines()))
    for p in run.planning:
        title = (
            f"{p.problems} plans {p.ahead} blocks ahead: RMS difference from recorded actions (std 1), and the "
            "predicted distance left to the goal (1: that of the start)"
        )
        lines = [[x.actions, number(x.error), number(x.first), number(x.left)] for x in p.rows]
        parts.append(columns(["actions", "all blocks", "first block", "distance left"], lines, width, title))
    return "\n\n".join(parts)


def factor_table(scores: Sequence[Any], width: int = 80) -> str:
    rows = [
        [
            f"{s.name} (angle)" if s.angle else s.name,
            f"{s.r2:.3f} [{s.r2_low:.3f}, {s.r2_high:.3f}]",
            f"{s.shuffled:.3f}",
        ]
        for s in scores
    ]
    return columns(["factor", "held-out R² of a linear probe", "labels shuffled"], rows, width)
