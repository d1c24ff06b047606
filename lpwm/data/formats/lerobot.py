"""LeRobot data sets, v2.0 to v3.0, read: a folder, or a data set on the Hub.

    v2.1   data/chunk-000/episode_000000.parquet   videos/chunk-000/KEY/episode_000000.mp4   meta/episodes.jsonl
    v3.0   data/chunk-000/file-000.parquet         videos/KEY/chunk-000/file-000.mp4         meta/episodes/*/*.parquet

`observation.state` is the state, `action` the action; one camera, chosen by name, gives the frames, from mp4 files or
from pictures in the parquet files. Row t of an episode holds frame t and the action taken there; the action of the last
row leads nowhere and becomes NaN. All other columns of numbers are kept. Nothing in the files names code.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError, damaged, nearest
from lpwm.core.json import from_json, read_json
from lpwm.data.episodes import EpisodeData, assemble, combine, hash_columns, split_spec
from lpwm.data.formats.swm import check_columns, run_lengths
from lpwm.data.formats.tables import arrow, read_lines, read_table, regular
from lpwm.data.frames import StoredFrames
from lpwm.data.frames.pictures import ParquetFrames
from lpwm.data.frames.video import VideoFrames
from lpwm.worlds.base import WorldSpec

VERSIONS = ("v2.0", "v2.1", "v3.0")
STATE, ACTION = "observation.state", "action"
NAMES = {"state": STATE, "action": ACTION}
INDEX = ("timestamp", "frame_index", "episode_index", "index")  # columns that follow from the others
PLACE = ("chunk_index", "file_index", "from_timestamp")  # of an episode in the videos of a camera
OURS = "meta/lpwm.json"  # what our writer adds: world, seed, policy, …
_EPISODES = 10_000_000


@dataclass(frozen=True)
class Feature:
    dtype: str
    names: Any = None

    @property
    def camera(self) -> bool:
        return self.dtype in ("video", "image")

    @property
    def labels(self) -> list[str]:
        """Of its entries: a list, or one by the name of what they are, {"motors": […]}."""
        names = next(iter(self.names.values()), None) if isinstance(self.names, dict) else self.names
        return [str(name) for name in names] if isinstance(names, list) else []


@dataclass(frozen=True)
class Info:
    """meta/info.json."""

    codebase_version: str
    fps: float
    data_path: str
    features: dict[str, Feature]
    chunks_size: int | None = None
    video_path: str | None = None
    splits: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if not 0 < self.fps < 1e6 or self.chunk < 1:
            raise UserError("fps or chunks_size is out of range.")

    @property
    def chunk(self) -> int:
        return self.chunks_size or 1000

    @property
    def chunked(self) -> bool:
        """Whether files hold several episodes."""
        return self.codebase_version == "v3.0"

    @property
    def cameras(self) -> list[str]:
        return [key for key, feature in self.features.items() if feature.camera]


def is_lerobot(folder: Path) -> bool:
    return (folder / "meta" / "info.json").exists()


def read_lerobot(folder: Path, camera: str | None = None, pixels: bool | None = None) -> EpisodeData:
    """The whole data set; numbers in memory, frames of one camera read on demand."""
    info = read_info(folder)
    lengths, files, table = _episodes(folder, info)
    columns, rows = _columns(folder, info, files, lengths)
    said, spec = _said(folder, info)
    key = ""
    frames: StoredFrames | None = None
    if camera or (pixels is not False and info.cameras):
        key = choose_camera(str(folder), info.cameras, camera)
    if key and info.features[key].dtype == "image":
        frames = ParquetFrames(files, rows, key)
    elif key:
        frames = _videos(folder, info, key, lengths, table)
    actions = _matrix(folder, columns, ACTION)
    states = _matrix(folder, columns, STATE) if STATE in columns else np.zeros((len(actions), 0), np.float32)
    check_columns(folder, spec, states, actions, lengths)
    actions[np.cumsum(lengths) - 1] = np.nan  # the last one leads nowhere
    names = {f"{name}_names": info.features[k].labels for name, k in NAMES.items() if k in info.features}
    attributes = {
        "made_by": f"LeRobot {info.codebase_version}",
        "fps": info.fps,
        "tasks": json.dumps(_tasks(folder)),
        **({"camera": key} if key else {}),
        **{name: json.dumps(value) for name, value in names.items() if value},
        **said,
    }
    numbers = {"state": states, "action": actions}
    digests = hash_columns(numbers, lengths, said.get("held_out"))
    digests |= {"camera": hashlib.blake2b(key.encode(), digest_size=16).hexdigest()} if key else {}
    extra = {name: values for name, values in columns.items() if name not in (STATE, ACTION, *INDEX)}
    try:
        rest: dict[str, Any] = {"spec": spec, "attributes": attributes, "extra": extra}
        return assemble(numbers, lengths, digest=combine(digests), pixels=frames, **rest)
    except (ValueError, TypeError) as error:
        split = str(said.get("held_out"))[:40]
        raise UserError(f"{folder}: its held-out split {split!r} does not name some of its episodes.") from error


def from_hub(name: Path, camera: str | None) -> Path | None:
    """The local copy of the data set owner/name of the Hub; None for what is rather the name of a file here."""
    text = name.as_posix()
    if name.exists() or name.parent.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        return None
    if name.suffix.lower() in (".h5", ".hdf5", ".lance"):
        return None
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(text, repo_type="dataset", allow_patterns=["meta/*"]))
        wanted = ["data/*"]
        if is_lerobot(folder) and (cameras := read_info(folder).cameras):
            wanted.append(f"videos/*{choose_camera(text, cameras, camera)}/*")
        return Path(snapshot_download(text, repo_type="dataset", allow_patterns=["meta/*", *wanted]))
    except UserError:
        raise
    except Exception as error:  # of the network, the hub or the disk: none of them ours
        raise UserError(
            f"{text} does not exist here, and the Hub does not give a data set of this name ({type(error).__name__}): "
            "check the name and the network."
        ) from error


def read_info(folder: Path) -> Info:
    path = folder / "meta" / "info.json"
    record = read_json(regular(path))
    version = str(record.get("codebase_version"))[:20]
    if version not in VERSIONS:
        raise UserError(
            f"{folder} is a LeRobot data set of version {version}: {', '.join(VERSIONS)} can be read; convert it with "
            "LeRobot's own scripts."
        )
    try:
        return from_json(Info, record)
    except (UserError, OverflowError) as error:
        raise damaged(path, f"no description of a LeRobot data set: {error}") from error


def choose_camera(where: str, cameras: list[str], camera: str | None) -> str:
    """The key of a camera: its full name, or the part after the last dot where that is clear."""
    fits = [key for key in cameras if key == camera] or [key for key in cameras if key.rpartition(".")[2] == camera]
    if camera and len(fits) == 1:
        return fits[0]
    if camera:
        raise UserError(f"{where} has no camera {camera!r}: {nearest(camera, cameras) if cameras else 'it has none'}.")
    if len(cameras) > 1:
        raise UserError(
            f"{where} has {len(cameras)} cameras: choose one of {', '.join(cameras)} (--data.camera NAME in training, "
            "--camera NAME elsewhere)."
        )
    return cameras[0]


def _place(folder: Path, info: Info, pattern: str, at: Any, key: str = "") -> Path:
    """A file of the description, its {names:03d} filled in: of an episode, or (chunk, file). It must stay inside."""
    values: dict[str, Any] = {"video_key": key}
    if info.chunked:
        values |= dict(zip(("chunk_index", "file_index"), map(int, at), strict=True))
    else:
        values |= {"episode_chunk": at // info.chunk, "episode_index": at}

    def fill(match: re.Match) -> str:
        value = values.get(match[1], match[0])
        return f"{value:0{int(match[2] or 0)}d}" if isinstance(value, int) else value

    relative = PurePosixPath(re.sub(r"\{(\w+)(?::0?(\d)d)?\}", fill, pattern))
    if relative.is_absolute() or ".." in relative.parts or "\0" in str(relative):
        raise UserError(f"{folder}: its description leads outside of it ({str(relative)[:80]!r}): copy it again.")
    return folder / relative


def _episodes(folder: Path, info: Info) -> tuple[NDArray[np.int64], list[Path], dict[str, NDArray]]:
    """The length of each episode, the data files in order, and (v3.0) the table that says where each episode is."""
    if info.chunked:
        paths = sorted((folder / "meta" / "episodes").glob("*/*.parquet"))
        if not paths:
            raise UserError(f"{folder / 'meta' / 'episodes'} holds no table: copy the whole data set again.")
        names = ["episode_index", "length", "data/chunk_index", "data/file_index"]
        names += [
            f"videos/{key}/{part}" for key in info.cameras if info.features[key].dtype == "video" for part in PLACE
        ]
        tables = [read_table(path, names) for path in paths]
        table = {name: np.concatenate([t[name] for t in tables]) for name in names}
    else:
        path = folder / "meta" / "episodes.jsonl"
        pairs = [(line.get("episode_index"), line.get("length")) for line in read_lines(path)]
        try:
            table = dict(zip(("episode_index", "length"), np.array(pairs, np.int64).reshape(-1, 2).T, strict=True))
        except (TypeError, ValueError, OverflowError) as error:
            raise damaged(path, error) from error
    counts = [table[name] for name in table if not name.startswith("videos/")]
    index, lengths = counts[:2]
    whole = all(values.dtype.kind in "iu" for values in counts) and 0 < len(index) <= _EPISODES
    if not whole or (index != np.arange(len(index))).any() or (lengths < 1).any() or lengths.max() > 1e9:
        raise UserError(f"{folder}: its table of episodes does not count them from 0, each with frames: copy it again.")
    places = np.stack(counts[2:], 1).tolist() if info.chunked else index.tolist()
    unique = dict.fromkeys(map(tuple, places)) if info.chunked else places
    return lengths.astype(np.int64), [_place(folder, info, info.data_path, place) for place in unique], table


def _columns(
    folder: Path, info: Info, files: list[Path], lengths: NDArray[np.int64]
) -> tuple[dict[str, NDArray], NDArray[np.int64]]:
    """All columns of numbers, and the rows of each file."""
    simple = ("float", "int", "uint", "bool")
    names = [key for key, feature in info.features.items() if feature.dtype.startswith(simple)]
    if ACTION not in names:
        raise UserError(f"{folder} has no column 'action' of numbers (found {', '.join(info.features)}).")
    names = list(dict.fromkeys([*names, "episode_index"]))
    tables = [read_table(file, names) for file in files]
    try:
        columns = {name: np.concatenate([table[name] for table in tables]) for name in names}
    except ValueError as error:
        raise UserError(f"{folder}: its tables differ in the sizes of their columns: copy it again.") from error
    rows = run_lengths(folder, "episode_index", columns["episode_index"].astype(np.int64))
    if len(rows) != len(lengths) or (rows != lengths).any():
        raise UserError(
            f"{folder}: its tables hold {len(rows)} episodes of {int(rows.sum())} rows, its description says "
            f"{len(lengths)} of {int(lengths.sum())}: copy it again."
        )
    return columns, np.array([len(table["episode_index"]) for table in tables])


def _matrix(folder: Path, columns: Mapping[str, NDArray], name: str) -> NDArray[np.float32]:
    values = columns[name]
    if values.ndim > 2:
        raise UserError(f"{folder}: column {name!r} has rows of shape {values.shape[1:]}, expected a list of numbers.")
    return np.array(values.reshape(len(values), -1), np.float32)


def _videos(folder: Path, info: Info, key: str, lengths: NDArray[np.int64], table: dict[str, NDArray]) -> VideoFrames:
    if not info.chunked:
        files = [_place(folder, info, info.video_path or "", e, key) for e in range(len(lengths))]
        return VideoFrames(files, lengths, rate=info.fps)
    chunks, numbers, begins = places = np.stack([table[f"videos/{key}/{part}"] for part in PLACE]).astype(np.float64)
    if not np.isfinite(places).all() or (places < 0).any() or places.max() > 1e8:
        raise UserError(f"{folder}: its table of episodes does not say where camera {key!r} shows them: copy it again.")
    files = [_place(folder, info, info.video_path or "", at, key) for at in zip(chunks, numbers, strict=True)]
    return VideoFrames(files, lengths, np.round(begins * info.fps).astype(np.int64), info.fps)


def _tasks(folder: Path) -> list[str]:
    """What the robot was told, in the order of `task_index`; [] where it is not said."""
    path = folder / "meta" / "tasks.jsonl"
    if path.exists():
        return [str(line.get("task")) for line in read_lines(path)]
    path, pa = path.with_suffix(".parquet"), arrow()
    if not path.exists():
        return []
    try:
        table = pa.parquet.read_table(regular(path)).to_pydict()
        return [str(text) for text in table.get("__index_level_0__", table.get("task", []))]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(path, error) from error


def _said(folder: Path, info: Info) -> tuple[dict[str, Any], WorldSpec | None]:
    """What our writer added, the split of its makers (`val`, or else `validation` or `test`), and the world's spec."""
    path = folder / OURS
    try:
        said, spec = split_spec(read_json(regular(path)) if path.exists() else {})
    except UserError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path, error) from error
    splits = info.splits or {}
    split = next((splits[name] for name in ("val", "validation", "test") if name in splits), None)
    if split is not None and "held_out" not in said:
        match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", split)
        said["held_out"] = f"[[{match[1]}, {match[2]}]]" if match else split
    return said, spec
