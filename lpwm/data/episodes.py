"""A data set in memory: recorded episodes, one after another.

N is the number of frames of all episodes together, E of episodes, S of state entries, A of one raw action.
An episode of L frames has L − 1 transitions: action t leaves frame t, and its last row is NaN.
"""

from __future__ import annotations

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
from lpwm.data.digest import combine, hash_column
from lpwm.frames import Frames
from lpwm.worlds.base import WorldSpec


class Column(Protocol):
    """A column of N rows: an array in memory, or rows read from a file when asked."""

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
    digests = {name: hash_column(name, rows, lengths) for name, rows in columns.items()}
    digests["ep_len"] = hash_column("ep_len", lengths.astype(np.int32), None)
    if frames is not None:
        digests["pixels"] = hash_column("pixels", frames, lengths)
    return EpisodeData(
        states=torch.from_numpy(columns["state"]),
        actions=torch.from_numpy(columns["action"]),
        lengths=torch.from_numpy(lengths),
        offsets=torch.from_numpy(offsets_of(lengths)),
        pixels=frames,
        spec=spec,
        digest=combine(digests),
    )


def spec_to_json(spec: WorldSpec) -> str:
    return json.dumps(dataclasses.asdict(spec), sort_keys=True)


def spec_from_json(text: str) -> WorldSpec:
    """ValueError, KeyError or TypeError when `text` is not the JSON of a WorldSpec."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError("a world's spec is a JSON object")
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
    spec = WorldSpec(**fields)
    if not isinstance(spec.name, str) or not isinstance(spec.options, dict):
        raise TypeError("a world's spec has a name and options")
    return spec


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


def held_out_digest(text: str) -> str:
    """The split is part of what a data set is: the digest of its JSON, beside those of the columns."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
