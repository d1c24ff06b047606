"""What to train with on a data set: frameskip, frame size, pixels, λ and steps, each with its reason; and warnings.

Everything is measured on at most PAIRS pairs of frames, drawn evenly over the episodes.

    frameskip   the least k at which frames k steps apart differ by MOVED of what unrelated ones do (mean square)
    image size  the least at which what changes within a frameskip is SEEN pixels wide
    pixels      measured from white or from the data's mean where the background stands still
    steps       EPOCHS passes over the clips, within STEPS
"""

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.data.clips import resize
from lpwm.data.episodes import EpisodeData
from lpwm.data.frames import StoredFrames, open_reader
from lpwm.data.info import known_world
from lpwm.data.order import clip_starts
from lpwm.worlds import World

RECIPE, CLIP, BATCH = "piecewise-2x2-small/lpwm", 4, 64  # the recipe to start from, its frames of a clip and clips
LAM = 1.0  # results/small-recipe.md, results/protocol.md
SKIPS, MOVED = (1, 2, 3, 5, 10), 0.3
SIZES, SEEN = {32: 16, 64: 16, 112: 14, 224: 14}, 2.5  # side -> patch; pixels
EPOCHS, STEPS = 3, (2000, 10_000)
PAIRS, PROBED, SIDE = 512, 1500, 24  # pairs of frames; frames of the probe and their side
LEVEL = 16  # of 255: a pixel that changes by more has changed
STILL, CONSTANT, BRIGHT = 0.5, 0.7, 0.8
READABLE, GAIN = 0.8, 0.3  # R² of the action from a single frame, and how much more than from the frame before it
ONE_ACTION, SHORT, FEW = 0.6, 0.1, 1000


@dataclass(frozen=True)
class Choice:
    """One field of a run, and why."""

    field: str
    value: int | float | str
    why: str


@dataclass(frozen=True)
class Suggestion:
    choices: tuple[Choice, ...]
    warnings: tuple[str, ...]
    command: str

    def to_json(self) -> dict[str, Any]:
        return {
            "choices": {c.field: {"value": c.value, "why": c.why} for c in self.choices},
            "warnings": list(self.warnings),
            "command": self.command,
        }


def suggest(data: EpisodeData, file: str, world: World | None = None) -> Suggestion:
    """Proposals for training on `data`, which are read from `file`."""
    frames = _Frames(data, world or known_world(data))
    skip, ratio, why_skip = _frameskip(data, frames)
    before, after = frames.pairs(skip)
    size, why_size = _image_size(before, after, frames.native)
    pixels, why_pixels = _pixels(before)
    clips = len(clip_starts(data.lengths, data.offsets, (CLIP - 1) * skip))
    steps = min(max(500 * round(EPOCHS * clips / BATCH / 500), STEPS[0]), STEPS[1])
    passes = steps * BATCH / max(clips, 1)
    choices = (
        Choice("data.frameskip", skip, why_skip),
        Choice("model.encoder.image_size", size, why_size),
        Choice("model.encoder.patch", SIZES[size], f"{(size // SIZES[size]) ** 2} patches"),
        Choice("model.encoder.pixels", pixels, why_pixels),
        Choice(
            "objective.lam", LAM, f"for {steps:,} steps: with half of it codes collapsed, with 25 distances saturated"
        ),
        Choice("train.steps", steps, f"{passes:.1f} passes over {clips:,} clips of {CLIP} frames"),
    )
    warnings = [
        *_moving(before, after, skip, ratio),
        *_drawn(data, frames),
        *_actions(data),
        *_lengths(data, skip, clips),
    ]
    words = ["lpwm", "train", RECIPE, "--data.file", file]
    if frames.stored:
        words += ["--data.pixels", "stored"]
    for choice in choices:
        words += [f"--{choice.field.replace('_', '-')}", f"{choice.value}"]
    return Suggestion(choices, tuple(warnings), shlex.join(words))


