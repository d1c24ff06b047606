"""What a registered predictor promises, tried on a copy with random weights when a model is built."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.model.predictors import steps_as_forward


def rolls_out_by_steps(predictor: Any, name: str, latent: int, lags: int) -> bool:
    """Whether `step` gives what windows of `forward` give, also after the window has slid; a wrong shape is refused.

    A recurrent `step` that remembers what left the window is not used: its rollouts go window by window.
    """
    if not isinstance(predictor, nn.Module):
        raise UserError(f"predictor {name!r} built {predictor!r}: it must build a torch.nn.Module.")
    if type(predictor).__module__.startswith("lpwm.model.predictors."):
        return steps_as_forward(predictor)
    if any(t.is_meta for t in (*predictor.parameters(), *predictor.buffers())):
        return False  # counted, not run
    probe: Any = copy.deepcopy(predictor).cpu().float().eval()
    g, length = generator("predictor", name), lags + 2
    with torch.no_grad():
        for p in probe.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=g))
        z, e = (torch.randn(2, length, latent, generator=g) for _ in range(2))
        windows = [_last(probe, name, z[:, : t + 1][:, -lags:], e[:, : t + 1][:, -lags:]) for t in range(length)]
        if not steps_as_forward(probe):
            return False
        cache, apart = probe.start(), 0.0
        for t, want in enumerate(windows):
            u, cache = probe.step(cache, z[:, t : t + 1], e[:, t : t + 1])
            apart = max(apart, float((u - want).abs().max() / (1 + want.abs().max())))
    return apart < 1e-3


def _last(predictor: Any, name: str, z_BKD: Tensor, e_BKD: Tensor) -> Tensor:
    u = predictor(z_BKD, e_BKD)
    if not isinstance(u, Tensor) or u.shape != z_BKD.shape:
        shape = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
        raise UserError(
            f"predictor {name!r} returned {shape} for codes and actions of shape {tuple(z_BKD.shape)} (batch, "
            "positions, width): it must return one prediction per position, of the same shape."
        )
    return u[:, -1:]
