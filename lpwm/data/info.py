"""What is in a data set, and how much of a planner's success would be free on it."""

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.core.files import MARK, check_output, replacing, size_of
from lpwm.data.converting import world_of
from lpwm.data.episodes import EpisodeData
from lpwm.data.formats import read, verify_frames
from lpwm.data.formats.tables import texts
from lpwm.data.frames import StoredFrames
from lpwm.worlds import SimWorld, TensorWorld, World, make, rollout, row_keys
from lpwm.worlds.policies import Random, Still

AHEAD, BUDGET, TRIALS = 25, 50, 2000  # raw steps, raw steps, episodes
LIVE_TRIALS = 300  # where each step is a simulator's
SEED = 0
CELLS = 20  # of the coverage grid, per side
_GOALS = 100_000
_FEWER = 8_000  # where a goal is a pose to be solved for; still twenty per cell
_FEWEST = 1_000  # where it is played, up to 200 steps each


def describe(path: str | Path, world: World | None = None, camera: str | None = None) -> dict[str, Any]:
    """Statistics of a stored data set, checked frame by frame; with a known world also coverage and controls."""
    path = Path(path)
    data = read(path, camera=camera)
    verify_frames(path)
    if isinstance(data.pixels, StoredFrames):
        data.pixels.check()
    actions = data.actions[torch.isfinite(data.actions).all(dim=1)]
    info: dict[str, Any] = {
        "file": str(path),
        "bytes": size_of(path) if path.exists() else None,
        "digest": data.digest,
        "world": None if data.spec is None else {"name": data.spec.name, **data.spec.options},
        **{name: data.attributes.get(name) for name in ("policy", "seed", "lpwm_version")},
        "episodes": data.episodes,
        "frames": len(data.states),
        "steps": data.steps,
        "length": {"least": int(data.lengths.min()), "most": int(data.lengths.max())},
        "pixels": None if data.pixels is None else list(data.pixels.shape[1:]),
        "action": _moments(actions, _names(data, "action")),
        "state": _moments(data.states, _names(data, "state")),
        "coverage": None,
        "controls": None,
    }
    world = world or known_world(data)
    if world is not None:
        info["coverage"] = Coverage(world).add(data.states).fraction()
        if bool((data.lengths > AHEAD).any()):
            info["controls"] = controls(data, world)
    return info


def _names(data: EpisodeData, kind: str) -> tuple[str, ...] | None:
    """Of the entries of a state or an action: the world's, or those of the data set."""
    if data.spec is not None:
        return getattr(data.spec, f"{kind}_names")
    names = texts(data.attributes.get(f"{kind}_names"))
    width = (data.states if kind == "state" else data.actions).shape[1]
    return tuple(names) if len(names) == width else None


def known_world(data: EpisodeData) -> World | None:
    """The world of a data set if it is one of ours and can be built here."""
    if data.spec is None:
        return None
    try:
        make(data.spec.name, **data.spec.options)
    except UserError:  # unknown, or options of another version: the statistics do not need the world
        return None
    return world_of(data)


def _moments(rows: Tensor, names: tuple[str, ...] | None) -> dict[str, dict[str, float]]:
    """Mean, deviation and range of each entry of rows (N, K)."""
    columns = rows.to(torch.float64).T if len(rows) else ()
    moments = [(float(c.mean()), float(c.std(correction=0)), float(c.min()), float(c.max())) for c in columns]
    return {
        names[k] if names else str(k): dict(zip(("mean", "std", "min", "max"), values, strict=True))
        for k, values in enumerate(moments)
    }


def controls(data: EpisodeData, world: World, trials: int | None = None) -> dict[str, dict[str, float]]:
    """Success, in %, of doing nothing and of random actions: what a planner must beat. Starts are frames of the data;
    dataset goals lie AHEAD raw steps further in the same episode, random goals anywhere. Latched: success at any of
    BUDGET raw steps; terminal: at the last one."""
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
        for name, policy in (("nothing", Still(world)), ("random", Random(world))):
            states, _ = rollout(world, policy, start, goal, row_keys((SEED, "controls", name), trials), BUDGET)
            reached = world.success(states[:, 1:], goal.unsqueeze(1))  # (N, T)
            latched, terminal = (100 * int(r.sum()) / trials for r in (reached.any(1), reached[:, -1]))
            rates[f"{kind}, {name}"] = {"latched": latched, "terminal": terminal}
    return rates


def contact_sheet(data: EpisodeData, out: str | Path, overwrite: bool = False) -> None:
    """A picture of the data: 6 episodes from first to last frame (8 each), one row per episode."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    check_output(Path(out), overwrite)
    world, about = known_world(data), PngInfo()
    about.add_text("Software", MARK)
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
            sheet.save(temporary, pnginfo=about)
        except ValueError as error:  # Pillow does not know the ending
            raise UserError(f"cannot write {out}: end the name of the picture in .png.") from error


class Coverage:
    """The fraction of the cells in which goals fall that some state lies in. The grid is CELLS×CELLS over the first two
    entries of the state a robot would feel (its position); the cells that count are those where drawn goals fall, so
    walls and borders do not."""

    def __init__(self, world: World):
        spec = world.spec
        self.axes = list(spec.proprio or range(spec.state_dim))[:2]
        draws = _GOALS if isinstance(world, TensorWorld) else _FEWEST if getattr(world, "goal_steps", 0) else _FEWER
        goals = world.sample_goal(draws, ("coverage",))[:, self.axes]
        self.low, self.high = goals.amin(0), goals.amax(0)
        self.seen = torch.zeros(CELLS ** len(self.axes), dtype=torch.bool)
        self.counts = torch.zeros_like(self.seen)
        self.counts[self._cell(goals)] = True

    def _cell(self, position: Tensor) -> Tensor:
        span = (self.high - self.low).clamp(min=1e-12)
        grid = ((position - self.low) / span * CELLS).floor().clamp(0, CELLS - 1).to(torch.int64)
        return functools.reduce(lambda index, axis: index * CELLS + axis, grid.unbind(1))

    def add(self, states: Tensor) -> "Coverage":
        """states (N, S)."""
        self.seen[self._cell(states[:, self.axes])] = True
        return self

    def fraction(self) -> float:
        return int((self.seen & self.counts).sum()) / int(self.counts.sum())
