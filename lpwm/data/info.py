"""What is in a data set, and how much of a planner's success would be free on it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpwm import worlds
from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.core.files import replacing
from lpwm.data.episodes import EpisodeData
from lpwm.data.formats import read, verify_frames
from lpwm.worlds import SimWorld, TensorWorld, World, rollout, row_keys
from lpwm.worlds.policies import Random, Still
from lpwm.worlds.pusht.policy import PUBLIC
from lpwm.worlds.pusht.world import block_moved, turn

AHEAD, BUDGET, TRIALS = 25, 50, 2000  # raw steps, raw steps, episodes
LIVE_TRIALS = 300  # where each step is a simulator's
SEED = 0
CELLS = 20  # of the coverage grid, per side
_GOALS = 100_000
_FEWER = 8_000  # where a goal is a pose to be solved for; still twenty per cell
STILL, STILL_TURN = 1e-3, 1e-4  # px and rad in one step: numerical rest


def describe(path: str | Path, world: World | None = None) -> dict[str, Any]:
    """Statistics of a stored data set, checked frame by frame; with a known world also coverage and controls."""
    path = Path(path)
    data = read(path)
    verify_frames(path)
    actions = data.actions[torch.isfinite(data.actions).all(dim=1)]
    info: dict[str, Any] = {
        "file": str(path),
        "bytes": path.stat().st_size,
        "digest": data.digest,
        "world": None if data.spec is None else {"name": data.spec.name, **data.spec.options},
        "policy": data.attributes.get("policy"),
        "seed": data.attributes.get("seed"),
        "lpwm_version": data.attributes.get("lpwm_version"),
        "episodes": data.episodes,
        "frames": len(data.states),
        "steps": data.steps,
        "length": {"least": int(data.lengths.min()), "most": int(data.lengths.max())},
        "pixels": None if data.pixels is None else list(data.pixels.shape[1:]),
        "action": _moments(actions, None if data.spec is None else data.spec.action_names),
        "state": _moments(data.states, None if data.spec is None else data.spec.state_names),
        "coverage": None,
        "controls": None,
        "beside_public": compare_with_public(data) if data.spec is not None and data.spec.name == "pusht" else None,
    }
    world = world or known_world(data)
    if world is not None:
        info["coverage"] = coverage(world, data.states)
        if bool((data.lengths > AHEAD).any()):
            info["controls"] = controls(data, world)
    return info


def known_world(data: EpisodeData) -> World | None:
    """The world of a data set if it is one of ours and can be built here."""
    if data.spec is None or data.spec.name not in worlds.WORLDS:
        return None
    try:
        return worlds.make(data.spec.name, **data.spec.options)
    except UserError:  # options of another version: the statistics do not need the world
        return None


def _moments(rows: Tensor, names: tuple[str, ...] | None) -> dict[str, dict[str, float]]:
    """Mean, deviation and range of each entry of rows (N, K)."""
    columns = rows.to(torch.float64).T if len(rows) else ()
    return {
        names[k] if names else str(k): {
            "mean": float(column.mean()),
            "std": float(column.std(correction=0)),
            "min": float(column.min()),
            "max": float(column.max()),
        }
        for k, column in enumerate(columns)
    }


def controls(data: EpisodeData, world: World, trials: int | None = None) -> dict[str, dict[str, float]]:
    """Success, in %, of doing nothing and of random actions: what a planner must beat.

    Starts are frames of the data; dataset goals lie AHEAD raw steps further in the same episode, random goals
    anywhere. Latched: success at any of BUDGET raw steps; terminal: at the last one.
    """
    able = (data.lengths > AHEAD).nonzero()[:, 0]
    if not len(able):
        raise UserError(f"no episode has more than {AHEAD} frames: there are no goals {AHEAD} steps ahead.")
    trials = trials or (LIVE_TRIALS if isinstance(world, SimWorld) else TRIALS)
    draw = rng.generator(SEED, "controls")
    episode = able[torch.randint(len(able), (trials,), generator=draw)]
    room = (data.lengths[episode] - AHEAD).to(torch.float64)
    row = data.offsets[episode] + (torch.rand(trials, generator=draw, dtype=torch.float64) * room).long()
    start = data.states[row]
    goals = {"dataset goals": data.states[row + AHEAD], "random goals": world.sample_goal(trials, (SEED, "controls"))}
    rates = {}
    for kind, goal in goals.items():
        for name in ("nothing", "random"):
            latched, terminal = _success(world, name, start, goal)
            rates[f"{kind}, {name}"] = {"latched": latched, "terminal": terminal}
    return rates


def _success(world: World, name: str, start: Tensor, goal: Tensor) -> tuple[float, float]:
    policy = Random(world) if name == "random" else Still(world)
    keys = row_keys((SEED, "controls", name), len(start))
    states, _ = rollout(world, policy, start, goal, keys, BUDGET)
    reached = world.success(states[:, 1:], goal.unsqueeze(1))  # (N, T)
    return 100 * int(reached.any(1).sum()) / len(start), 100 * int(reached[:, -1].sum()) / len(start)


def contact_sheet(data: EpisodeData, out: str | Path, world: World | None = None) -> None:
    """A picture of the data: 6 episodes from first to last frame (8 each), one row per episode."""
    from PIL import Image

    world = world or known_world(data)
    if data.pixels is None and world is None:
        raise UserError("the data have neither pixels nor a known world: there is nothing to draw.")
    rows, columns, side = min(6, data.episodes), 8, 112
    sheet = Image.new("RGB", (columns * (side + 4) + 4, rows * (side + 4) + 4), "white")
    for r, e in enumerate(torch.linspace(0, data.episodes - 1, rows).long().tolist()):
        times = torch.linspace(0, int(data.lengths[e]) - 1, columns).long() + int(data.offsets[e])
        for c, row in enumerate(times.tolist()):
            if data.pixels is not None:
                image = data.pixels[row : row + 1][0]
            else:
                assert world is not None
                image = world.render(data.states[row : row + 1])[0].permute(1, 2, 0).contiguous().numpy()
            tile = Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR)
            sheet.paste(tile, (4 + c * (side + 4), 4 + r * (side + 4)))
    out = Path(out)
    with replacing(out) as temporary:
        try:
            sheet.save(temporary)
        except ValueError as error:  # Pillow does not know the ending
            raise UserError(f"cannot write {out}: end the name of the picture in .png.") from error


class Coverage:
    """The fraction of the cells in which goals fall that some state lies in.

    The grid is CELLS×CELLS over the first two entries of the state a robot would feel (its position); the
    cells that count are those where drawn goals fall, so walls and borders do not.
    """

    def __init__(self, world: World):
        spec = world.spec
        self.axes = list(spec.proprio or range(spec.state_dim))[:2]
        draws = _GOALS if isinstance(world, TensorWorld) else _FEWER
        goals = world.sample_goal(draws, ("coverage",))[:, self.axes]
        self.low, self.high = goals.amin(0), goals.amax(0)
        self.seen = torch.zeros(CELLS ** len(self.axes), dtype=torch.bool)
        self.counts = torch.zeros_like(self.seen)
        self.counts[self._cell(goals)] = True

    def _cell(self, position: Tensor) -> Tensor:
        span = (self.high - self.low).clamp(min=1e-12)
        grid = ((position - self.low) / span * CELLS).floor().clamp(0, CELLS - 1).to(torch.int64)
        return functools.reduce(lambda index, axis: index * CELLS + axis, grid.unbind(1))

    def add(self, states: Tensor) -> None:
        """states (N, S)."""
        self.seen[self._cell(states[:, self.axes])] = True

    def fraction(self) -> float:
        return int((self.seen & self.counts).sum()) / int(self.counts.sum())


def coverage(world: World, states: Tensor) -> float:
    """Of states (N, S)."""
    grid = Coverage(world)
    grid.add(states)
    return grid.fraction()


def compare_with_public(data: EpisodeData) -> list[dict[str, Any]]:
    """Rows of {"name", "ours", "public"}; shares in %, lengths in frames less one."""
    names = data.spec.state_names if data.spec is not None else tuple(map(str, range(7)))
    actions = data.actions[torch.isfinite(data.actions).all(dim=1)].to(torch.float64)
    rows = []
    for k, axis in enumerate("xy"):
        rows.append((f"action {axis} mean", float(actions[:, k].mean()), PUBLIC["action mean"][k]))
        rows.append((f"action {axis} std", float(actions[:, k].std(correction=0)), PUBLIC["action std"][k]))
    spread = data.states.to(torch.float64).std(0, correction=0)
    rows += [(f"{n} std", float(v), p) for n, v, p in zip(names, spread, PUBLIC["state std"], strict=True)]
    rows.append(("steps in which the block is still, %", 100 * _share(data, 1, _still), PUBLIC["block still"]))
    least, most = (float(x) - 1 for x in (data.lengths.min(), data.lengths.max()))
    if most >= AHEAD:
        free = 100 * _share(data, AHEAD, lambda a, b: ~block_moved(a, b))
        rows.append((f"goals {AHEAD} steps ahead without block motion, %", free, PUBLIC["free goals"]))
    rows += [("shortest, steps", least, PUBLIC["steps"][0]), ("longest, steps", most, PUBLIC["steps"][1])]
    return [{"name": name, "ours": ours, "public": public} for name, ours, public in rows]


def _still(before: Tensor, after: Tensor) -> Tensor:
    moved = torch.linalg.vector_norm((after - before)[:, 2:4], dim=-1)
    return (moved < STILL) & (turn(before, after) < STILL_TURN)


def _share(data: EpisodeData, ahead: int, what: Any) -> float:
    """Of the pairs of frames `ahead` steps apart in one episode, how many satisfy `what(before, after)`."""
    number = torch.repeat_interleave(torch.arange(data.episodes), data.lengths)
    together = number[ahead:] == number[:-ahead]
    holds = what(data.states[:-ahead][together], data.states[ahead:][together])
    return float(holds.to(torch.float64).mean())
