"""A folder of videos with tables: NAME.mp4 with NAME.csv or NAME.parquet, one pair per episode, in the order of names.

Row t of a table belongs to frame t. Columns that begin with `action` (`action_x`, `action.1`, or one of lists) are the
action that leaves the frame, whose last row may be empty; those that begin with `state` or `observation.state` are the
state; all other columns of numbers are kept.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.data.episodes import EpisodeData, assemble
from lpwm.data.formats.swm import check_columns
from lpwm.data.formats.tables import read_table
from lpwm.data.frames.video import VideoFrames

_TABLES = (".csv", ".parquet")


def _films(folder: Path) -> list[Path]:
    """Sorted as people count: 2 before 10."""
    films = [p for p in folder.iterdir() if p.suffix.lower() == ".mp4"] if folder.is_dir() else []
    return sorted(films, key=lambda p: [int(s) if s.isdigit() else s for s in re.split(r"(\d+)", p.name)])


def is_videos(folder: Path) -> bool:
    return bool(_films(folder))


def read_videos(folder: Path, pixels: bool | None = None) -> EpisodeData:
    films = _films(folder)
    tables = []
    for film in films:
        file = next((t for t in map(film.with_suffix, _TABLES) if t.exists()), None)
        if file is None:
            raise UserError(f"{film} has no table: put {film.stem}.csv or {film.stem}.parquet next to it.")
        tables.append((file, read_table(file)))
    first = tables[0][1]
    for path, table in tables:
        if {n: v.shape[1:] for n, v in table.items()} != {n: v.shape[1:] for n, v in first.items()}:
            raise UserError(f"{path} has other columns than {tables[0][0].name}: all tables must be alike.")
        if not len(next(iter(table.values()), ())):
            raise UserError(f"{path} holds no row of numbers: give a row per frame.")
    lengths = np.array([len(next(iter(table.values()))) for _, table in tables], np.int64)
    columns = {name: np.concatenate([table[name] for _, table in tables]) for name in first}
    actions, states = _group(columns, r"action"), _group(columns, r"(observation\.)?state")
    if not actions.shape[1]:
        raise UserError(f"{tables[0][0]} has no column that begins with 'action' (found {', '.join(first)[:200]}).")
    check_columns(folder, None, states, actions, lengths)
    actions[np.cumsum(lengths) - 1] = np.nan  # the last one leads nowhere
    numbers: dict[str, Any] = {"state": states, "action": actions}
    frames = None if pixels is False else VideoFrames(films, lengths)
    return assemble(numbers, lengths, pixels=frames, attributes={"made_by": "videos with tables"}, extra=columns)


def _group(columns: dict[str, NDArray], prefix: str) -> NDArray[np.float32]:
    """Takes the columns of one quantity out of `columns`: (rows, entries) in the order of the table."""
    names = [name for name in columns if re.match(prefix + r"($|[\W_\d])", name)]
    rows = len(next(iter(columns.values())))
    parts = [np.asarray(columns.pop(name), np.float32).reshape(rows, -1) for name in names]
    return np.concatenate([np.zeros((rows, 0), np.float32), *parts], axis=1)
