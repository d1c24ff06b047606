"""LeRobot data sets of version 3.0, written: parquet files with mp4 files (H.264 or AV1), or with PNG pictures.

The last action of an episode, which leads nowhere and is NaN here, is written as the one before it. What LeRobot has no
place for (world, seed, policy, …) goes to meta/lpwm.json, which its readers ignore.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.core.files import disk_errors, put, scratch
from lpwm.data.episodes import EpisodeData, Groups, offsets_of, spec_to_json
from lpwm.data.formats.lerobot import ACTION, INDEX, NAMES, OURS
from lpwm.data.formats.tables import arrow, texts
from lpwm.data.frames.pictures import encode
from lpwm.data.frames.video import decoder
from lpwm.worlds.base import WorldSpec

FRAMES = ("h264", "av1", "images")
# A key frame every other frame, as LeRobot's own: random clips are decoded fast.
_CODECS: dict[str, tuple[str, dict[str, str]]] = {
    "h264": ("libx264", {"crf": "18", "g": "2", "bf": "0"}),
    "av1": ("libsvtav1", {"crf": "24", "g": "2", "preset": "10"}),
}
_EPISODES, _CHUNK = 50, 1000  # of a file; files of a folder
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_SAMPLE = 16  # frames of an episode that the statistics of pictures are taken from, every fourth pixel
_SAID = ("made_by", "fps", "camera", "tasks", "action_names", "state_names")  # attributes LeRobot has a place for
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def write_lerobot(
    path: Path, groups: Groups, data: EpisodeData, frames: str, fps: float | None = None, overwrite: bool = False
) -> None:
    """The episodes of `data`, group by group, as a folder that appears under its name when it is complete."""
    av, spec, attributes = decoder(), data.spec, data.attributes
    if frames not in FRAMES:
        raise UserError(f"frames as {frames!r}: give one of {', '.join(FRAMES)}.")
    if path.is_file():
        raise UserError(f"{path} is a file: a LeRobot data set is a folder, choose another name.")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists: choose another name, or pass --overwrite to replace it.")
    rate = float(fps or attributes.get("fps") or 10)
    if not 0.01 <= rate <= 1000:
        raise UserError(f"{rate:g} frames per second: give a number from 0.01 to 1000.")
    with disk_errors(path), scratch(path.parent, path.name) as temporary:
        writer = _Writer(temporary, frames, Fraction(str(rate)).limit_denominator(1001), spec, attributes)
        try:
            for columns, lengths in groups:
                for start, length in zip(offsets_of(lengths).tolist(), lengths.tolist(), strict=True):
                    writer.append({name: values[start : start + length] for name, values in columns.items()}, length)
            writer.finish(spec, attributes)
        except av.error.FFmpegError as error:
            raise UserError(
                f"cannot write {path} ({error.strerror!r} of the encoder): try --lerobot images."
            ) from error
        finally:
            with contextlib.suppress(Exception):  # what went wrong is known by now
                writer.close()
        put(temporary, path)


class _Writer:
    def __init__(
        self, folder: Path, frames: str, rate: Fraction, spec: WorldSpec | None, attributes: Mapping[str, Any]
    ):
        self.folder, self.frames, self.rate = folder, frames, rate
        self.features: dict[str, dict[str, Any]] = {}
        self.episodes: list[dict[str, Any]] = []
        self.values: dict[str, list[NDArray]] = {}  # of every feature, for the statistics
        self.rows = self.shown = 0  # rows of all episodes; frames of the open video
        self.table: Any = None
        self.film: _Film | None = None
        self.camera = str(attributes.get("camera") or "observation.images.pixels").replace("/", "_")
        self.tasks = texts(attributes.get("tasks")) or ["recorded" if spec is None else spec.name]
        self.names = {
            key: list(getattr(spec, f"{name}_names")) if spec else texts(attributes.get(f"{name}_names"))
            for name, key in NAMES.items()
        }

    def append(self, columns: Mapping[str, NDArray], length: int) -> None:
        e, count = len(self.episodes), np.arange(length)[:, None]
        if e % _EPISODES == 0:
            self.close()
        chunk, number = divmod(e // _EPISODES, _CHUNK)
        place: dict[str, Any] = {"chunk_index": chunk, "file_index": number}
        task = np.asarray(columns.get("task_index", 0 * count)).reshape(length, 1).astype(np.int64)
        task = np.where((task >= 0) & (task < len(self.tasks)), task, 0)
        made = ("pixels", "task_index", *INDEX)
        flat = {NAMES.get(n, n.replace("/", "_")): v.reshape(length, -1) for n, v in columns.items() if n not in made}
        flat[ACTION] = np.concatenate((flat[ACTION][:-1], flat[ACTION][-2:-1] if length > 1 else 0 * count))
        flat |= {"timestamp": (count / float(self.rate)).astype(np.float32), "frame_index": count}
        flat |= {"episode_index": 0 * count + e, "index": count + self.rows, "task_index": task}
        for name, values in flat.items():
            shape = {"dtype": str(values.dtype), "shape": [values.shape[1]], "names": self.names.get(name) or None}
            self.features.setdefault(name, shape)
            self.values.setdefault(name, []).append(values)
        self.episodes.append(
            {
                "episode_index": e,
                "tasks": [self.tasks[i] for i in np.unique(task)],
                "length": length,
                "dataset_from_index": self.rows,
                "dataset_to_index": self.rows + length,
                **{f"data/{name}": value for name, value in place.items()},
                **{f"meta/episodes/{name}": 0 for name in place},
            }
        )
        pixels = columns.get("pixels")
        if pixels is not None:
            self._see(pixels)
        if pixels is not None and self.frames != "images":
            place |= self._film(pixels, _VIDEO.format(video_key=self.camera, **place))
            self.episodes[-1] |= {f"videos/{self.camera}/{name}": value for name, value in place.items()}
            pixels = None
        self._store(flat, pixels, _DATA.format(**place))
        self.rows += length

    def _see(self, pixels: NDArray[np.uint8]) -> None:
        """The camera as a feature, and a sample of its pixels for the statistics."""
        height, width = pixels.shape[1:3]
        video = self.frames != "images"
        if video and (height % 2 or width % 2):
            raise UserError(f"frames of {height}×{width} do not fit mp4, which needs even sides: give --size.")
        shape: dict[str, Any] = {"dtype": "video" if video else "image", "shape": [height, width, 3]}
        shape["names"] = ["height", "width", "channels"]
        if video:
            info = {"height": height, "width": width, "codec": self.frames, "pix_fmt": "yuv420p", "channels": 3}
            info |= {"is_depth_map": False, "fps": _plain(self.rate)}
            shape["info"] = {f"video.{name}": value for name, value in info.items()} | {"has_audio": False}
        self.features.setdefault(self.camera, shape)
        step = max(1, len(pixels) // _SAMPLE)
        self.values.setdefault(self.camera, []).append(pixels[::step, ::4, ::4].reshape(-1, 3) / np.float32(255))

    def _film(self, pixels: NDArray[np.uint8], file: str) -> dict[str, float]:
        """Append the frames of an episode to the mp4 file; when they are shown."""
        if self.film is None:
            self.film, self.shown = _Film(self._new(file), self.frames, self.rate, pixels.shape), 0
        first, self.shown = self.shown, self.shown + len(pixels)
        self.film.append(pixels, first)
        return {"from_timestamp": float(first / self.rate), "to_timestamp": float(self.shown / self.rate)}

    def _store(self, flat: Mapping[str, NDArray], pictures: NDArray[np.uint8] | None, file: str) -> None:
        """Append the rows of an episode to the parquet file, as a group of their own."""
        pa = arrow()
        arrays = {}
        for name, values in flat.items():
            array = pa.array(np.ascontiguousarray(values).reshape(-1))
            arrays[name] = array if values.shape[1] == 1 else pa.FixedSizeListArray.from_arrays(array, values.shape[1])
        if pictures is not None:
            rows = [{"bytes": encode(picture, "PNG"), "path": None} for picture in pictures]
            arrays[self.camera] = pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
        table = pa.table(arrays)
        self.table = self.table or pa.parquet.ParquetWriter(self._new(file), table.schema)
        self.table.write_table(table)

    def _new(self, file: str) -> Path:
        (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
        return self.folder / file

    def close(self) -> None:
        open_files, self.film, self.table = (self.film, self.table), None, None
        for file in open_files:
            if file is not None:
                file.close()

    def finish(self, spec: WorldSpec | None, attributes: Mapping[str, Any]) -> None:
        self.close()
        pa = arrow()
        for e, record in enumerate(self.episodes):
            for name, parts in self.values.items():
                record |= {f"stats/{name}/{k}": v for k, v in self._stats(name, parts[e : e + 1]).items()}
        table = pa.Table.from_pylist(self.episodes)
        pa.parquet.write_table(table, self._new("meta/episodes/chunk-000/file-000.parquet"))
        pa.parquet.write_table(_task_table(pa, self.tasks), self._new("meta/tasks.parquet"))
        video = self.features.get(self.camera, {}).get("dtype") == "video"
        info = {
            "codebase_version": "v3.0",
            "robot_type": attributes.get("robot"),
            "total_episodes": len(self.episodes),
            "total_frames": self.rows,
            "total_tasks": len(self.tasks),
            "chunks_size": _CHUNK,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": _plain(self.rate),
            "splits": {"train": f"0:{len(self.episodes)}"},
            "data_path": _DATA,
            "video_path": _VIDEO if video else None,
            "features": self.features,
        }
        stats = {name: self._stats(name, parts) for name, parts in self.values.items()}
        said = {name: value for name, value in attributes.items() if name not in _SAID}
        said["world"] = json.loads(spec_to_json(spec)) if spec is not None else None
        for name, content in (("meta/info.json", info), ("meta/stats.json", stats), (OURS, said)):
            self._new(name).write_text(json.dumps(content, indent=1, default=str), encoding="utf-8")

    def _stats(self, name: str, parts: list[NDArray]) -> dict[str, Any]:
        """As LeRobot's normalizers want them: of pictures per channel, (3, 1, 1)."""
        values = np.concatenate(parts).astype(np.float64)
        stats = {
            k: f(values, axis=0) for k, f in (("min", np.min), ("max", np.max), ("mean", np.mean), ("std", np.std))
        }
        stats |= {k: np.quantile(values, q, axis=0) for k, q in _QUANTILES.items()}
        shape = (3, 1, 1) if name == self.camera else (-1,)
        return {k: v.reshape(shape).tolist() for k, v in stats.items()} | {"count": [len(values)]}


