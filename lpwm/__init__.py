"""LpWM: train, plan with and read sparse world models."""

from lpwm.core.version import __version__

__all__ = ["__version__"]
