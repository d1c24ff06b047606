"""How far the linear codes are from the truth, and how far the proposition lets them be.

    one step    ‖D(P(a) E(x)) − f(x, a)‖ ≤ (L + 1) ε
    H steps     ‖D(P(a_H) … P(a_1) E(x)) − f(… f(x, a_1) …, a_H)‖ ≤ ε Σ_{k=0}^{H} L^k

since the error e_t obeys e_0 ≤ ε and e_{t+1} ≤ L e_t + ε: the map stretches what was wrong, the new cell adds ε.
L is the Lipschitz constant of f(·, a), the same for all actions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.theory.one_hot import Floats, Map, OneHot

ROUNDING = 1e-9  # relative: what double precision may add to an error


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


@dataclass(frozen=True, eq=False)
class System:
    name: str
    d: int
    f: Map
    actions_AK: Floats
    lipschitz: float


def sine_step(x_Md: Floats, action_K: Floats) -> Floats:
    """x'_j = ½ + α_j sin(Σ_i W_ji x_i + φ_j), with (W, α, φ) all in the action: d² + 2d numbers. With |α_j| ≤ ½ the box
    maps into itself. The Jacobian is diag(cos)·diag(α)·W, so L ≤ ‖diag(α) W‖₂."""
    d = x_Md.shape[1]
    W, alpha, phase = action_K[: d * d].reshape(d, d), action_K[d * d : d * d + d], action_K[d * d + d :]
    return 0.5 + alpha * np.sin(x_Md @ W.T + phase)


def sine_family(d: int, count: int, *key: int | str, gain: float = 2.0) -> tuple[Floats, Floats]:
    """`count` random maps as actions of `sine_step` (count, d² + 2d), and a Lipschitz constant of each (count,). The
    constants are uniform on [0, gain]."""
    draw = np.random.default_rng(rng.seed_of("sine family", d, *key))
    alpha = draw.uniform(0.1, 0.5, (count, d))
    W: NDArray[np.float64] = draw.normal(size=(count, d, d))
    norm = np.linalg.norm(alpha[:, :, None] * W, ord=2, axis=(1, 2))
    L = draw.uniform(0, gain, count)
    W *= (L / norm)[:, None, None]
    phase = draw.uniform(0, 2 * np.pi, (count, d))
    return np.concatenate((W.reshape(count, -1), alpha, phase), axis=1), L


def sine_system(d: int) -> System:
    """Four maps of the family that share W and α (L = 1.5, so that errors grow) and differ in their phase."""
    actions, L = sine_family(d, 4, "system")
    actions[:, : d * d + d] = actions[0, : d * d + d]
    actions[:, : d * d] *= 1.5 / L[0]
    return System(f"sine {d}-D", d, sine_step, actions, 1.5)


def spiral() -> System:
    """Turns about the middle of the square and shrinks by 0.7: linear, L = 0.7 exactly. Actions are angles."""

    def f(x_Md: Floats, angle: Floats) -> Floats:
        c, s = np.cos(angle[0]), np.sin(angle[0])
        return 0.5 + 0.7 * (x_Md - 0.5) @ np.array([[c, s], [-s, c]])

    return System("spiral 2-D", 2, f, np.linspace(0.2, 2.6, 4)[:, None], 0.7)


SMOOTH: dict[str, System] = {s.name: s for s in (sine_system(1), sine_system(2), spiral(), sine_system(3))}
