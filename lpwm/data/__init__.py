"""From a simulator, or your own recordings, to training batches. Names are imported on first use, so that the processes
that read frames (`lpwm.data.frames`) never import torch."""

from typing import TYPE_CHECKING

from lpwm.core.lazy import lazy

if TYPE_CHECKING:
    from lpwm.data.clips import Clip, ClipSource, ResidentClips
    from lpwm.data.collecting import collect
    from lpwm.data.converting import convert, world_of
    from lpwm.data.episodes import EpisodeData, from_arrays
    from lpwm.data.formats import read
    from lpwm.data.info import describe
    from lpwm.data.normalize import ActionStats
    from lpwm.data.order import split_episodes, splits
    from lpwm.data.store import write
    from lpwm.data.streamed import StreamedClips, open_clips, with_cache

__getattr__, __dir__, __all__ = lazy(__name__)
