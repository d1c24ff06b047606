"""From a simulator, or your own recordings, to training batches."""

from __future__ import annotations

from lpwm.data.clips import Clip, ClipSource, ResidentClips
from lpwm.data.collect import collect
from lpwm.data.convert import convert, world_of
from lpwm.data.episodes import EpisodeData, from_arrays
from lpwm.data.info import describe
from lpwm.data.normalize import ActionStats
from lpwm.data.order import split_episodes, splits
from lpwm.data.reader import read
from lpwm.data.store import write
from lpwm.data.streamed import StreamedClips, open_clips

__all__ = [
    "ActionStats",
    "Clip",
    "ClipSource",
    "EpisodeData",
    "ResidentClips",
    "StreamedClips",
    "collect",
    "convert",
    "describe",
    "from_arrays",
    "open_clips",
    "read",
    "split_episodes",
    "splits",
    "world_of",
    "write",
]
