"""Learning-rate schedules as functions of progress: the multiple of the peak rate at a step."""

from __future__ import annotations

import math
from collections.abc import Callable


def constant(progress: float) -> float:
    return 1.0


def cosine(progress: float) -> float:
    """From 1 to 0 along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))


SCHEDULES: dict[str, Callable[[float], float]] = {"constant": constant, "cosine": cosine}


def factor(schedule: str, warmup: float, step: int, steps: int) -> float:
    """The multiple of the peak rate at `step` of `steps`: a linear warm-up over a share of them, then the schedule.

    The first step is already above 0 (step 0 of a warm-up of w steps has 1/w), the last of a cosine just above 0.
    """
    rising = math.ceil(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    return SCHEDULES[schedule]((step - rising) / max(steps - rising, 1))
