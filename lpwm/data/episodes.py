"""A data set in memory: recorded episodes, one after another, and its content digest.

N is the number of frames of all episodes together, E of episodes, S of state entries, A of one raw action.
An episode of L frames has L − 1 transitions: action t leaves frame t, and its last row is NaN.

The digest depends on the columns' names, dtypes, shapes and bytes, and on where episodes begin. Columns are hashed
episode by episode, so that workers can hash the frames they rendered:

    column = H(name, dtype, row shape, rows, H(episode 0), H(episode 1), …)      file = H(column of every name, sorted)
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.data.frames import Frames
from lpwm.worlds.base import WorldSpec

SIZE = 16  # bytes of a hash


Groups = Iterable[tuple[Mapping[str, NDArray], NDArray]]  # columns of some whole episodes, and their lengths


class Column(Protocol):
    """A column of N rows: an array in memory, or rows read from a file on demand."""

    def __getitem__(self, rows: slice) -> NDArray: ...


@dataclass(frozen=True)
class EpisodeData:
    states: Tensor  # (N, S) float32
    actions: Tensor  # (N, A) float32, the last row of each episode NaN
    lengths: Tensor  # (E,) int64, in frames
    offsets: Tensor  # (E,) int64: episode e is rows offsets[e] … offsets[e] + lengths[e] − 1
    pixels: Frames | None = None
    spec: WorldSpec | None = None  # the world that made it, if known
    digest: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)  # seed, policy, coverage, … as stored
    held_out: Tensor | None = None  # (K,) int64: the episodes its makers held out, where they said so
    extra: Mapping[str, Column] = field(default_factory=dict)  # other columns of numbers, a row per frame

    @property
    def episodes(self) -> int:
        return len(self.lengths)

    @property
    def steps(self) -> int:
        """Transitions of all episodes."""
        return len(self.states) - self.episodes

    def episode(self, index: int) -> tuple[Tensor, Tensor]:
        """The states (L, S) and the actions (L − 1, A) of one episode."""
        start, length = int(self.offsets[index]), int(self.lengths[index])
        return self.states[start : start + length], self.actions[start : start + length - 1]


def offsets_of(lengths: NDArray) -> NDArray[np.int64]:
    lengths = np.asarray(lengths, dtype=np.int64)
    return np.cumsum(lengths) - lengths


def pad_action(action: NDArray, length: int, where: str = "an episode") -> NDArray[np.float32]:
    """Actions (L − 1, A) or (L, A) as (L, A) with a NaN last row."""
    action = np.asarray(action)
    if action.ndim != 2 or len(action) not in (length - 1, length):
        raise UserError(
            f"{where} has {length} frames and actions of shape {action.shape}: give (frames − 1, action size), "
            "action t being the one that leaves frame t."
        )
    padded = np.full((length, action.shape[1]), np.nan, dtype=np.float32)
    with np.errstate(over="ignore"):
        padded[: length - 1] = action[: length - 1]
    return padded


def from_arrays(
    states: Sequence[NDArray],
    actions: Sequence[NDArray],
    pixels: Sequence[NDArray] | None = None,
    spec: WorldSpec | None = None,
) -> EpisodeData:
    """Episodes given one array each: states (L, S), actions (L − 1, A), optional frames (L, h, w, 3)."""
    if not len(states) or len(states) != len(actions):
        raise UserError(f"{len(states)} arrays of states and {len(actions)} of actions: give one of each per episode.")
    lengths = np.array([len(s) for s in states], dtype=np.int64)
    padded = [pad_action(a, n, f"episode {e}") for e, (a, n) in enumerate(zip(actions, lengths, strict=True))]
    frames = None if pixels is None else np.concatenate([np.asarray(p) for p in pixels])
    if frames is not None and (frames.dtype != np.uint8 or len(frames) != lengths.sum()):
        raise UserError("pixels must be uint8 arrays (frames, height, width, 3), as many frames as states.")
    columns = {"state": np.concatenate(states).astype(np.float32), "action": np.concatenate(padded)}
    digests = hash_columns(columns if frames is None else {**columns, "pixels": frames}, lengths)
    return assemble(columns, lengths, digest=combine(digests), pixels=frames, spec=spec)


def assemble(
    columns: Mapping[str, NDArray],
    lengths: NDArray[np.int64],
    *,
    digest: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    **rest: Any,
) -> EpisodeData:
    """EpisodeData of the columns `state` and `action`, whose digest it has if none is given; `rest`: other fields."""
    attributes = attributes or {}
    held = attributes.get("held_out")
    return EpisodeData(
        digest=digest or combine(hash_columns(columns, lengths, held)),
        attributes=attributes,
        held_out=None if held is None else runs_from_json(str(held), len(lengths)),
        states=torch.from_numpy(columns["state"].astype(np.float32, copy=False)),
        actions=torch.from_numpy(columns["action"].astype(np.float32, copy=False)),
        lengths=torch.from_numpy(lengths),
        offsets=torch.from_numpy(offsets_of(lengths)),
        **rest,
    )


def spec_to_json(spec: WorldSpec) -> str:
    return json.dumps(dataclasses.asdict(spec), sort_keys=True)


def spec_from_json(text: str) -> WorldSpec:
    """ValueError, KeyError or TypeError when `text` is not the JSON of a WorldSpec."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise TypeError("a world's spec is a JSON object")
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
    spec = WorldSpec(**fields)
    if not isinstance(spec.name, str) or not isinstance(spec.options, dict):
        raise TypeError("a world's spec has a name and options")
    return spec


