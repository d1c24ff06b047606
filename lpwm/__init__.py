"""LpWM: train, plan with and read sparse world models."""

from lpwm.version import __version__

__all__ = ["__version__"]
