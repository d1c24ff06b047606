"""stable-worldmodel's Lance tables, read and written.

A row per frame: `episode_idx` and `step_idx` int32, numbers as lists of float32 of fixed size, frames as JPEG in the
binary column `pixels`. What our files say besides (world, seed, policy, …) is kept in the table's own metadata, which
its readers ignore.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lpwm.core.errors import UserError
from lpwm.core.files import disk_errors, put, scratch
from lpwm.data.episodes import (
    EpisodeData,
    assemble,
    combine,
    hash_columns,
    offsets_of,
    runs_from_json,
    spec_from_json,
    spec_to_json,
)
from lpwm.data.formats.swm import check_columns, run_lengths
from lpwm.data.frames.jpegs import LanceFrames, broken, lance_module, open_table
from lpwm.worlds.base import WorldSpec

_KEY = b"lpwm"  # of the table's metadata
QUALITY = 95  # of the JPEGs, as its own writer's


def read_lance(path: Path, pixels: bool = True) -> EpisodeData:
    """A table; its small columns in memory, its frames read on demand."""
    table = open_table(path)
    schema = table.schema
    columns = _columns(path, table, [field.name for field in schema if _is_numbers(field.type)])
    if "episode_idx" not in columns:
        raise UserError(
            f"{path} has no column 'episode_idx': expected stable-worldmodel's layout (found "
            f"{', '.join(schema.names) or 'nothing'})."
        )
    lengths = run_lengths(path, "episode_idx", columns.pop("episode_idx").reshape(-1).astype(np.int64))
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
    read = {"state": states, "action": actions}
    return assemble(
        read,
        lengths,
        digest=combine(hash_columns(read, lengths, said.get("held_out"))),
        pixels=frames,
        spec=spec,
        attributes=said,
        held_out=runs_from_json(said["held_out"], len(lengths)) if "held_out" in said else None,
        extra=columns,
    )


def _is_numbers(kind: Any) -> bool:
    """A number, or a list of fixed size of them."""
    text = str(getattr(kind, "value_type", kind))
    return text in ("float", "double", "halffloat", "bool") or text.removeprefix("u").startswith("int")


def _columns(path: Path, table: Any, names: list[str]) -> dict[str, NDArray]:
    try:
        values_of = table.to_table(columns=names)
        out = {}
        for name in names:
            column = values_of[name].combine_chunks()
            size = getattr(column.type, "list_size", None)
            if column.null_count:
                raise UserError(f"{path}: column {name!r} has gaps: fill them, or drop those episodes.")
            values = (column.flatten() if size else column).to_numpy(zero_copy_only=False)
            out[name] = values.reshape(-1, size) if size else values
        return out
    except UserError:
        raise
    except (ValueError, OSError, RuntimeError) as error:
        raise broken(path, error) from error


def _said(path: Path, metadata: Mapping[bytes, bytes] | None) -> tuple[dict[str, Any], WorldSpec | None]:
    """What our writer added and the world's spec; {} and None for tables of others."""
    text = (metadata or {}).get(_KEY)
    try:
        said = json.loads(text) if text else {}
        if not isinstance(said, dict):
            raise ValueError("not an object")
        return said, spec_from_json(json.dumps(said.pop("world"))) if said.get("world") else None
    except (ValueError, KeyError, TypeError) as error:
        raise broken(path, "its metadata are damaged") from error


def write_lance(
    path: Path,
    groups: Iterable[tuple[Mapping[str, NDArray], NDArray]],
    *,
    spec: WorldSpec | None,
    attributes: Mapping[str, Any],
    overwrite: bool = False,
) -> None:
    """Groups of whole episodes (columns, lengths) as a table that appears under its name when it is complete."""
    lance = lance_module()
    import pyarrow as pa

    if path.exists() and not overwrite:
        raise UserError(f"{path} exists: choose another name, or pass --overwrite to replace it.")
    if path.is_file():
        raise UserError(f"{path} is a file: a Lance table is a folder, choose another name.")
    said = {**attributes, "world": json.loads(spec_to_json(spec)) if spec is not None else None}
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
            arrays.append(pa.array([_jpeg(frame) for frame in values], pa.binary()))
        else:
            flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
            arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(flat), flat.size // rows))
    return pa.record_batch(arrays, schema=schema)


def _jpeg(frame: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(frame).save(out, format="JPEG", quality=QUALITY)
    return out.getvalue()
