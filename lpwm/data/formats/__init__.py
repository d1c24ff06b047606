"""Data sets in the formats people have: stable-worldmodel's HDF5 (also ours) and Lance tables, DINO-WM's folders."""

from __future__ import annotations

from pathlib import Path

from lpwm.core.errors import UserError
from lpwm.data.episodes import EpisodeData
from lpwm.data.formats import swm


def read(path: str | Path, *, pixels: bool | None = None, verify: bool = True) -> EpisodeData:
    """A data set, checked. Frames stay in the file until they are used.

    pixels: None takes them if they are there, True demands them, False ignores them.
    verify: compare the columns read (not the frames, see `verify_frames`) with their stored digests.
    """
    path = _inside(Path(path))
    if path.suffix.lower() == ".lance":
        from lpwm.data.formats.lance import read_lance

        data = read_lance(path, pixels is not False)
    elif path.is_dir():
        from lpwm.data.formats.dino_wm import read_dino

        data = read_dino(path, pixels)
    else:
        data = swm.read_hdf5(path, pixels is not False, verify)
    if pixels and data.pixels is None:
        raise UserError(f"{path} has no pixels: add them with 'lpwm data convert {path} OUT --add-pixels'.")
    return data


def verify_frames(path: str | Path) -> None:
    """Compare the stored frames with their digest: reads all of them. The data of others carry no digests."""
    path = _inside(Path(path))
    if not path.is_dir():
        swm.verify_frames(path)


def _inside(path: Path) -> Path:
    """The data set that a folder holds: a Lance table, a single HDF5 file, or the folder itself, if it is DINO-WM's."""
    if not path.is_dir() or path.suffix.lower() == ".lance":
        return path
    from lpwm.data.formats.dino_wm import is_dino

    if is_dino(path):
        return path
    files = sorted(p for kind in ("*.lance", "*.h5", "*.hdf5") for p in path.glob(kind))
    if len(files) == 1:
        return files[0]
    if files:
        raise UserError(
            f"{path} holds {len(files)} data sets ({', '.join(p.name for p in files[:4])}): name one of them."
        )
    raise UserError(
        f"{path} is a folder without a data set: expected an HDF5 file, a .lance table, or DINO-WM's states.pth (or "
        "train/states.pth)."
    )
