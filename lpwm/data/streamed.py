"""Clips of frames that do not fit into memory: read ahead by worker processes, copied to the device during its work.

    step s:  workers read the frames of steps s+1 … s+prefetch−1 into slots of shared memory
             the slot of step s is copied to the device on a stream of its own, and filled again

The clips are those of ResidentClips, bit for bit.
"""

import contextlib
import dataclasses
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpwm.core.errors import UserError, require
from lpwm.core.memory import free_bytes
from lpwm.data.clips import Clip, Clips, ResidentClips, check_frames, frame_shape, resize
from lpwm.data.episodes import EpisodeData
from lpwm.data.frames import StoredFrames
from lpwm.data.frames.cache import cached
from lpwm.data.frames.pool import FramePool
from lpwm.data.order import splits
from lpwm.worlds.base import World
from lpwm.worlds.pool import cores

SOURCES = ("auto", "resident", "streamed")
_SHARE = 0.5  # of the free memory that resident frames may take: the model comes too
_TABLE = 9  # bytes of index and order a resident row costs on top of its frame


def default_workers() -> int:
    """One reader per core but the one that trains."""
    return max(1, cores() - 1)


class StreamedClips(Clips):
    """Clips of stored frames, read from their files by worker processes (started by the first batch).

    prefetch: batches in memory at once, the one in use included. workers: reading processes; one fewer than cores
    by default. Steps may come in any order; in ascending order they are read ahead.
    """

    order_on = "cpu"  # rows are sent to the reading processes

    def __init__(
        self,
        episodes: EpisodeData,
        *,
        image_size: int | None = None,
        workers: int | None = None,
        prefetch: int = 4,
        **options: Any,
    ):
        check_frames(episodes, None, image_size)
        if not isinstance(episodes.pixels, StoredFrames):
            raise UserError("these frames are in memory already: only frames in files are streamed.")
        require("workers", workers, 1)
        require("prefetch", prefetch, 2)  # one in use and one being read
        super().__init__(episodes, **options)
        first, last = self.index.slice
        clips = -(-self.index.batch // self.index.ranks)  # the largest slice of any rank
        self._stored, self._shape = episodes.pixels, frame_shape(episodes.pixels, image_size)
        self._stored.check()
        self._count = (last - first) * self.clip_length
        local = clips * self.clip_length * 3 * self._stored.shape[1] * self._stored.shape[2]
        free = free_bytes(torch.device("cpu"))
        if prefetch * local > _SHARE * free:
            raise UserError(
                f"{prefetch} batches of {local / 1e9:.2f} GB of frames are more than half of the {free / 1e9:.1f} GB "
                "of memory that are free: use a smaller train.batch."
            )
        self._workers, self._prefetch = workers or default_workers(), prefetch
        self._at = torch.arange(self.clip_length) * self.frameskip
        self._pool: FramePool | None = None
        self._slots: dict[int, int] = {}  # step -> slot, oldest first
        self._copied: list[torch.cuda.Event | None] = [None] * prefetch
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    @property
    def processes(self) -> list[int]:
        """The ids of the reading processes."""
        return [] if self._pool is None else self._pool.processes

    def batch(self, step: int) -> Clip:
        start_b = self.index.at(step)
        if self._stream is not None:
            start_b = start_b.pin_memory().to(self.device, non_blocking=True)
        row_bT, states, actions = self._numbers(start_b)
        if not self._count:  # more ranks than clips
            return Clip(torch.empty((0, self.clip_length, 3, *self._shape), dtype=torch.uint8), actions, states)
        self._read_ahead(step)
        assert self._pool is not None
        slot = self._slots[step]
        host = torch.from_numpy(self._pool.wait(slot))
        flat = self._move(host, slot)
        return Clip(flat.view(*row_bT.shape, *flat.shape[1:]), actions, states)

    def close(self) -> None:
        """End the workers. The next batch would start them again."""
        if self._pool is not None:
            if self._stream is not None:
                self._stream.synchronize()
            self._unpin()
            self._pool.close()
        self._pool, self._slots = None, {}

    def _read_ahead(self, step: int) -> None:
        """Have `step` and those that follow read, into slots of steps that are not among them."""
        if self._pool is None:
            self._pool = FramePool(self._stored, self._count, self._prefetch, self._workers)
            self._unpin = (lambda: None) if self._stream is None else _pin(self._pool)
        wanted = range(step, step + self._prefetch)
        for old in [s for s in self._slots if s not in wanted]:
            del self._slots[old]
        used = set(self._slots.values())
        free = [slot for slot in range(self._prefetch) if slot not in used]
        for s in wanted:
            if s in self._slots:
                continue
            slot = free.pop(0)
            if (copied := self._copied[slot]) is not None:
                copied.synchronize()
            rows = (self.index.at(s)[:, None] + self._at).flatten()
            self._pool.fill(slot, rows.numpy())
            self._slots[s] = slot

    def _move(self, host: Tensor, slot: int) -> Tensor:
        """The frames of a slot on the device, of the right size and no longer in the slot."""
        if self._stream is None:
            made = resize(host, self._shape)
            return made.clone() if made is host else made
        with torch.cuda.stream(self._stream):
            here = host.to(self.device, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
            made = resize(here, self._shape)
        self._copied[slot] = event
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._stream)
        made.record_stream(current)
        return made


def _pin(pool: FramePool) -> Callable[[], Any]:
    """Lock the pool's memory, so that copies overlap with everything else. Returns what unlocks it again."""
    address, cuda = pool.address, torch.cuda.cudart()
    if int(cuda.cudaHostRegister(address, pool.bytes, 0)) != 0:
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda")  # takes the error, which the next launch would otherwise report
        return lambda: None
    # The buffer is held until then, so that the address is still its own.
    return weakref.finalize(pool, lambda _: cuda.cudaHostUnregister(address), pool.buffer)


def with_cache(episodes: EpisodeData, folder: str | Path, image_size: int | None = None) -> EpisodeData:
    """The same data with frames that are slow to decode (mp4, pictures in tables) decoded once, into `folder`. They are
    brought to `image_size` with the arithmetic of training, so that nothing changes but the speed."""
    if not isinstance(episodes.pixels, StoredFrames) or not episodes.pixels.slow:
        return episodes
    frames = cached(episodes.pixels, episodes.digest, Path(folder), image_size, default_workers())
    return dataclasses.replace(episodes, pixels=frames)


def open_clips(
    episodes: EpisodeData,
    *,
    source: str = "auto",
    world: World | None = None,
    image_size: int | None = None,
    workers: int | None = None,
    compiled: bool = False,
    **options: Any,
) -> ResidentClips | StreamedClips:
    """Clips from memory where they fit (half of what is free on the device), else streamed; or as `source` says."""
    if source not in SOURCES:
        raise UserError(f"data.source is {source!r}: give {', '.join(SOURCES[:-1])} or {SOURCES[-1]}.")
    check_frames(episodes, world, image_size)
    if source == "streamed" and world is not None:
        raise UserError(
            "frames rendered from states are not streamed: leave data.source at auto, or store the frames first "
            "('lpwm data convert FILE OUT --add-pixels')."
        )
    if source == "auto" and isinstance(episodes.pixels, StoredFrames) and world is None:
        chosen = splits(episodes, options.get("holdout", 0.1))[options.get("split", "train") != "train"]
        height, width = frame_shape(episodes.pixels, image_size)
        need = int(episodes.lengths[chosen].sum()) * (3 * height * width + _TABLE)
        fits = need <= _SHARE * free_bytes(torch.device(options.get("device", "cpu")))
        source = "resident" if fits else "streamed"
    if source == "streamed":
        return StreamedClips(episodes, image_size=image_size, workers=workers, **options)
    return ResidentClips(episodes, world=world, image_size=image_size, compiled=compiled, **options)
