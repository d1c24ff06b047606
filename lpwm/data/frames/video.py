"""Frames of mp4 files, one or several episodes each, decoded on demand."""

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError, need
from lpwm.core.files import regular
from lpwm.data.frames import EpisodeFiles, EpisodeReader, Rows, too_short

_OPEN = 32  # files kept open by a reader: opening one costs as much as decoding ten frames
_PIXELS = 1 << 26  # of a frame: more is no camera


def decoder() -> Any:
    av = need("av", "mp4 files need a decoder: pip install 'lpwm[video]', or data.pixels rendered.")
    av.logging.set_level(av.logging.PANIC)  # what is wrong with a file is said here, once
    return av


class VideoFrames(EpisodeFiles):
    """The frames of episodes of these lengths; a file may hold more frames than its episodes use.

    starts: the first frame of each episode in its file, where files hold several. rate: frames per second, where the
    data set says it; a file that disagrees is refused.
    """

    kind = "video"

    def __init__(
        self, files: list[Path], lengths: NDArray[np.int64], starts: NDArray[np.int64] | None = None, rate: float = 0
    ):
        super().__init__(files, lengths)
        self.starts, self.rate = np.zeros_like(lengths) if starts is None else starts, rate

    def headers(self, files: list[Path]) -> Iterator[tuple[int, int, int]]:
        decoder()
        with ThreadPoolExecutor(4) as pool:
            yield from pool.map(functools.partial(header, rate=self.rate), map(str, files))

    def check(self) -> None:
        needed: dict[Path, int] = {}
        for file, end in zip(self.files, (self.starts + self.lengths).tolist(), strict=True):
            needed[file] = max(end, needed.get(file, 0))
        if len(needed) < len(self.files):
            VideoFrames(list(needed), np.array(list(needed.values())), rate=self.rate).check()
        else:
            super().check()

    @property
    def where(self) -> dict[str, Any]:
        return {**super().where, "starts": self.starts.tolist(), "rate": self.rate}


def _open(file: str) -> Any:
    av = decoder()
    regular(Path(file))
    try:
        container = av.open(file, metadata_errors="replace")
    except (av.error.FFmpegError, OSError) as error:
        raise UserError(f"{file} is no video that can be read ({error.strerror}): copy it again.") from error
    if not container.streams.video or container.streams.video[0].codec_context is None:
        raise UserError(f"{file} holds no video that can be decoded: copy it again.")
    return container


def header(file: str, rate: float = 0) -> tuple[int, int, int]:
    """Frames (0 if the file does not say), height and width."""
    with _open(file) as container:
        stream = container.streams.video[0]
        if stream.height * stream.width > _PIXELS:
            raise UserError(f"{file} claims frames of {stream.height}×{stream.width}: copy it again.")
        if rate and stream.average_rate and abs(float(stream.average_rate) / rate - 1) > 0.02:
            own = float(stream.average_rate)
            raise UserError(f"{file} has {own:g} frames per second, its data set says {rate:g}: copy it again.")
        return stream.frames, stream.height, stream.width


class VideoReader(EpisodeReader):
    """Decodes from the last key frame before each run of wanted frames to the end of the run."""

    def __init__(self, files: list[str], lengths: list[int], starts: list[int], rate: float):
        super().__init__(files, lengths, starts)
        self._film = functools.lru_cache(_OPEN)(functools.partial(_Film, rate=rate))

    def read(self, file: str, length: int, positions: list[int], wanted: list[int]) -> Rows:
        av, film, counted = decoder(), self._film(file), 0
        waiting: dict[int, list[int]] = {}
        for number, position in zip(wanted, positions, strict=True):
            waiting.setdefault(number, []).append(position)
        try:
            # Counting from the start is right for every file; jumping is, where frames are evenly spaced.
            for frames in (film.jump(list(waiting)), film.count()):
                for number, frame in frames:
                    counted = max(counted, number + 1)
                    if number in waiting:
                        picture = film.picture(frame)
                        for position in waiting.pop(number):
                            yield position, picture
                    if not waiting:
                        return
        except (av.error.FFmpegError, OSError) as error:
            raise UserError(f"{file} cannot be decoded ({error.strerror}): copy it again.") from error
        raise too_short(file, counted, length)

    def close(self) -> None:
        self._film.cache_clear()


class _Film:
    """An open file, its key frames, and how time stamps count frames."""

    def __init__(self, file: str, rate: float):
        self._file, self._container = file, _open(file)
        self._stream = stream = self._container.streams.video[0]
        stream.codec_context.thread_count = 1  # readers are processes; more threads would only delay a frame
        self._shape = (stream.height, stream.width, 3)
        self._per_tick = float(stream.time_base or 0) * (rate or float(stream.average_rate or 0))
        self._zero = stream.start_time or 0
        entries = getattr(stream, "index_entries", None) or ()
        keys = [number for number, entry in enumerate(entries) if entry.is_keyframe]
        self._keys = np.array(keys or [0], np.int64)
        self._to_rgb = decoder().video.reformatter.VideoReformatter()  # one for all frames: making it costs as much

    def jump(self, wanted: list[int]) -> Iterator[tuple[int, Any]]:
        """(number, frame) of the wanted frames, ascending, and maybe others between them."""
        if not self._per_tick:
            return
        keys = self._keys[np.searchsorted(self._keys, wanted, side="right") - 1].tolist()
        run = [wanted[0]]
        for number, key in zip(wanted[1:], keys[1:], strict=True):
            if key > run[-1] + 2:  # what is between need not be decoded
                yield from self._run(run[0], set(run))
                run = []
            run.append(number)
        yield from self._run(run[0], set(run))

    def _run(self, first: int, missing: set[int]) -> Iterator[tuple[int, Any]]:
        """Decode from the key frame before `first` until all of `missing` were given to the decoder, then drain it."""
        stamp = self._zero + int((first + 0.25) / self._per_tick)
        self._container.seek(stamp, stream=self._stream, backward=True)
        for packet in self._container.demux(self._stream):
            frames = self._stream.codec_context.decode(packet)
            if packet.pts is not None:
                missing.discard(self._number(packet.pts))
            if not missing and packet.size:  # an empty packet is the end of the file, and has drained it
                frames += self._stream.codec_context.decode(None)
            for frame in frames:
                if frame.pts is None:
                    return
                yield self._number(frame.pts), frame
            if not missing:
                return

    def _number(self, stamp: int) -> int:
        return round((stamp - self._zero) * self._per_tick)

    def count(self) -> Iterator[tuple[int, Any]]:
        self._container.seek(self._zero, stream=self._stream, backward=True)
        yield from enumerate(self._container.decode(self._stream))

    def picture(self, frame: Any) -> NDArray[np.uint8]:
        picture = self._to_rgb.reformat(frame, format="rgb24").to_ndarray()
        if picture.shape != self._shape:
            raise UserError(f"{self._file}: its frames change their size: copy it again.")
        return picture
