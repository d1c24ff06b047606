"""Finished episodes on disk, under the name of everything they depend on."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpwm.core.config import to_dict
from lpwm.core.files import make_folder, write_whole
from lpwm.core.version import __version__
from lpwm.evaluate.episodes import Record

SCHEME = 1  # part of every key: raise it when the loop or a control changes its meaning


def read_record(path: Path) -> Record | None:
    """A stored record; None where the file is absent, damaged, or under another name than its key gives it."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return Record.of_arrays(dict(arrays)) if _name(str(arrays["key"])) == path.stem else None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:24]


class Store:
    """Records, one file each, that carry the key they belong to. Without a folder nothing is stored."""

    def __init__(self, folder: str | Path | None, fresh: bool = False) -> None:
        self.folder, self.fresh = None if folder is None else Path(folder), fresh

    @staticmethod
    def key(depends: Mapping[str, Any]) -> str:
        about = {"scheme": SCHEME, "lpwm": __version__, "torch": torch.__version__, **to_dict(dict(depends))}
        return json.dumps(about, sort_keys=True)

    @classmethod
    def name(cls, depends: Mapping[str, Any]) -> str:
        return _name(cls.key(depends))

    def _path(self, depends: Mapping[str, Any]) -> Path:
        assert self.folder is not None
        return self.folder / f"{self.name(depends)}.npz"

    def has(self, depends: Mapping[str, Any]) -> bool:
        return self.folder is not None and not self.fresh and self._path(depends).exists()

    def load(self, depends: Mapping[str, Any]) -> Record | None:
        return read_record(self._path(depends)) if self.has(depends) else None

    def record(self, depends: Mapping[str, Any], make: Callable[[], Record]) -> tuple[Record, bool]:
        """The stored record and True, or a new one (stored) and False."""
        stored = self.load(depends)
        if stored is not None:
            return stored, True
        record = make()
        if self.folder is not None:
            make_folder(self.folder)
            packed = io.BytesIO()
            np.savez_compressed(packed, key=np.array(self.key(depends)), **record.arrays())  # type: ignore[arg-type]
            write_whole(self._path(depends), packed.getvalue())
        return record, False
