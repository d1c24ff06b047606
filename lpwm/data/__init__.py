"""From a simulator, or your own recordings, to training batches."""

from __future__ import annotations

from lpwm.data.clips import Clip, ClipSource, ResidentClips, split_episodes
from lpwm.data.collect import collect
from lpwm.data.convert import convert, world_of
from lpwm.data.episodes import EpisodeData, from_arrays
from lpwm.data.info import describe
from lpwm.data.normalise import ActionStats
from lpwm.data.reader import read
from lpwm.data.store import write

__all__ = [
    "ActionStats",
    "Clip",
    "ClipSource",
    "EpisodeData",
    "ResidentClips",
    "collect",
    "convert",
    "describe",
    "from_arrays",
    "read",
    "split_episodes",
    "world_of",
    "write",
]
