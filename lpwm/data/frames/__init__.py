"""Frames in files, read row by row, here or by worker processes ahead of their use. No torch."""

from __future__ import annotations

from lpwm.data.frames.base import FileFrames, FrameReader, Frames, StoredFrames, by_episode, open_reader

__all__ = ["FileFrames", "FrameReader", "Frames", "StoredFrames", "by_episode", "open_reader"]