class _Film:
    """An mp4 file that is being written."""

    def __init__(self, path: Path, kind: str, rate: Fraction, shape: tuple[int, ...]):
        os.environ.setdefault("SVT_LOG", "1")  # errors alone: the encoder of AV1 prints a page otherwise
        codec, options = _CODECS[kind]
        self._container = decoder().open(str(path), "w", options={"movflags": "faststart"})
        self._stream = self._container.add_stream(codec, rate=rate, options=options)
        self._stream.height, self._stream.width, self._stream.pix_fmt = shape[1], shape[2], "yuv420p"
        self._tick = 1 / rate

    def append(self, pixels: NDArray[np.uint8], first: int) -> None:
        """Frames that are number `first` and on; the first is a key frame."""
        av = decoder()
        for number, picture in enumerate(pixels, first):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = number, self._tick
            if number == first:
                frame.pict_type = av.video.frame.PictureType.I
            self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        self._container.mux(self._stream.encode())
        self._container.close()


def _task_table(pa: Any, tasks: list[str]) -> Any:
    """As pandas stores a column `task_index` whose index is the texts."""
    table = pa.table({"task_index": np.arange(len(tasks)), "__index_level_0__": tasks})
    described = [(None, "__index_level_0__", "unicode", "object"), ("task_index", "task_index", "int64", "int64")]
    fields = ("name", "field_name", "pandas_type", "numpy_type", "metadata")
    columns = [dict(zip(fields, (*values, None), strict=True)) for values in described]
    pandas = {"index_columns": ["__index_level_0__"], "column_indexes": [], "columns": columns, "pandas_version": "2.0"}
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})


def _plain(rate: Fraction) -> int | float:
    return rate.numerator if rate.denominator == 1 else float(rate)