def split_spec(record: Mapping[str, Any]) -> tuple[dict[str, Any], WorldSpec | None]:
    """What a writer of ours added to a data set, and the world's spec from among it; errors as `spec_from_json`."""
    rest, world = {str(k): v for k, v in record.items() if isinstance(v, str | int | float)}, record.get("world")
    return rest, spec_from_json(json.dumps(world)) if world else None


def runs_to_json(episodes: Iterable[int]) -> str:
    """Ascending numbers as the runs they make, [[first, last + 1], …]: short, and an attribute can hold it."""
    runs: list[list[int]] = []
    for e in episodes:
        if runs and runs[-1][1] == e:
            runs[-1][1] = e + 1
        else:
            runs.append([e, e + 1])
    return json.dumps(runs)


def runs_from_json(text: str, count: int) -> Tensor:
    """The inverse. ValueError or TypeError when `text` does not name some, but not all, of `count` episodes."""
    runs = json.loads(text)
    if any(not 0 <= first < last <= count for first, last in runs):
        raise ValueError("these are not runs of the episodes")
    held = [e for first, last in runs for e in range(first, last)]
    if held != sorted(set(held)) or not 0 < len(held) < count:
        raise ValueError("these are not some of the episodes")
    return torch.tensor(held, dtype=torch.int64)


def held_out_digest(text: object) -> str:
    """The split is part of what a data set is: the digest of its JSON, next to those of the columns."""
    return hashlib.blake2b(str(text).encode(), digest_size=SIZE).hexdigest()


def hash_episodes(rows: NDArray, lengths: NDArray) -> bytes:
    """The hashes of consecutive episodes of `rows`, SIZE bytes each."""
    pieces = (rows[end - length : end] for end, length in zip(np.cumsum(lengths), lengths, strict=True))
    flat = (np.ascontiguousarray(p, dtype=p.dtype.newbyteorder("<")).reshape(-1).view(np.uint8) for p in pieces)
    return b"".join(hashlib.blake2b(piece.data, digest_size=SIZE).digest() for piece in flat)


class ColumnHash:
    def __init__(self, name: str, dtype: np.dtype, row_shape: tuple[int, ...]):
        self.head = f"{name}|{np.dtype(dtype).newbyteorder('<').str}|{tuple(row_shape)}"
        self.rows = 0
        self._episodes = hashlib.blake2b(digest_size=SIZE)

    def add(self, rows: int, hashes: bytes) -> None:
        """Rows hashed by `hash_episodes`."""
        self.rows += rows
        self._episodes.update(hashes)

    def digest(self) -> str:
        text = f"{self.head}|{self.rows}|".encode() + self._episodes.digest()
        return hashlib.blake2b(text, digest_size=SIZE).hexdigest()


def hash_column(name: str, rows: NDArray, lengths: NDArray | None) -> str:
    """The digest of a whole column in memory; without lengths the column is one piece (`ep_len` itself)."""
    column = ColumnHash(name, rows.dtype, rows.shape[1:])
    column.add(len(rows), hash_episodes(rows, np.array([len(rows)]) if lengths is None else lengths))
    return column.digest()


def hash_columns(
    columns: Mapping[str, NDArray], lengths: NDArray, held_out: object = None, ep_len: NDArray | None = None
) -> dict[str, str]:
    """The digests of columns in memory, of the lengths (int32 unless the file has them otherwise) and of the split."""
    digests = {name: hash_column(name, rows, lengths) for name, rows in columns.items()}
    digests["ep_len"] = hash_column("ep_len", lengths.astype(np.int32) if ep_len is None else ep_len, None)
    if held_out is not None:
        digests["held_out"] = held_out_digest(held_out)
    return digests


def combine(columns: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {digest}" for name, digest in sorted(columns.items()))
    return hashlib.blake2b(text.encode(), digest_size=SIZE).hexdigest()
