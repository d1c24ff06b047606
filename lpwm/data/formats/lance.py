"""stable-worldmodel's Lance tables, read and written.

A row per frame: `episode_idx` and `step_idx` int32, numbers as lists of float32 of fixed size, frames as JPEG in the
binary column `pixels`. What our files say besides (world, seed, policy, …) is kept in the table's own metadata, which
its readers ignore.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError
from lpwm.core.files import disk_errors, put, scratch
from lpwm.core.json import parse_json
from lpwm.data.episodes import EpisodeData, Groups, assemble, offsets_of, spec_to_json, split_spec
from lpwm.data.formats.swm import check_columns, run_lengths
from lpwm.data.formats.tables import holds_numbers, numbers_of
from lpwm.data.frames.pictures import LanceFrames, broken, encode, lance_errors, lance_module, open_table
from lpwm.worlds.base import WorldSpec

_KEY = b"lpwm"  # of the table's metadata
QUALITY = 95  # of the JPEGs, as its own writer's


def read_lance(path: Path, pixels: bool = True) -> EpisodeData:
    """A table; its small columns in memory, its frames read on demand."""
    table = open_table(path)
    schema = table.schema
    with lance_errors(path):
        read = table.to_table(columns=[f.name for f in schema if holds_numbers(f.type)])
    columns = numbers_of(path, read)
    if "episode_idx" not in columns:
        raise UserError(f"{path} has no column 'episode_idx' (found {', '.join(schema.names) or 'nothing'}).")
    index = columns.pop("episode_idx").reshape(-1)
    if index.dtype.kind not in "iu":
        raise UserError(f"{path}: column 'episode_idx' has gaps: fill them, or drop those episodes.")
    lengths = run_lengths(path, "episode_idx", index.astype(np.int64))
    columns.pop("step_idx", None)
    total = int(lengths.sum())
    frames = None
    if pixels and "pixels" in schema.names:
        if str(schema.field("pixels").type) not in ("binary", "large_binary"):
            raise UserError(f"{path}: the column 'pixels' is {schema.field('pixels').type}, expected encoded pictures.")
        frames = LanceFrames(path, "pixels", total)
    said, spec = _said(path, schema.metadata)
    if "action" not in columns or ("state" not in columns and (frames is None or spec is not None)):
        lacks = "action" if "action" not in columns else "state"
        raise UserError(f"{path} has no column {lacks!r} of numbers (found {', '.join(schema.names)}).")
    actions = columns.pop("action").astype(np.float32)
    states = columns.pop("state", np.zeros((total, 0), np.float32)).astype(np.float32)
    check_columns(path, spec, states, actions, lengths)
    numbers = {"state": states, "action": actions}
    return assemble(numbers, lengths, pixels=frames, spec=spec, attributes=said, extra=columns)


def _said(path: Path, metadata: Mapping[bytes, bytes] | None) -> tuple[dict[str, Any], WorldSpec | None]:
    """What our writer added and the world's spec; {} and None for tables of others."""
    text = (metadata or {}).get(_KEY)
    try:
        return split_spec(parse_json(text, str(path)) if text else {})
    except (ValueError, KeyError, TypeError) as error:
        raise broken(path, "its metadata are damaged") from error


def write_lance(path: Path, groups: Groups, data: EpisodeData, overwrite: bool = False) -> None:
    """The episodes of `data`, group by group, as a table that appears under its name when it is complete."""
    lance = lance_module()
    import pyarrow as pa

    if path.exists() and not overwrite:
        raise UserError(f"{path} exists: choose another name, or pass --overwrite to replace it.")
    if path.is_file():
        raise UserError(f"{path} is a file: a Lance table is a folder, choose another name.")
    said = {**data.attributes, "world": json.loads(spec_to_json(data.spec)) if data.spec is not None else None}
    stream = iter(groups)
    first = next(stream)
    fields = [pa.field(name, pa.int32()) for name in ("episode_idx", "step_idx")]
    for name, values in first[0].items():
        kind = pa.binary() if name == "pixels" else pa.list_(pa.float32(), int(np.prod(values.shape[1:])))
        fields.append(pa.field(name.replace(".", "_"), kind))  # a dot would mean a field of a field
    schema = pa.schema(fields, metadata={_KEY: json.dumps(said, default=str).encode()})

    def batches() -> Iterator[Any]:
        done = 0
        for columns, lengths in itertools.chain([first], stream):
            yield _batch(pa, schema, columns, lengths, done)
            done += len(lengths)

    with disk_errors(path), scratch(path.parent, path.name) as temporary:
        lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), str(temporary), schema=schema)
        put(temporary, path)


def _batch(pa: Any, schema: Any, columns: Mapping[str, NDArray], lengths: NDArray, done: int) -> Any:
    rows = int(lengths.sum())
    index = np.repeat(np.arange(done, done + len(lengths)), lengths).astype(np.int32)
    steps = (np.arange(rows) - np.repeat(offsets_of(lengths), lengths)).astype(np.int32)
    arrays = [pa.array(index), pa.array(steps)]
    for name, values in columns.items():
        if name == "pixels":
            arrays.append(pa.array([encode(frame, "JPEG", quality=QUALITY) for frame in values], pa.binary()))
        else:
            flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
            arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(flat), flat.size // rows))
    return pa.record_batch(arrays, schema=schema)
