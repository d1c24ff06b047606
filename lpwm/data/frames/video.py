"""Frames of mp4 files, one per episode, decoded on demand."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from lpwm.core.errors import UserError
from lpwm.data.frames.base import EpisodeFiles, EpisodeReader, Rows, too_short


def decoder() -> ModuleType:
    try:
        import av
    except ImportError:
        raise UserError(
            "reading mp4 files needs a decoder: pip install 'lpwm[video]', or render the states (data.pixels rendered)."
        ) from None
    av.logging.set_level(av.logging.PANIC)  # what is wrong with a file is said here, once
    return av


class VideoFrames(EpisodeFiles):
    """The frames of episodes of these lengths, one file each; a file may hold more frames than its episode uses."""

    kind = "video"

    def headers(self, files: list[Path]) -> Iterator[tuple[int, int, int]]:
        decoder()
        with ThreadPoolExecutor(4) as pool:
            yield from pool.map(header, map(str, files))


def _open(file: str) -> Any:
    av = decoder()
    if not Path(file).is_file():
        raise UserError(f"{file} does not exist: copy it again, or render the states (data.pixels rendered).")
    try:
        container = av.open(file)
        if not container.streams.video:
            raise UserError(f"{file} holds no video: copy it again.")
        return container
    except (av.error.FFmpegError, OSError) as error:
        raise UserError(f"{file} is no video that can be read ({error.strerror}): copy it again.") from error


def header(file: str) -> tuple[int, int, int]:
    """Frames (0 if the file does not say), height and width."""
    with _open(file) as container:
        stream = container.streams.video[0]
        return stream.frames, stream.height, stream.width


class VideoReader(EpisodeReader):
    """Decodes from the last key frame before the first frame wanted to the last one wanted."""

    def read(self, file: str, length: int, positions: list[int], wanted: list[int]) -> Rows:
        av, decoded = decoder(), 0
        waiting = list(zip(wanted, positions, strict=True))
        try:
            # Counting from the start is right for every file; jumping is, where frames are evenly spaced.
            for first in (waiting[0][0], 0):
                with _open(file) as container:
                    for number, frame in _from(container, first):
                        decoded = max(decoded, number + 1)
                        if number == waiting[0][0]:
                            picture = frame.to_ndarray(format="rgb24")
                            while waiting and waiting[0][0] == number:
                                yield waiting.pop(0)[1], picture
                        if not waiting:
                            return
        except (av.error.FFmpegError, OSError) as error:
            raise UserError(f"{file} cannot be decoded ({error.strerror}): copy it again.") from error
        raise too_short(file, decoded, length)


def _from(container: Any, first: int) -> Iterator[tuple[int, Any]]:
    """(number, frame) from a key frame at or before frame `first` on."""
    stream = container.streams.video[0]
    rate, base, start = stream.average_rate, stream.time_base, stream.start_time or 0
    if first and rate and base:
        container.seek(start + round(first / rate / base), stream=stream, backward=True)
        for frame in container.decode(stream):
            if frame.pts is None:
                break
            yield round((frame.pts - start) * base * rate), frame
        return
    yield from enumerate(container.decode(stream))
