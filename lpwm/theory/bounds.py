"""How far the linear codes are from the truth, and how far the proposition lets them be.

    one step    ‖D(P(a) E(x)) − f(x, a)‖ ≤ (L + 1) ε
    H steps     ‖D(P(a_H) … P(a_1) E(x)) − f(… f(x, a_1) …, a_H)‖ ≤ ε Σ_{k=0}^{H} L^k

since the error e_t obeys e_0 ≤ ε and e_{t+1} ≤ L e_t + ε: the map stretches what was wrong, the new cell adds ε.
L is the Lipschitz constant of f(·, a), the same for all actions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lpwm.core.errors import UserError
from lpwm.theory.one_hot import Map, OneHot
from lpwm.theory.quantize import Floats

ROUNDING = 1e-9  # relative: what double precision may add to an error


def step_bound(epsilon: float, lipschitz: ArrayLike) -> Floats:
    """(L + 1) ε."""
    return (np.asarray(lipschitz, dtype=np.float64) + 1) * epsilon


def rollout_bound(epsilon: float, lipschitz: float, horizon: int) -> Floats:
    """ε Σ_{k=0}^{h} L^k for h = 0 … H: (H + 1,)."""
    return epsilon * np.cumsum(np.power(float(lipschitz), np.arange(horizon + 1)))


@dataclass(frozen=True, eq=False)
class Errors:
    """Errors of M states after h = 0 … H steps, and the bound on each."""

    error_HM: Floats
    bound_H: Floats

    @property
    def worst_H(self) -> Floats:
        return self.error_HM.max(1)

    @property
    def mean_H(self) -> Floats:
        return self.error_HM.mean(1)

    @property
    def beyond_H(self) -> Floats:
        """The share of states whose error is above the bound: 0 wherever the assumptions hold."""
        return (self.error_HM > self.bound_H[:, None] * (1 + ROUNDING)).mean(1)

    @property
    def holds(self) -> bool:
        return not self.beyond_H.any()


def measure(model: OneHot, f: Map, x_Md: ArrayLike, actions_H: ArrayLike, lipschitz: float) -> Errors:
    """Follow the true map and its linearization side by side from the states x under one action sequence."""
    x, sequence = np.asarray(x_Md, dtype=np.float64), np.asarray(actions_H, dtype=np.int64)
    if not lipschitz >= 0:
        raise UserError(f"a Lipschitz constant is not negative, and {lipschitz} is none.")
    if len(sequence) and not 0 <= sequence.min() <= sequence.max() < len(model.actions_AK):
        raise UserError(f"actions are numbered from 0 to {len(model.actions_AK) - 1} here.")
    cells = model.rollout(model.encode(x), sequence)
    error = [np.linalg.norm(model.decode(cells[0]) - x, axis=1)]
    for h, action in enumerate(sequence, start=1):
        x = f(x, model.actions_AK[action])
        error.append(np.linalg.norm(model.decode(cells[h]) - x, axis=1))
    return Errors(np.stack(error), rollout_bound(model.quantizer.epsilon, lipschitz, len(sequence)))


def slope(cells: ArrayLike, error: ArrayLike) -> float:
    """Of log error against log N, least squares: −1/d where the proposition applies."""
    x, y = np.log(np.asarray(cells, dtype=np.float64)), np.log(np.asarray(error, dtype=np.float64))
    if len(x) < 2 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise UserError("a slope needs at least two sizes and errors above 0.")
    return float(np.polyfit(x, y, 1)[0])
