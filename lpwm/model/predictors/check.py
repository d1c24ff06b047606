"""What a registered predictor promises, tried on a copy with random weights when a model is built."""

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.model.predictors import steps_as_forward

TOLERANCE = 1e-3  # relative, in float32


def rolls_out_by_steps(predictor: Any, name: str, latent: int, lags: int) -> bool:
    """Whether `step` gives what windows of `forward` give, also after the window has slid; a wrong shape is refused. A
    recurrent `step` that remembers what left the window is not used: its rollouts go window by window."""
    if type(predictor).__module__.startswith("lpwm.model.predictors."):
        return steps_as_forward(predictor)
    if any(t.is_meta for t in (*predictor.parameters(), *predictor.buffers())):
        return False  # counted, not run
    return max(step_errors(predictor, name, latent, lags), default=1.0) < TOLERANCE


@torch.no_grad()
def step_errors(predictor: Any, name: str, latent: int, lags: int) -> list[float]:
    """How far `step` is from the last position of a window of `forward`, relative, position by position; [] without
    a `step` that could be used. As in a rollout, one real frame is shared by several samples, which then part."""
    probe: Any = scrambled(predictor, name)
    g, length, shape = generator("predictor", name), lags + 2, (2, 3, lags + 2, latent)
    z, e = (torch.randn(shape, generator=g) for _ in range(2))
    z[:, :, 0], e[:, :, 0] = z[:, :1, 0], e[:, :1, 0]
    windows = [
        _last(probe, name, *(x[:, :, max(0, t + 1 - lags) : t + 1].flatten(0, 1) for x in (z, e))).view(2, 3, latent)
        for t in range(length)
    ]
    if not steps_as_forward(probe) or "keep" not in inspect.signature(probe.step).parameters:
        return []
    errors, cache = [], probe.start()
    for t, want in enumerate(windows):
        some = slice(0, 1) if t == 0 else slice(None)
        try:
            u, cache = probe.step(cache, z[:, some, t], e[:, some, t], keep=length - 1 - t)
            errors.append(float((u - want).abs().max() / (1 + want.abs().max())))
        except (RuntimeError, ValueError):  # it cannot broadcast what samples share
            errors.append(float("inf"))
            break
    return errors


def scrambled(predictor: nn.Module, name: str) -> nn.Module:
    """A copy on the CPU with random weights, so that no deliberate zero hides a mistake."""
    probe = copy.deepcopy(predictor).cpu().float().eval()
    g = generator("weights", name)
    with torch.no_grad():
        for p in probe.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=g))
    return probe


def _last(predictor: Any, name: str, z_BKD: Tensor, e_BKD: Tensor) -> Tensor:
    u = predictor(z_BKD, e_BKD)
    if not isinstance(u, Tensor) or u.shape != z_BKD.shape:
        shape = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
        raise UserError(
            f"predictor {name!r} returned {shape} for codes and actions of shape {tuple(z_BKD.shape)} (batch, "
            "positions, width): it must return one prediction per position, of the same shape."
        )
    return u[:, -1]
