"""The predictors, by name; the paper's ladder has six rungs, from a six-block transformer to one linear map.

A predictor is a module (z_BKD, e_BKD) -> u_BKD, causal, before the link; e is the action embedding. `lags` says how
many past codes it reads (the config's `history` if it does not say). `start()` and `step(cache, z, e, keep)`, which
gives (u, cache), do the same one position at a time; a predictor without them, whose `forward` was redefined below
them, or whose `step` remembers what left the window is rolled out window by window. Nothing here imports torch.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from lpwm.core.errors import UserError
from lpwm.core.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from lpwm.model.config import PredictorConfig

Build = Callable[["PredictorConfig", int], "nn.Module"]  # (config, latent width)

# From the most to the least expressive.
TITLES = {
    "deep-adaln": "Deep-AdaLN(k)",
    "shallow-adaln": "Shallow-AdaLN(k)",
    "mlp-ltv": "MLP∘LTV(k)",
    "mlp-lti": "MLP∘LTI(k)",
    "lti": "LTI(k)",
    "lti1": "LTI(1)",
}
PAPER_RUNGS = tuple(TITLES)
PREDICTORS: Registry[Build] = Registry(
    "predictor",
    {
        "deep-adaln": "lpwm.model.predictors.adaln:deep",
        "shallow-adaln": "lpwm.model.predictors.adaln:shallow",
        "mlp-ltv": "lpwm.model.predictors.linear:mlp_ltv",
        "mlp-lti": "lpwm.model.predictors.linear:mlp_lti",
        "lti": "lpwm.model.predictors.linear:lti",
        "lti1": "lpwm.model.predictors.linear:lti1",
    },
)


def register_predictor(name: str, build: Build, title: str = "") -> None:
    """Make `build(config, latent)`, a function or a class, available as `predictor.rung = name`."""
    if not callable(build):
        raise UserError(f"predictor {name!r}: give a class or a function (config, latent) -> module, not {build!r}.")
    PREDICTORS.register(name, build)
    if title:
        TITLES[name] = title


def title_of(name: str) -> str:
    return TITLES.get(name, name)


def in_order(names: Iterable[str]) -> list[str]:
    """Distinct names as tables show them: the paper's ladder from the most expressive, then the others."""
    seen = set(names)
    return [r for r in PAPER_RUNGS if r in seen] + sorted(seen.difference(PAPER_RUNGS))


def steps_as_forward(predictor: Any) -> bool:
    """Whether `start` and `step` speak for `forward`: no class below the one that defines them redefines `forward`."""
    order = type(predictor).__mro__

    def depth(name: str) -> int:
        return next((i for i, cls in enumerate(order) if name in cls.__dict__), len(order))

    return max(depth("start"), depth("step")) < len(order) and depth("step") <= depth("forward")
