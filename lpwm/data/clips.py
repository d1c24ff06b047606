"""From a data set to training batches, without leaving the device.

B clips of the global batch, b of this rank, T frames a clip, S state entries, A raw action entries.

A clip starts at any frame s of an episode of L frames with s + (T − 1)·frameskip ≤ L − 1; its frames are
frameskip apart, and block t holds the frameskip raw actions between frames t and t + 1. The order is a pure
function of (seed, step): position i = step·B + j of an endless sequence is clip perm_e[i mod n] of epoch
e = i div n, so every epoch sees every clip once, batches are always full, and any step can be drawn alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from lpwm import rng
from lpwm.data.episodes import EpisodeData, Frames
from lpwm.data.normalise import ActionStats, to_blocks
from lpwm.errors import UserError
from lpwm.worlds.base import World
from lpwm.worlds.dots import area_average

_CHUNK = 512  # frames moved to the device at a time


@dataclass(frozen=True)
class Clip:
    pixels: Tensor  # (b, T, 3, h, w) uint8
    actions: Tensor  # (b, T − 1, A·frameskip) float32, z-scored
    states: Tensor  # (b, T, S) float32


@runtime_checkable
class ClipSource(Protocol):
    """Where training gets its batches. The global batch of a step is a pure function of (seed, step)."""

    @property
    def stats(self) -> ActionStats: ...

    @property
    def steps_per_epoch(self) -> int: ...

    def __len__(self) -> int:
        """Clips in an epoch."""
        ...

    def batch(self, step: int) -> Clip:
        """This rank's slice of the batch of this step."""
        ...


def split_episodes(count: int, holdout: float) -> tuple[Tensor, Tensor]:
    """Training and held-out episodes, int64 and ascending: a function of (count, holdout) alone.

    So training, evaluation and a copy of the file with or without pixels all agree. A smaller holdout is a
    subset of a larger one.
    """
    if not 0 <= holdout < 1:
        raise UserError(f"holdout is {holdout}: give a fraction of the episodes, 0 ≤ holdout < 1.")
    held = round(holdout * count)
    if holdout > 0:
        held = min(max(held, 1), count - 1)
    order = permutation(count, rng.seed_of("split"), "cpu")
    return order[held:].sort().values, order[:held].sort().values


def permutation(n: int, key: int, device: torch.device | str) -> Tensor:
    """A permutation of 0…n−1 by sorting keyed 64-bit words: the same on every device, without waiting for it."""
    seed = torch.full((), key, dtype=torch.int64, device=device)  # filled there: copying a number would wait
    words = rng.bits_at(rng.fold(seed, torch.arange(n, device=device)), 1)[:, 0]
    return torch.sort(words, stable=True).indices


def clip_starts(lengths: Tensor, offsets: Tensor, reach: int) -> Tensor:
    """The rows at which a clip that spans `reach` transitions may start, ascending: (n,) int64."""
    counts = (lengths - reach).clamp(min=0)
    first = torch.repeat_interleave(offsets, counts)
    within = torch.arange(int(counts.sum())) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    return first + within