class _Frames:
    """Frames of some rows, uint8 (n, 3, side, side) of any side: stored ones, or drawn by the world."""

    def __init__(self, data: EpisodeData, world: World | None) -> None:
        if data.pixels is None and world is None:
            raise UserError("the data have neither pixels nor a known world: there is nothing to look at.")
        self.data, self.world, self.stored = data, world, data.pixels is not None
        self.native = data.pixels.shape[1] if data.pixels is not None else world.spec.frame  # type: ignore[union-attr]

    def at(self, rows: Tensor, side: int) -> Tensor:
        if self.data.pixels is None:
            assert self.world is not None
            return self.world.render(self.data.states[rows], side)
        out = torch.empty((len(rows), 3, side, side), dtype=torch.uint8)
        for position, frame in self._stored(rows.numpy()):
            out[position] = resize(torch.tensor(frame).permute(2, 0, 1)[None], (side, side))[0]
        return out

    def _stored(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        pixels = self.data.pixels
        assert pixels is not None
        if not isinstance(pixels, StoredFrames):
            yield from ((i, pixels[r : r + 1][0]) for i, r in enumerate(rows.tolist()))
            return
        reader = open_reader(pixels.where)
        try:
            yield from reader(rows)
        finally:
            reader.close()

    def pairs(self, skip: int, side: int = 64) -> tuple[Tensor, Tensor]:
        """Frames and those `skip` steps later, float (n, 3, side, side), evenly over the data."""
        first = clip_starts(self.data.lengths, self.data.offsets, skip)
        if not len(first):
            raise UserError(f"no episode has {skip + 1} frames: there is nothing that moves.")
        first = first[torch.linspace(0, len(first) - 1, min(PAIRS, len(first))).round().long()]
        return self.at(first, side).float(), self.at(first + skip, side).float()


def _frameskip(data: EpisodeData, frames: _Frames) -> tuple[int, float, str]:
    longest = int(data.lengths.max()) - 1
    skip, ratio = 1, 0.0
    for candidate in SKIPS:
        if (CLIP - 1) * candidate > longest:
            break
        before, after = frames.pairs(candidate)
        apart = (before - before.roll(len(before) // 2, 0)).square().mean()
        skip, ratio = candidate, float((after - before).square().mean() / apart.clamp(min=1e-9))
        if ratio >= MOVED:
            break
    return skip, ratio, f"frames {skip} steps apart differ by {ratio:.2f} of what unrelated frames do"


def _image_size(before: Tensor, after: Tensor, native: int) -> tuple[int, str]:
    changed = ((after - before).abs().amax(1) > LEVEL).float().mean((1, 2))
    some = changed[changed > 0]
    share = float(some.quantile(0.1)) if len(some) else 0.0
    wide = math.sqrt(share)
    size = next((s for s in SIZES if wide * s >= SEEN), 224) if share else 64
    size = min(size, min((s for s in SIZES if s >= native), default=224))
    return size, f"what changes is about {wide * size:.1f} of {size} pixels wide where it is small"


def _pixels(frames: Tensor) -> tuple[str, str]:
    middle = frames.median(0).values
    constant = float(((frames - middle).abs().amax(1) <= LEVEL).float().mean())
    bright = float(middle.mean() / 255)
    told = f"{100 * constant:.0f} % of the pixels stand still, at a brightness of {bright:.2f}"
    if constant < CONSTANT:
        return "imagenet", f"the background moves: {told}"
    return (
        ("white", f"a constant, bright background: {told}") if bright > BRIGHT else ("data", f"a constant one: {told}")
    )


def _moving(before: Tensor, after: Tensor, skip: int, ratio: float) -> Iterator[str]:
    still = float(((after - before).abs().amax((1, 2, 3)) <= LEVEL).float().mean())
    if still > STILL:
        yield (
            f"nothing moves in {100 * still:.0f} % of the pairs of frames {skip} steps apart: leave such stretches "
            "out, or record with actions that do something."
        )
    elif ratio < MOVED:
        yield (
            f"little moves: frames {skip} steps apart differ by only {ratio:.2f} of what unrelated ones do; record "
            "fewer frames a second, or longer episodes."
        )


def _drawn(data: EpisodeData, frames: _Frames) -> Iterator[str]:
    """Whether a frame shows the action before or after it: R² of a linear probe, held out by episode, compared with
    the frame before, from which a policy's habits can be read just as well."""
    rows = clip_starts(data.lengths, data.offsets, 2) + 1  # with a frame before and an action on either side
    if len(rows) < 50 or data.episodes < 2:
        return
    rows = rows[torch.linspace(0, len(rows) - 1, min(PROBED, len(rows))).round().long()]
    episode = torch.searchsorted(data.offsets, rows, right=True)
    held = episode % 4 == 3 if data.episodes > 3 else episode == episode.max()
    here, earlier = (frames.at(r, SIDE).flatten(1).float() / 255 for r in (rows, rows - 1))
    for which, actions in (("that led to it", data.actions[rows - 1]), ("that follows it", data.actions[rows])):
        now, then = (_probe(x, actions, held) for x in (here, earlier))
        if now > READABLE or now - then > GAIN:
            yield (
                f"the action is drawn into the picture: a line through the pixels of a single frame gives the action "
                f"{which} (R² {now:.2f}, from the frame before {then:.2f}); a model learns the drawing instead of what "
                "the action does: hide it when recording, or crop it."
            )
            return


def _probe(features: Tensor, actions: Tensor, held: Tensor) -> float:
    """R² of ridge regression on the held-out rows, the best of three penalties; of the best action dimension."""
    from sklearn.linear_model import Ridge  # slow to import
    from sklearn.metrics import r2_score

    (x, new), (y, truth) = ((t[~held].double().numpy(), t[held].double().numpy()) for t in (features, actions))
    able = truth.std(0) > 3e-5
    if not able.any():
        return -1.0
    power = float(np.square(x - x.mean(0)).sum(1).mean())
    fits = (Ridge(alpha=penalty * power + 1e-9).fit(x, y[:, able]) for penalty in (1e-3, 1e-1, 10.0))
    return max(float(r2_score(truth[:, able], f.predict(new), multioutput="raw_values").max()) for f in fits)


def _actions(data: EpisodeData) -> Iterator[str]:
    actions = data.actions[torch.isfinite(data.actions).all(1)].double()
    std = actions.std(0, correction=0)
    if bool((std < 1e-6).any()):
        yield f"{int((std < 1e-6).sum())} of {len(std)} action dimensions never vary: what they do cannot be learned."
    grid = torch.round((actions - actions.mean(0)) / std.clamp(min=1e-6) * 10).numpy()
    _, counts = np.unique(grid, axis=0, return_counts=True)
    share = counts.max() / len(grid)
    if share > ONE_ACTION and bool((std >= 1e-6).any()):
        yield (
            f"one action dominates: {100 * share:.0f} % of the steps have the same; record more of the others, or the "
            "model predicts well without looking at the action."
        )


def _lengths(data: EpisodeData, skip: int, clips: int) -> Iterator[str]:
    need = (CLIP - 1) * skip + 1
    short = float((data.lengths < need).double().mean())
    if short > SHORT:
        yield (
            f"episodes are too short: {100 * short:.0f} % have fewer than the {need} frames that a clip of {CLIP}, "
            f"{skip} steps apart, needs; record longer ones, or set --data.frameskip lower."
        )
    if clips < FEW:
        yield f"there are only {clips} clips: expect a model that knows these by heart; record at least {FEW:,}."
