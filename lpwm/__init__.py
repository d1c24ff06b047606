"""LpWM: train, plan with and interpret sparse world models.

The names below are public; the rest may change between versions. Each is imported on first use, torch with it.
`train`, `evaluate`, `interpret`, `report` and `recipes` are rooms of the package and functions at once:
`lpwm.train("tiny/lpwm")` calls `lpwm.api.train`, and `lpwm.train.Run` is a class in the room.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lpwm.core.lazy import lazy
from lpwm.core.version import __version__

if TYPE_CHECKING:
    from lpwm.agent import Agent, load
    from lpwm.api import collect, evaluate, interpret, recipes, report, train
    from lpwm.data import read as read_data
    from lpwm.data import write as write_data
    from lpwm.model import ModelConfig, WorldModel
    from lpwm.model.predictors import register_predictor
    from lpwm.plan import CEM, ICEM, LQR, MPPI, CEMConfig, Gradient, GradientConfig, ICEMConfig, LQRConfig, MPPIConfig
    from lpwm.recipes import recipe
    from lpwm.train.run import Run
    from lpwm.train.run_config import RunConfig
    from lpwm.worlds import make_world, register_world

_CALLABLE = ("evaluate", "interpret", "recipes", "report", "train")


class _Room(ModuleType):  # called as the function of its name in `lpwm.api`, with its help and its signature
    __doc__ = property(lambda self: self._function().__doc__)
    __signature__ = property(lambda self: import_module("inspect").signature(self._function()))

    def _function(self) -> Any:
        return getattr(import_module("lpwm.api"), self.__name__.removeprefix("lpwm."))

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._function()(*args, **options)


class _House(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CALLABLE and isinstance(value, ModuleType):  # as the import system leaves a room here
            value.__class__ = _Room
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _House
__getattr__, __dir__, _ = lazy(__name__, _CALLABLE)
__all__ = ["CEM", "ICEM", "LQR", "MPPI", "Agent", "CEMConfig", "Gradient", "GradientConfig", "ICEMConfig", "LQRConfig"]
__all__ += ["MPPIConfig", "ModelConfig", "Run", "RunConfig", "WorldModel", "__version__", "collect", "evaluate"]
__all__ += ["interpret", "load", "make_world", "read_data", "recipe", "recipes", "register_predictor", "register_world"]
__all__ += ["report", "train", "write_data"]

if "gymnasium" in sys.modules:  # so that gymnasium.make("lpwm/PushT-v0") needs no further import
    from lpwm.worlds import gym_ids

    gym_ids.register_worlds()
