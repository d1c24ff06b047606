"""From a data set to training batches, without leaving the device.

B clips of the global batch, b of this rank, T frames a clip, S state entries, A raw action entries.

Frames of a clip are frameskip apart, and block t holds the frameskip raw actions between frames t and t + 1. Which
clips a step holds is `order`'s business.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from lpwm.core.compiled import compiled as compile_static
from lpwm.core.errors import UserError, require
from lpwm.core.graphs import Graph
from lpwm.core.memory import free_bytes
from lpwm.core.resize import resize
from lpwm.data.episodes import EpisodeData
from lpwm.data.frames import Frames, StoredFrames
from lpwm.data.normalize import ActionStats, to_blocks
from lpwm.data.order import ClipIndex, clip_starts
from lpwm.worlds.base import Renderer, World

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

    def batch(self, step: int) -> Clip:
        """This rank's slice of the batch of this step."""

    def close(self) -> None:
        """Release what the source holds besides memory."""


class Clips:
    """What the sources of clips share: the index, and states and actions in the memory of the device. stats: of the
    actions; those of the training split by default. options: those of `ClipIndex`."""

    order_on: str | None = None  # where the order is kept; None: on the device

    def __init__(
        self,
        episodes: EpisodeData,
        *,
        device: torch.device | str = "cpu",
        stats: ActionStats | None = None,
        **options: Any,
    ):
        self.device = torch.device(device)
        self.index = index = ClipIndex(episodes, device=torch.device(self.order_on or device), **options)
        self.clip_length, self.frameskip = index.clip_length, index.frameskip
        if stats is None:  # of the actions that lead somewhere
            moves = clip_starts(episodes.lengths[index.train], episodes.offsets[index.train], 1)
            stats = ActionStats.of(episodes.actions[moves])
        self.stats = stats
        if len(self.stats.mean) != episodes.actions.shape[1]:
            raise UserError(
                f"the statistics have {len(stats.mean)} action dimensions, the data {episodes.actions.shape[1]}."
            )
        self._states = episodes.states.to(self.device)
        self._actions = self.stats.normalize(episodes.actions).to(self.device)
        self._frame = torch.arange(self.clip_length, device=self.device) * self.frameskip
        self._step = torch.arange((self.clip_length - 1) * self.frameskip, device=self.device)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def steps_per_epoch(self) -> int:
        """Steps after which every clip has been seen at least once."""
        return -(-len(self.index) // self.index.batch)

    def _numbers(self, start_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rows (b, T), states and action blocks of the clips that start at these rows."""
        row_bT = start_b[:, None] + self._frame
        actions = to_blocks(self._actions[start_b[:, None] + self._step], self.frameskip)
        return row_bT, self._states[row_bT], actions

    def close(self) -> None:
        """Nothing to give back but memory."""


class Captured:
    """A renderer on CUDA as one graph: the thousand small kernels of a frame cost the host more than the device.
    Captured at the third call, for as many states as the second had (the first two let the libraries allocate, and
    compile); other numbers are drawn as they come."""

    def __init__(self, draw: Renderer, compiled: bool) -> None:
        self._draw = compile_static(draw) if compiled else draw
        self._plain, self._calls = draw, 0
        self._graph: Graph[Tensor] | None = None
        self._states = torch.empty(0)

    def __call__(self, states: Tensor) -> Tensor:
        if self._calls < 2:
            self._calls += 1
            self._states = states.clone()
            return self._draw(states)
        if states.shape != self._states.shape:
            return self._plain(states)
        if self._graph is None:
            self._graph = Graph(lambda: self._draw(self._states))
        self._states.copy_(states)
        return self._graph.replay().clone()


class ResidentClips(Clips):
    """States, or uint8 frames, in the memory of the device; clips are gathered, and rendered, there. With a world its
    renderer draws every frame from the state; without one the stored frames of the split are used, resized once to
    `image_size` when loaded (see `resize`): close to but not the same as rendering at that size."""

    def __init__(
        self,
        episodes: EpisodeData,
        *,
        world: World | None = None,
        image_size: int | None = None,
        compiled: bool = False,
        **options: Any,
    ):
        """compiled: the renderer goes through torch.compile (CUDA)."""
        check_frames(episodes, world, image_size)
        super().__init__(episodes, **options)
        self._draw: Renderer | None = None
        if world is not None:
            self._draw = world.renderer(image_size, self.device)
            if self.device.type == "cuda":
                self._draw = Captured(self._draw, compiled)
        self._pixels: Tensor | None = None
        if world is None:
            assert episodes.pixels is not None  # checked above
            self._pixels, self._place = load_frames(episodes, self.index.chosen, image_size, self.device)

    def batch(self, step: int) -> Clip:
        row_bT, states, actions = self._numbers(self.index.at(step))
        if self._draw is not None:
            flat = self._draw(states.flatten(0, 1))
        else:
            assert self._pixels is not None
            flat = self._pixels[self._place[row_bT.flatten()]]
        return Clip(flat.view(*row_bT.shape, *flat.shape[1:]), actions, states)


def load_frames(episodes: EpisodeData, chosen: Tensor, size: int | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """The frames of these episodes on the device, uint8 (n, 3, size, size), and where in them each row lies (N,)."""
    pixels = episodes.pixels
    assert pixels is not None
    lengths, offsets = episodes.lengths[chosen], episodes.offsets[chosen]
    count, shape = int(lengths.sum()), frame_shape(pixels, size)
    need, free = count * 3 * shape[0] * shape[1], free_bytes(device)
    if need > 0.9 * free:
        raise UserError(
            f"{count} frames of {shape[0]}×{shape[1]} need {need / 1e9:.1f} GB and {device} has {free / 1e9:.1f} GB "
            "free: stream them (data.source streamed), use a smaller size, or render the states (data.pixels rendered)."
        )
    if isinstance(pixels, StoredFrames):
        pixels.check()
    table = torch.empty((count, 3, *shape), dtype=torch.uint8, device=device)
    place = torch.zeros(len(episodes.states), dtype=torch.int64)
    done = 0
    for start, stop in _pieces(offsets.tolist(), lengths.tolist()):
        piece = torch.from_numpy(pixels[start:stop]).to(device).permute(0, 3, 1, 2)
        table[done : done + stop - start] = resize(piece, shape)
        place[start:stop] = torch.arange(done, done + stop - start)
        done += stop - start
    return table, place.to(device)


def _pieces(offsets: list[int], lengths: list[int]) -> Iterator[tuple[int, int]]:
    """The rows of these episodes as slices of at most _CHUNK rows, neighbors joined."""
    start = stop = offsets[0] if offsets else 0
    for offset, length in zip([*offsets, -1], [*lengths, 0], strict=True):
        if offset != stop:
            yield from ((at, min(at + _CHUNK, stop)) for at in range(start, stop, _CHUNK))
            start = offset
        stop = offset + length


def check_frames(episodes: EpisodeData, world: World | None, image_size: int | None) -> None:
    """Something to look at: stored frames, or states that this world can render."""
    require("image_size", image_size, 1)
    if world is None and episodes.pixels is None:
        raise UserError("the data have no pixels: give the world that renders their states, or add pixels.")
    if world is not None and world.spec.state_dim != episodes.states.shape[1]:
        raise UserError(
            f"the data have {episodes.states.shape[1]} state entries, the world {world.spec.name!r} has "
            f"{world.spec.state_dim}."
        )


def frame_shape(pixels: Frames, size: int | None) -> tuple[int, int]:
    return (pixels.shape[1], pixels.shape[2]) if size is None else (size, size)
