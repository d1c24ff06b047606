"""The data set of a run: the given file, or one that is collected once and found again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lpwm.core.config import digest, to_dict
from lpwm.core.errors import UserError
from lpwm.core.files import make_folder
from lpwm.core.version import DATA_VERSION
from lpwm.data import EpisodeData, collect, read
from lpwm.data.collecting import Busy
from lpwm.train.run_config import DataConfig


def prepare_data(config: DataConfig, folder: Path, progress: Callable[[int], None] | None = None) -> EpisodeData:
    """The given file, or one collected into `folder` under the hash of its description."""
    if config.file:
        return read(config.file)
    world = config.build_world()
    recorded: dict[str, Any] = {"steps": config.steps or None, "policy": config.policy or None, "seed": config.seed}
    described = {"spec": to_dict(world.spec), "n": config.episodes, **recorded, "version": DATA_VERSION}
    name = digest(described | ({"frames": config.frames} if config.frames else {}))
    path = folder / f"{config.world}-{name}.h5"
    while not path.exists():
        make_folder(folder)
        try:
            pictures: dict[str, Any] = {"pixels": config.frames > 0, "size": config.frames or None}
            collect(world, path, episodes=config.episodes, workers=None, progress=progress, **recorded, **pictures)
        except UserError as error:
            if not isinstance(error, Busy) and not path.exists():
                raise
            time.sleep(0.5)  # another run wants the same data and was here first
    return read(path)
