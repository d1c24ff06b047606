"""The inputs of the next step, made while the device is at work on this one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lpwm.data.clips import Clip
from lpwm.losses.base import Draw

Inputs = tuple[Clip, Draw]


class Ahead:
    """`ahead(step)` is `make(step)`, a pure function of the step.

    On CUDA it is made on a stream of its own, one step early, if `begin` says so: gathering, rendering and drawing are
    many small kernels that fit next to the large ones of the step before. `stop` is the step that is not made.
    """

    def __init__(self, make: Callable[[int], Inputs], device: torch.device | str, stop: int) -> None:
        self._make, self._stop = make, stop
        self._stream = torch.cuda.Stream(device) if torch.device(device).type == "cuda" else None
        self._ready: tuple[int, Inputs, torch.cuda.Event] | None = None
        if self._stream is not None:  # what `make` reads was written on the current stream
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def __call__(self, step: int) -> Inputs:
        if self._stream is None:
            return self._make(step)
        if self._ready is None or self._ready[0] != step:
            self._ready = self._start(step)
        _, (clip, draw), made = self._ready
        main = torch.cuda.current_stream(self._stream.device)
        main.wait_event(made)
        for tensor in (clip.pixels, clip.actions, clip.states, *draw):
            tensor.record_stream(main)  # their memory is not used again before this stream is done with them
        self._ready = None
        return clip, draw

    def begin(self, step: int) -> None:
        """Called once the step before is launched: the host has many kernels to start, the device that step."""
        if self._stream is not None and step < self._stop:
            self._ready = self._start(step)

    def _start(self, step: int) -> tuple[int, Inputs, torch.cuda.Event]:
        assert self._stream is not None
        with torch.cuda.stream(self._stream):
            inputs = self._make(step)
            made = torch.cuda.Event()
            made.record()
        return step, inputs, made
