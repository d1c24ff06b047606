"""Data sets in the formats people have: stable-worldmodel's HDF5 (also ours) and Lance tables, DINO-WM's folders,
LeRobot's, folders of videos with tables."""

from pathlib import Path

from lpwm.core.errors import UserError
from lpwm.data.episodes import EpisodeData
from lpwm.data.formats import swm
from lpwm.data.formats.folder import is_videos, read_videos
from lpwm.data.formats.lerobot import from_hub, is_lerobot, read_lerobot


def read(
    path: str | Path, *, pixels: bool | None = None, verify: bool = True, camera: str | None = None
) -> EpisodeData:
    """A data set, checked. Frames stay in the file until they are used.

    pixels: None takes them if they are there, True demands them, False ignores them. verify: compare the columns read
    (not the frames, see `verify_frames`) with their stored digests. camera: which one, for data sets with several.
    """
    try:
        Path(path).exists()
    except OSError as error:  # a name that no file can have
        raise UserError(f"{str(path)[:80]} cannot be read: {error.strerror}.") from None
    path = _inside(Path(path), camera)
    if is_lerobot(path):
        data = read_lerobot(path, camera, pixels)
    elif camera:
        raise UserError(f"{path} is no LeRobot data set: only those have cameras to choose from.")
    elif is_videos(path):
        data = read_videos(path, pixels)
    elif path.suffix.lower() == ".lance":
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


def _inside(path: Path, camera: str | None = None) -> Path:
    """The data set that a folder holds: a Lance table, a single HDF5 file, or the folder itself, if it is one; that of
    the Hub, if `path` is owner/name and nothing here."""
    if path.suffix.lower() == ".lance":
        return path
    if not path.is_dir():
        return from_hub(path, camera) or path
    dino = any((path / part / "states.pth").exists() for part in (".", "train", "val"))
    if dino or is_lerobot(path) or is_videos(path):
        return path
    files = sorted(p for kind in ("*.lance", "*.h5", "*.hdf5") for p in path.glob(kind))
    if len(files) == 1:
        return files[0]
    if files:
        raise UserError(f"{path} holds {len(files)} data sets ({', '.join(p.name for p in files[:4])}): name one.")
    raise UserError(
        f"{path} is a folder without a data set: expected an HDF5 file, a .lance table, DINO-WM's states.pth (or "
        "train/states.pth), LeRobot's meta/info.json, or videos with tables (a.mp4 with a.csv or a.parquet)."
    )
