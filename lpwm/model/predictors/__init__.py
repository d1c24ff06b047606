"""The predictor ladder: six rungs from a six-block transformer to one linear map.

A predictor maps (z_BKD, e_BKD) -> u_BKD, causal, before the link; `start()` and `step(cache, z, e)` do the same
one position at a time for rollouts. e is the action embedding. Parameter counts equal the paper's table.
A predictor without them, or whose `forward` was redefined below them, is rolled out window by window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from lpwm.core.errors import UserError, choose
from lpwm.model.predictors.adaln import AdaLN
from lpwm.model.predictors.linear import LTI, MLPLTI, MLPLTV


class Predictor(Protocol):
    lags: int  # how many past codes it reads

    def __call__(self, z_BKD: Tensor, e_BKD: Tensor) -> Tensor: ...

    def start(self) -> Any: ...

    def step(self, cache: Any, z: Tensor, e: Tensor, keep: int | None = None) -> tuple[Tensor, Any]: ...


def steps_as_forward(predictor: Any) -> bool:
    """Whether `start` and `step` speak for `forward`: no class below the one that defines them redefines `forward`."""
    order = type(predictor).__mro__

    def depth(name: str) -> int:
        return next((i for i, cls in enumerate(order) if name in cls.__dict__), len(order))

    return max(depth("start"), depth("step")) < len(order) and depth("step") <= depth("forward")


@dataclass(frozen=True)
class PredictorConfig:
    """One rung. The fields after `history` concern the rungs that have such a part."""

    rung: str = "deep-adaln"
    history: int = 3  # k
    heads: int = 16  # AdaLN
    head_dim: int = 64  # AdaLN
    mlp: int = 2048  # AdaLN
    dropout: float = 0.1  # AdaLN
    head_hidden: int = 2048  # AdaLN
    head_norm: Literal["layer", "batch"] = "layer"  # AdaLN
    position_std: float = 0.02  # AdaLN; 1.0 in the support pipeline
    rank: int = 16  # MLP∘LTV

    def __post_init__(self) -> None:
        choose("rung", self.rung, RUNGS)
        for name in ("history", "heads", "head_dim", "mlp", "head_hidden", "rank"):
            if getattr(self, name) < 1:
                raise UserError(f"predictor.{name} = {getattr(self, name)} must be at least 1.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"predictor.dropout = {self.dropout} must be in [0, 1).")

    def build(self, latent: int) -> nn.Module:
        return RUNGS[self.rung](self, latent)


def _adaln(depth: int) -> Callable[[PredictorConfig, int], nn.Module]:
    def build(c: PredictorConfig, latent: int) -> nn.Module:
        return AdaLN(
            latent, c.history, depth, c.heads, c.head_dim, c.mlp, c.dropout, c.head_hidden, c.head_norm, c.position_std
        )

    return build


# From the most to the least expressive.
RUNGS: dict[str, Callable[[PredictorConfig, int], nn.Module]] = {
    "deep-adaln": _adaln(6),
    "shallow-adaln": _adaln(1),
    "mlp-ltv": lambda c, latent: MLPLTV(latent, c.history, c.rank),
    "mlp-lti": lambda c, latent: MLPLTI(latent, c.history),
    "lti": lambda c, latent: LTI(latent, c.history),
    "lti1": lambda c, latent: LTI(latent, 1),
}

TITLES = {
    "deep-adaln": "Deep-AdaLN(k)",
    "shallow-adaln": "Shallow-AdaLN(k)",
    "mlp-ltv": "MLP∘LTV(k)",
    "mlp-lti": "MLP∘LTI(k)",
    "lti": "LTI(k)",
    "lti1": "LTI(1)",
}
