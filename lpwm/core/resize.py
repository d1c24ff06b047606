"""Frames of another size, the same bits everywhere."""

import functools

import torch
from torch import Tensor


def resize(frames: Tensor, shape: tuple[int, int]) -> Tensor:
    """uint8 (n, 3, h, w) -> uint8 (n, 3, *shape): smaller by averaging areas, larger bilinearly, rounded. The weights
    are whole numbers, the sums exact, and halves are rounded up: the same bits on every device, however many frames are
    resized together."""
    height, width = frames.shape[2:]
    if (height, width) == shape:
        return frames
    (rows, above), (columns, below) = (_weights(a, b) for a, b in zip((height, width), shape, strict=True))
    whole = above * below  # what the weights of one pixel add up to
    host = frames.device.type == "cpu"  # where float32 sums whole numbers below 2^24 exactly
    first, second = (torch.float32 if host and 255 * s < 2**24 else torch.float64 for s in (above, whole))
    sums = (rows.to(frames.device, first) @ frames.to(first)).to(second) @ columns.to(frames.device, second).T
    return ((2 * sums.to(torch.int64) + whole) // (2 * whole)).to(torch.uint8)


@functools.lru_cache(maxsize=16)
def _weights(size: int, new: int) -> tuple[Tensor, int]:
    """Whole numbers (new, size) that add up to the second value in every row: what each pixel gives to each new one."""
    table = torch.zeros(new, size, dtype=torch.float64)
    if new <= size:  # pixel i covers [i·new, (i+1)·new), new pixel j covers [j·size, (j+1)·size)
        i, j = torch.arange(size), torch.arange(new)[:, None]
        overlap = torch.minimum((i + 1) * new, (j + 1) * size) - torch.maximum(i * new, j * size)
        return overlap.clamp(min=0).to(torch.float64), size
    at = ((2 * torch.arange(new) + 1) * size - new).clamp(min=0)  # the middle of a new pixel, in 1/(2·new) pixels
    low = at // (2 * new)
    part = (at - low * 2 * new).to(torch.float64)
    rows = torch.arange(new)
    table[rows, low] += 2 * new - part
    table[rows, (low + 1).clamp(max=size - 1)] += part
    return table, 2 * new
