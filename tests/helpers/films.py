"""Small films for tests: written with the package that reads them."""

import numpy as np
import pytest

av = pytest.importorskip("av")  # a GPU machine may lack the decoder; CI installs it


def picture(episode, t, size=32):
    """A picture that says which it is, in blocks that survive compression."""
    frame = np.full((size, size, 3), 40, np.uint8)
    for bit in range(8):
        if t >> bit & 1:
            frame[: size // 2, bit * size // 8 : (bit + 1) * size // 8] = 215
        if episode >> bit & 1:
            frame[size // 2 :, bit * size // 8 : (bit + 1) * size // 8] = 215
    return frame


def read_back(frame):
    """(episode, t) of a picture."""
    size = len(frame)
    bits = frame[[size // 4, 3 * size // 4], :, 0].reshape(2, 8, -1).mean(-1) > 127
    t, episode = (bits * 2 ** np.arange(8)).sum(1)
    return int(episode), int(t)


def write_film(path, frames, key_every=12, rate=10, codec="libx264"):
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options={"crf": "10"})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.gop_size = "yuv420p", key_every
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
