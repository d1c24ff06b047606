"""Episode sets: where episodes start and what they must reach.

A set is a pure function of (the data's digest or the world, seed), and the first n of a longer set are the set of n.
An episode carries its own number: nothing random depends on its place in a batch. B episodes, S state entries.
"""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lpwm.core import rng
from lpwm.core.errors import UserError, require
from lpwm.core.memory import need_memory
from lpwm.data import EpisodeData, splits
from lpwm.data.order import clip_starts, permutation
from lpwm.evaluate.config import OFFSET, EvalConfig
from lpwm.evaluate.results import Episodes
from lpwm.plan.config import solver_config
from lpwm.worlds.base import World


@dataclass(frozen=True, eq=False)
class EpisodeSet:
    """start_BS and goal_BS float32 on the CPU; `number_B` int64 keys the planner's noise; ids name episodes."""

    kind: str  # "random" or "dataset"
    start_BS: Tensor
    goal_BS: Tensor
    number_B: Tensor
    ids: tuple[str, ...]
    source: str  # what it was drawn from: the data's digest, or the world
    seed: int

    def __post_init__(self) -> None:
        if not self.ids:
            raise UserError("0 episodes show nothing: give at least 1.")

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: Tensor | list[int]) -> "EpisodeSet":
        """Some of the episodes; what happens in them does not change."""
        rows = torch.as_tensor(rows)
        if rows.dtype == torch.bool:
            rows = rows.nonzero()[:, 0]
        picked = {name: getattr(self, name)[rows] for name in ("start_BS", "goal_BS", "number_B")}
        return replace(self, ids=tuple(self.ids[i] for i in rows.tolist()), **picked)

    @property
    def digest(self) -> str:
        """Names the contents, bit for bit."""
        state = hashlib.sha256(repr((self.kind, self.ids, self.number_B.tolist())).encode())
        for tensor in (self.start_BS, self.goal_BS):
            state.update(tensor.contiguous().numpy().tobytes())
        return state.hexdigest()[:16]

    def entry(self) -> Episodes:
        """As it stands in a result."""
        start, goal = (tuple(map(tuple, x.tolist())) for x in (self.start_BS, self.goal_BS))
        return Episodes(self.kind, self.digest, self.source, self.seed, self.ids, start, goal)


def dataset_goals(
    data: EpisodeData, n: int, *, seed: int = 0, offset: int = OFFSET, holdout: float = 0.1, horizon_steps: int = 0
) -> EpisodeSet:
    """Start at a frame of a held-out trajectory, goal `offset` raw steps later in it. No start is used twice, and no
    trajectory twice before every one was used once. `horizon_steps`: the raw steps a plan spans, refused where it is
    longer than every held-out trajectory."""
    require("offset", offset, 1)
    if data.states.shape[1] == 0:
        raise UserError("the data set has no states: success cannot be tested on its goals.")
    _, held = splits(data, holdout)
    if not len(held):
        raise UserError("no trajectory was held out (holdout is 0): hold some out, or evaluate on random goals.")
    longest = int(data.lengths[held].max()) - 1
    for what, steps in (("a goal", offset), ("a planning horizon", horizon_steps)):
        if steps > longest:
            raise UserError(
                f"{what} of {steps} raw steps is longer than the held-out trajectories (the longest has {longest}):"
                f" give at most {longest}, collect longer episodes, or take random goals alone."
            )
    starts = clip_starts(data.lengths[held], data.offsets[held], offset)
    if n > len(starts):
        raise UserError(f"held-out trajectories have only {len(starts)} starts with such a goal, not {n}: take fewer.")
    rows = starts[permutation(len(starts), rng.seed_of("goals", data.digest, seed), "cpu")]
    trajectory = torch.searchsorted(data.offsets[held], rows, right=True) - 1
    used: Counter[int] = Counter()
    turn = []  # how many starts of its trajectory come before each
    for e in trajectory.tolist():
        turn.append(used[e])
        used[e] += 1
    rows = rows[torch.tensor(turn).sort(stable=True).indices][:n]
    trajectory = held[torch.searchsorted(data.offsets[held], rows, right=True) - 1]
    step = rows - data.offsets[trajectory]
    start, goal = data.states[rows].clone(), data.states[rows + offset].clone()
    ids = tuple(f"{e}@{t}+{offset}" for e, t in zip(trajectory.tolist(), step.tolist(), strict=True))
    return EpisodeSet("dataset", start, goal, torch.arange(n), ids, f"data {data.digest}", seed)


def random_goals(world: World, n: int, *, seed: int = 0) -> EpisodeSet:
    """Start and goal anywhere in the arena, independent of one another."""
    start, goal = world.sample_state(n, (seed, "evaluate")), world.sample_goal(n, (seed, "evaluate"))
    ids = tuple(f"random/{seed}/{i}" for i in range(n))
    source = f"world {world.spec.name} {json.dumps(world.spec.options, sort_keys=True)}"
    return EpisodeSet("random", start, goal, torch.arange(n), ids, source, seed)


def episode_sets(
    world: World, config: EvalConfig, data: EpisodeData | None, holdout: float, frameskip: int
) -> dict[str, EpisodeSet]:
    """The sets a protocol names, by their kind. Records or candidates of a plan beyond the memory are refused."""
    spec, steps = world.spec, max(config.budgets)
    samples = getattr(solver_config(config.solver, **config.options), "samples", 1)
    records = config.episodes * config.planner_seeds * steps * (spec.state_dim + spec.action_dim)
    plan = samples * max(config.horizons) * frameskip * spec.action_dim
    what = f"evaluating {config.episodes} episodes of {steps} steps with plans of {max(config.horizons)} blocks"
    need_memory(what, 4.0 * (records + plan))
    sets = {}
    for kind in config.goals:
        if kind == "random":
            sets[kind] = random_goals(world, config.episodes, seed=config.seed)
            continue
        if data is None:
            raise UserError("dataset goals need the data set: give it, or evaluate on random goals.")
        spans = {"offset": config.offset, "horizon_steps": max(config.horizons) * frameskip}
        sets[kind] = dataset_goals(data, config.episodes, seed=config.seed, holdout=holdout, **spans)
    return sets