class ResidentClips:
    """States, or uint8 frames, in the memory of the device; clips are gathered, and rendered, there.

    With a world its renderer draws every frame from the state; without one the stored frames are used.
    Stored frames of another size than `size` are resized once, when loaded (see `resize`), which is
    close to but not the same as rendering at that size.
    """

    def __init__(
        self,
        episodes: EpisodeData,
        *,
        world: World | None = None,
        frames: int,
        frameskip: int = 5,
        batch: int,
        seed: int = 0,
        size: int | None = None,
        split: str = "train",
        holdout: float = 0.1,
        device: torch.device | str = "cpu",
        rank: int = 0,
        ranks: int = 1,
        stats: ActionStats | None = None,
    ):
        _check(episodes, world, frames, frameskip, batch, size, split, rank, ranks)
        train, held = split_episodes(episodes.episodes, holdout)
        chosen = train if split == "train" else held
        starts = clip_starts(episodes.lengths[chosen], episodes.offsets[chosen], (frames - 1) * frameskip)
        if not len(starts):
            longest = int(episodes.lengths[chosen].max()) if len(chosen) else 0
            raise UserError(
                f"the {split} split ({len(chosen)} episodes, the longest of {longest} frames) holds no clip of "
                f"{frames} frames {frameskip} steps apart, which needs {(frames - 1) * frameskip + 1}."
            )
        self.frames, self.frameskip, self.seed, self.split = frames, frameskip, seed, split
        self.global_batch, self.device = batch, torch.device(device)
        self.stats = stats or ActionStats.of(_rows_of(episodes, train))
        if len(self.stats.mean) != episodes.actions.shape[1]:
            raise UserError(
                f"the statistics are of {len(self.stats.mean)} action dimensions, the data have "
                f"{episodes.actions.shape[1]}."
            )
        self._slice = (rank * batch // ranks, (rank + 1) * batch // ranks)
        self._n, self._starts = len(starts), starts.to(self.device)
        self._states = episodes.states.to(self.device)
        self._actions = self.stats.normalise(episodes.actions).to(self.device)
        self._frame = torch.arange(frames, device=self.device) * frameskip
        self._step = torch.arange((frames - 1) * frameskip, device=self.device)
        self._orders: dict[int, Tensor] = {}
        self._draw = None if world is None else world.renderer(size, self.device)
        self._pixels: Tensor | None = None
        if world is None:
            assert episodes.pixels is not None  # checked above
            self._pixels = load_frames(episodes.pixels, size, self.device)

    def __len__(self) -> int:
        return self._n

    @property
    def steps_per_epoch(self) -> int:
        """Steps after which every clip has been seen at least once."""
        return -(-self._n // self.global_batch)

    def batch(self, step: int) -> Clip:
        return self.gather(self._starts[self._indices(step)])

    def gather(self, start_b: Tensor) -> Clip:
        """The clips that start at these rows of the data set (int64, on the device)."""
        row_bT = start_b[:, None] + self._frame
        states = self._states[row_bT]
        actions = to_blocks(self._actions[start_b[:, None] + self._step], self.frameskip)
        if self._draw is not None:
            flat = self._draw(states.flatten(0, 1))
        else:
            assert self._pixels is not None
            flat = self._pixels[row_bT.flatten()]
        return Clip(flat.view(*row_bT.shape, *flat.shape[1:]), actions, states)

    def _indices(self, step: int) -> Tensor:
        """This rank's clips of a step. Positions are known on the host, so nothing waits for the device."""
        position, last = (step * self.global_batch + edge for edge in self._slice)
        pieces = []
        while position < last:
            epoch, begin = divmod(position, self._n)
            end = min(self._n, begin + last - position)
            pieces.append(self._order(epoch)[begin:end])
            position += end - begin
        return torch.cat(pieces) if pieces else self._starts[:0]

    def _order(self, epoch: int) -> Tensor:
        if epoch not in self._orders:
            if len(self._orders) > 1:  # a batch spans at most two epochs, unless it is larger than one
                self._orders.pop(next(iter(self._orders)))
            key = rng.seed_of("clips", self.split, self.seed, epoch)
            self._orders[epoch] = permutation(self._n, key, self.device)
        return self._orders[epoch]


def load_frames(pixels: Frames, size: int | None, device: torch.device) -> Tensor:
    """All frames (N, h, w, 3) on the device as uint8 (N, 3, size, size), moved and resized in pieces."""
    count, height, width = pixels.shape[:3]
    shape = (height, width) if size is None else (size, size)
    need = count * 3 * shape[0] * shape[1]
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        if need > 0.9 * free:
            raise UserError(
                f"{count} frames of {shape[0]}×{shape[1]} need {need / 1e9:.1f} GB and {device} has "
                f"{free / 1e9:.1f} GB free: use a smaller size, or give the world and render the states."
            )
    table = torch.empty((count, 3, *shape), dtype=torch.uint8, device=device)
    for start in range(0, count, _CHUNK):
        piece = torch.from_numpy(pixels[start : start + _CHUNK]).to(device).permute(0, 3, 1, 2)
        table[start : start + _CHUNK] = resize(piece, shape)
    return table


def resize(frames: Tensor, shape: tuple[int, int]) -> Tensor:
    """uint8 (n, 3, h, w) -> uint8 (n, 3, *shape): smaller by averaging areas, larger bilinearly, rounded."""
    height, width = frames.shape[2:]
    if (height, width) == shape:
        return frames
    soft = frames.float()
    if shape[0] <= height and shape[1] <= width:
        rows, columns = (area_average(a, b).to(soft) for a, b in zip((height, width), shape, strict=True))
        soft = rows @ soft @ columns.T
    else:
        soft = F.interpolate(soft, size=shape, mode="bilinear")
    return soft.round().clamp(0, 255).to(torch.uint8)


def _rows_of(episodes: EpisodeData, chosen: Tensor) -> Tensor:
    """The actions that lead somewhere, of these episodes."""
    return episodes.actions[clip_starts(episodes.lengths[chosen], episodes.offsets[chosen], 1)]


def _check(
    episodes: EpisodeData,
    world: World | None,
    frames: int,
    frameskip: int,
    batch: int,
    size: int | None,
    split: str,
    rank: int,
    ranks: int,
) -> None:
    for name, value, least in (("frames", frames, 1), ("frameskip", frameskip, 1), ("batch", batch, 1)):
        if value < least:
            raise UserError(f"{name} is {value}: give at least {least}.")
    if size is not None and size < 1:
        raise UserError(f"size is {size}: give at least 1.")
    if split not in ("train", "val"):
        raise UserError(f"split is {split!r}: give 'train' or 'val'.")
    if not 0 <= rank < ranks:
        raise UserError(f"rank {rank} of {ranks}: give 0 ≤ rank < ranks.")
    if world is None and episodes.pixels is None:
        raise UserError("the data have no pixels: give the world that renders their states, or add pixels.")
    if world is not None and world.spec.state_dim != episodes.states.shape[1]:
        raise UserError(
            f"the data have {episodes.states.shape[1]} state entries, the world {world.spec.name!r} has "
            f"{world.spec.state_dim}."
        )
