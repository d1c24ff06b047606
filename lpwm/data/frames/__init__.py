"""Frames in files, read row by row, here or by worker processes ahead of their use. No torch."""

from __future__ import annotations

from lpwm.data.frames.base import Frames, StoredFrames, open_reader

__all__ = ["Frames", "StoredFrames", "open_reader"]
