"""What a world model is made of. Nothing here imports torch."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lpwm.core.errors import UserError, at_least
from lpwm.core.registry import Registry
from lpwm.model.predictors import PREDICTORS

if TYPE_CHECKING:
    from torch import nn

LINKS: Registry[Any] = Registry("link", {name: f"lpwm.model.link:{name}" for name in ("identity", "relu", "reprelu")})
NONNEGATIVE = frozenset({"relu", "reprelu"})


@dataclass(frozen=True)
class EncoderConfig:
    """The ViT. The defaults are the ladder pipeline's; `VIT_TINY` is the support pipeline's."""

    image_size: int = 224  # pixels a side
    patch: int = 14  # pixels a side of a token
    width: int = 384  # of a token
    depth: int = 12  # layers
    heads: int = 3  # of attention
    head_dim: int = 64  # width of a head
    mlp: int = 768  # hidden units
    pixels: Literal["half", "imagenet", "white", "data"] = "half"  # their zero: gray, white, or a mean

    def __post_init__(self) -> None:
        at_least(1, self, "encoder", "image_size", "patch", "width", "depth", "heads", "head_dim", "mlp")
        if self.depth > 1000:  # a layer each is built
            raise UserError(f"encoder.depth = {self.depth} is more than 1000 layers: use fewer.")
        if self.image_size % self.patch:
            below = max(self.image_size // self.patch, 1) * self.patch
            raise UserError(f"{self.image_size} pixels are not divisible by patches of {self.patch}: use {below}.")


VIT_TINY = EncoderConfig(width=192, pixels="imagenet")


@dataclass(frozen=True)
class ProjectorConfig:
    hidden: int = 2048  # units
    norm: Literal["layer", "batch"] = "layer"  # after the hidden layer

    def __post_init__(self) -> None:
        at_least(1, self, "projector", "hidden")


@dataclass(frozen=True)
class PredictorConfig:
    """A predictor by name. The fields after `history` concern those that have such a part."""

    rung: str = "deep-adaln"  # a name in PREDICTORS
    history: int = 3  # frames that the predictor sees, k
    heads: int = 16  # of attention (AdaLN)
    head_dim: int = 64  # width of a head (AdaLN)
    mlp: int = 2048  # hidden units of a block (AdaLN)
    dropout: float = 0.1  # share of activations (AdaLN)
    head_hidden: int = 2048  # hidden units of the output layer (AdaLN)
    head_norm: Literal["layer", "batch"] = "layer"  # in the output layer (AdaLN)
    position_std: float = 0.02  # of temporal positions at the start (AdaLN); 1.0 in the support pipeline
    rank: int = 16  # of the state-dependent part (MLP∘LTV)

    def __post_init__(self) -> None:
        PREDICTORS.check(self.rung)
        at_least(1, self, "predictor", "history", "heads", "head_dim", "mlp", "head_hidden", "rank")
        if self.history > 1000:  # LTI builds a matrix each
            raise UserError(f"predictor.history = {self.history} is more than 1000 codes: use fewer.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"predictor.dropout = {self.dropout} must be in [0, 1).")

    def build(self, latent: int) -> "nn.Module":
        made = PREDICTORS.get(self.rung)(self, latent)
        if not hasattr(made, "parameters"):
            raise UserError(f"predictor {self.rung!r} built {made!r}: it must build a torch.nn.Module.")
        return made


@dataclass(frozen=True)
class ModelConfig:
    """Everything about the networks. Sizes that come from the world (A, proprioception) come at construction."""

    latent: int = 384  # units of a code, D
    link: str = "reprelu"  # a name in LINKS
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    predictor: PredictorConfig = field(default_factory=PredictorConfig)
    action_encoder: Literal["mlp", "linear"] = "mlp"  # of a block of actions
    action_smooth: int = 0  # outputs of the 1×1 convolution before the MLP; 0 = A (ladder), 10 in the support pipeline

    def __post_init__(self) -> None:
        LINKS.check(self.link)
        at_least(1, self, "model", "latent")
        at_least(0, self, "model", "action_smooth")
        if self.action_encoder not in ("mlp", "linear"):
            raise UserError(f"unknown action encoder {self.action_encoder!r}: valid names: linear, mlp.")

    @property
    def sparse(self) -> bool:
        """Whether codes are non-negative with exact zeros."""
        return self.link in NONNEGATIVE
