"""The data set of a run: the given file, or one that is collected once and found again."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lpwm.core.config import digest, to_dict
from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, write_whole
from lpwm.core.json import Reader, dump_json, read_json
from lpwm.core.lock import Busy
from lpwm.core.version import DATA_VERSION
from lpwm.data import EpisodeData, collect, read, with_cache
from lpwm.train.run_config import DataConfig


def prepare_data(
    config: DataConfig, folder: Path, progress: Callable[[int], None] | None = None, image_size: int | None = None
) -> EpisodeData:
    """The given file, or one collected into `folder` under the hash of its description. image_size: the side of the
    frames that data.cache keeps."""
    if config.file:
        data = read(_located(config.file, folder), camera=config.camera or None)
        stored = config.pixels == "stored" or (config.pixels == "auto" and data.spec is None)
        return with_cache(data, config.cache, image_size) if config.cache and stored else data
    world = config.build_world()
    recorded: dict[str, Any] = {"steps": config.steps or None, "policy": config.policy or None, "seed": config.seed}
    described = {"spec": to_dict(world.spec), "n": config.episodes, **recorded, "version": DATA_VERSION}
    name = digest(described | ({"frames": config.frames} if config.frames else {}))
    path = folder / f"{config.world.replace('/', '-')}-{name}.h5"
    wanted: dict[str, Any] = {"episodes": config.episodes, "pixels": config.frames > 0, "size": config.frames or None}
    if path.exists() and path.with_name(path.name + ".partial").exists():
        with suppress(UserError):
            collect(world, path, **recorded, **wanted)  # killed after its last act: only its shards are removed
    while not path.exists():
        make_folder(folder)
        try:
            collect(world, path, workers=None, progress=progress, **recorded, **wanted)
        except UserError as error:
            if not isinstance(error, Busy) and not path.exists():
                raise
            time.sleep(0.5)  # another run wants the same data and was here first
    return read(path)


def _located(file: str, folder: Path) -> Path:
    """The given file; a relative one that is not here is where it was when a run of this folder first read it. That
    place is noted in `folder`, both as it is and relative to the folder, which may have moved with the file."""
    path, note = Path(file), folder / "files.json"
    try:
        known = Reader(read_json(note), str(note))
    except UserError:  # none yet, or damaged: it is made anew
        known = Reader({}, str(note))
    if path.is_absolute() or not os.path.exists(path):
        places = [folder / place for place in known.get(file, tuple[str, ...], ())]
        return next((place for place in (path, *places) if os.path.exists(place)), path)
    make_folder(folder)
    places = [str(path.absolute()), os.path.relpath(path.absolute(), folder.absolute())]
    if known.get(file, tuple[str, ...], ()) != tuple(places):
        write_whole(note, dump_json(known.record | {file: places}, indent=1))
    return path
