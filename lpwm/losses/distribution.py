"""The target of RDMReg: the rectified generalized Gaussian.

    x = μ + s·V,  density of V ∝ exp(−|V|^p),  s = √(Γ(1/p)/Γ(3/p)), so that Var x = 1
    y = max(x, 0) when rectified (links relu and reprelu), else x;  divided by √E[y²] when `rms_norm`

The paper writes the density as exp(−|x−μ|^p/(pσ^p)); s = σ·p^{1/p}. p = 1 is Laplace, p = 2 Gaussian.
|V|^p is Gamma(1/p), which gives every closed form below through the incomplete gamma function.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from lpwm.core.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# scipy and torch are imported where they are used: a config checks its target without them.


@dataclass(frozen=True)
class RectifiedGeneralizedGaussian:
    p: float = 1.0
    mu: float = 0.0
    rectify: bool = True
    rms_norm: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.p < math.inf:
            raise UserError(f"the target's shape p must be above 0, not {self.p}: 1 is Laplace, 2 Gaussian.")
        if not math.isfinite(self.mu):
            raise UserError(f"the target's location mu must be finite, not {self.mu}: the paper uses 0, -1, -2.")
        if self.rms_norm and self._raw_moments[2] < 1e-12:
            raise UserError(f"rms_norm cannot divide by a target that is almost never above 0: raise mu={self.mu}.")

    @cached_property
    def log_s(self) -> float:
        from scipy.special import gammaln

        return 0.5 * float(gammaln(1 / self.p) - gammaln(3 / self.p))

    @cached_property
    def _raw_moments(self) -> tuple[float, float, float]:
        """P(x>0), E[y], E[y²] before `rms_norm`."""
        from scipy.special import gammaincc, gammaln

        a, s, mu = 1 / self.p, math.exp(self.log_s), self.mu
        u = abs(mu) / s  # y > 0 where V > −μ/s

        def above(k: int) -> float:
            """E[V^k; V > u] = Γ((k+1)/p, u^p) / 2Γ(1/p)."""
            b = (k + 1) * a
            return 0.5 * math.exp(float(gammaln(b) - gammaln(a))) * float(gammaincc(b, u**self.p))

        m_0, m_1, m_2 = above(0), above(1), above(2)
        if mu > 0:  # E[V^k; V > −u] by symmetry; the first moment is the same on both sides
            m_0, m_2 = 1 - m_0, math.exp(-2 * self.log_s) - m_2
        if not self.rectify:
            return m_0, mu, 1 + mu**2
        return m_0, mu * m_0 + s * m_1, mu**2 * m_0 + 2 * mu * s * m_1 + s**2 * m_2

    @cached_property
    def divisor(self) -> float:
        """√E[y²] of the target before normalization, or 1."""
        return math.sqrt(self._raw_moments[2]) if self.rms_norm else 1.0

    @property
    def activity(self) -> float:
        """P(y > 0)."""
        return self._raw_moments[0]

    @property
    def mean(self) -> float:
        return self._raw_moments[1] / self.divisor

    @property
    def second_moment(self) -> float:
        """E[y²]: also what RDMReg charges for a dead code."""
        return self._raw_moments[2] / self.divisor**2

    def sample(self, shape: tuple[int, ...], generator: "torch.Generator") -> "Tensor":
        """Independent float32 samples on the generator's device."""
        import torch

        device = generator.device
        if self.p == 2:
            x = torch.randn(shape, generator=generator, device=device)
        else:
            # |V| = U·G^{1/p} with U uniform and G ~ Gamma(1 + 1/p): the same law as Gamma(1/p)^{1/p}, but it
            # does not underflow at large p. Drawing U on (−1, 1) gives the sign too.
            x = torch.rand(shape, generator=generator, device=device).mul_(2).sub_(1)
            if self.p == 1:  # the inverse cdf, because gamma variates are slow; clamped where U rounds to ±1
                x = torch.sign(x) * x.abs_().neg_().log1p_().clamp_(min=-17.0).mul_(-math.exp(self.log_s))
            else:
                gamma = torch._standard_gamma(x.new_full(shape, 1 + 1 / self.p), generator=generator)
                x = x * torch.exp(gamma.log_() / self.p + self.log_s)
        x = x.add_(self.mu)
        if self.rectify:
            x = x.clamp_(min=0)
        return x.div_(self.divisor) if self.rms_norm else x
