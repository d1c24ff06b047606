"""The training loop.

    for step in start … steps:
        clip ← source(step);  draw ← randomness(seed, step)
        θ ← θ − η_step · ∇ loss(θ; clip, draw)
        sometimes: log and look for signs of death · evaluate on held-out clips · checkpoint

Everything random is a function of (seed, step), so a run that stops anywhere continues as if it had not.
"""

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.data import ClipSource
from lpwm.data.clips import Clip
from lpwm.losses import Objective
from lpwm.losses.base import Draw
from lpwm.model import WorldModel
from lpwm.optim import OptimConfig, factor
from lpwm.train.health import Health
from lpwm.train.log import Logger, to_host
from lpwm.train.run_config import TrainConfig
from lpwm.train.step import Stepper


class Frames(ClipSource, Protocol):
    clip_length: int  # T


class DeadRun(UserError):
    """The run cannot become a world model; the sentence names the evidence."""


class Interrupted(KeyboardInterrupt):
    """Stopped from outside: the step in flight was finished and a checkpoint written."""


@dataclass
class Callbacks:
    """What the loop calls and does not know: evaluation on held-out clips, and saving."""

    evaluate: Callable[[int], dict[str, Any]] | None = None  # step -> scalars and lists for the log
    save: Callable[[int, float | None], None] | None = None  # (step, metric), the best has the least


def train(
    model: WorldModel,
    source: Frames,
    objective: Objective,
    stepper: Stepper,
    config: TrainConfig,
    optim: OptimConfig,
    logger: Logger | None = None,
    callbacks: Callbacks | None = None,
    start: int = 0,
    floor: float = 0.0,
    health: Health | None = None,
    metric: float | None = None,
) -> None:
    """Train in place from `start` to `config.steps`. Raises DeadRun or Interrupted after saving what there is. `floor`
    is what the regularizer costs at a perfect match; what it costs beyond that is logged. `metric`: of the evaluation
    before `start`."""
    ranks, device = stepper.ranks, stepper.device
    callbacks, health = callbacks or Callbacks(), health or Health(config.health)
    shape, group = (config.batch, source.clip_length, model.config.latent), ranks.group(config.batch)

    def make(step: int) -> tuple[Clip, Draw]:
        return source.batch(step), objective.draw((config.seed, step), shape, device, group)

    ahead = Ahead(make, device, config.steps)
    model.train()
    with Interrupts() as interrupts:
        for step in range(start, config.steps):
            clip, draw = ahead(step)
            rate = factor(optim.schedule, optim.warmup, step, config.steps)
            out = stepper(clip.pixels, clip.actions, draw, rate, step)
            ahead.begin(step + 1)
            done = step + 1
            last, log_due = done == config.steps, done % config.log_every == 0 or done == config.steps
            verdict = None
            if log_due:
                record = measure_step(clip.actions, out, stepper)
                verdict = health.check(done, config.steps, record)
                record |= {"learning_rate": rate * optim.lr, "regularizer_excess": record["regularizer"] - floor}
                if logger is not None:
                    logger.log(done, record)
                    if verdict is not None:
                        logger.event(done, verdict.sentence)
            if callbacks.evaluate and (last or (config.eval_every and done % config.eval_every == 0)):
                errors = callbacks.evaluate(done)
                metric = errors["error_depth"][0]
                if logger is not None:
                    logger.log(done, errors, "val")
            # Ranks must stop at the same step, so they agree where they log anyway.
            stop = interrupts.requested if ranks.alone else log_due and ranks.agree(interrupts.requested, device)
            dead = verdict is not None and verdict.dead and config.stop_dead
            if callbacks.save and (last or stop or dead or done % config.checkpoint_every == 0):
                callbacks.save(done, metric)
            if verdict is not None and dead:
                raise DeadRun(verdict.sentence)
            if stop and not last:
                raise Interrupted


def measure_step(actions: Tensor, out: dict[str, Tensor], stepper: Stepper) -> dict[str, float]:
    """The terms and monitors of this step as numbers: the one moment at which the host waits for the device."""
    terms = {name: term for name, term in out.items() if name not in ("z", "zhat")}
    values = stepper.monitors(actions, out) | stepper.ranks.mean(terms)
    values["dead_units"] = stepper.activity.read_and_reset(stepper.ranks.reduce)
    return to_host(values)


class Interrupts:
    """Ctrl-C and SIGTERM: the loop finishes its step, saves and leaves; at the second it leaves at once."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


Inputs = tuple[Clip, Draw]


class Ahead:
    """`ahead(step)` is `make(step)`, a pure function of the step. On CUDA it is made on a stream of its own, one step
    early, if `begin` says so: gathering, rendering and drawing are many small kernels that fit next to the large ones
    of the step before. `stop` is the step that is not made."""

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
