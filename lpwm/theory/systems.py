"""Smooth maps of [0, 1]^d into itself with known Lipschitz constants, to try the proposition on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lpwm.core import rng
from lpwm.theory.one_hot import Map
from lpwm.theory.quantize import Floats


@dataclass(frozen=True, eq=False)
class System:
    name: str
    d: int
    f: Map
    actions_AK: Floats
    lipschitz: float


def sine_step(x_Md: Floats, action_K: Floats) -> Floats:
    """x'_j = ½ + α_j sin(Σ_i W_ji x_i + φ_j), with (W, α, φ) all in the action: d² + 2d numbers.

    With |α_j| ≤ ½ the box maps into itself. The Jacobian is diag(cos)·diag(α)·W, so L ≤ ‖diag(α) W‖₂.
    """
    d = x_Md.shape[1]
    W, alpha, phase = action_K[: d * d].reshape(d, d), action_K[d * d : d * d + d], action_K[d * d + d :]
    return 0.5 + alpha * np.sin(x_Md @ W.T + phase)


def sine_family(d: int, count: int, *key: int | str, gain: float = 2.0) -> tuple[Floats, Floats]:
    """`count` random maps as actions of `sine_step` (count, d² + 2d), and a Lipschitz constant of each (count,).

    The constants are uniform on [0, gain].
    """
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
