"""Parquet and CSV files as arrays of numbers, and lines of JSON: bounded before they are read."""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError, damaged, need
from lpwm.core.files import regular
from lpwm.core.json import MAX_BYTES, parse_json
from lpwm.core.memory import need_memory


def arrow() -> Any:
    sentence = "reading tables of numbers needs pyarrow: pip install 'lpwm[lerobot]'."
    parts = [need(f"pyarrow{part}", sentence) for part in ("", ".compute", ".csv", ".parquet")]
    return parts[0]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """A JSON object per line."""
    if regular(path).stat().st_size > MAX_BYTES:
        raise UserError(f"{path} is larger than {MAX_BYTES >> 20} MiB, too large for a list: copy it again.")
    return [parse_json(line, f"{path}, line {n}") for n, line in enumerate(path.read_bytes().splitlines(), 1) if line]


def texts(text: Any) -> list[str]:
    """The strings of an attribute that is a JSON list of them; [] for anything else."""
    try:
        values = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return []
    return [str(value) for value in values] if isinstance(values, list) else []


def read_table(path: Path, names: Iterable[str] | None = None) -> dict[str, NDArray]:
    """The columns of numbers of a parquet or CSV file, in memory: a row is a number, or a list as long as the others.
    names: the columns to read, which must be there; None: all that hold numbers."""
    pa = arrow()
    regular(path)
    try:
        if path.suffix.lower() == ".csv":
            need_memory(str(path), 8 * path.stat().st_size)  # a number takes at least a digit and a comma
            table = pa.csv.read_csv(path)
        else:
            table = _parquet(pa, path, names)
        missing = sorted(set(names or ()) - set(table.column_names))
        if missing:
            raise UserError(f"{path} has no column {missing[0]!r} (found {', '.join(table.column_names)[:200]}).")
        return numbers_of(path, table, names)
    except UserError:
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, MemoryError, OverflowError) as error:
        raise damaged(path, error) from error


def _parquet(pa: Any, path: Path, names: Iterable[str] | None) -> Any:
    file = pa.parquet.ParquetFile(path)
    if names is None:
        names = [field.name for field in file.schema_arrow if _counts(field)]
    wanted, meta = set(names), file.metadata
    rows = sum(meta.row_group(i).num_rows for i in range(meta.num_row_groups))
    # A few bytes can claim any number of equal rows: refuse before they are allocated. (The columns' own counts would
    # be exact, but pyarrow aborts the process where they are damaged.)
    size = 16 * rows * sum(getattr(f.type, "list_size", 1) for f in file.schema_arrow if f.name in wanted)
    need_memory(str(path), size if size >= 0 else math.inf)
    return file.read(columns=[name for name in file.schema_arrow.names if name in wanted])


def numbers_of(path: Path, table: Any, names: Iterable[str] | None = None) -> dict[str, NDArray]:
    """These columns of an Arrow table, or all that hold numbers."""
    pa = arrow()
    every = names if names is not None else [f.name for f in table.schema if _counts(f)]
    return {name: _numbers(pa, path, name, table[name]) for name in every}


def _counts(field: Any) -> bool:
    """It holds numbers, or should: text in a column of the action or the state is refused, not left out."""
    return holds_numbers(field.type) or bool(re.match(r"(action|(observation\.)?state)($|[\W_\d])", field.name))


def holds_numbers(kind: Any) -> bool:
    pa = arrow()
    while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _numbers(pa: Any, path: Path, name: str, column: Any) -> NDArray:
    """(rows, …); a number that is missing is NaN."""
    kind = column.type
    if not holds_numbers(kind):
        raise UserError(f"{path}: column {name!r} holds {str(kind)[:60]}, expected numbers: fix or rename it.")
    array, shape = column.combine_chunks(), [len(column)]
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], kind)
    while not pa.types.is_primitive(array.type):
        sizes = pa.compute.unique(pa.compute.list_value_length(array)).to_pylist()
        if len(sizes) > 1 or None in sizes:
            raise UserError(f"{path}: the rows of column {name!r} differ in length: all must be alike.")
        shape.append(sizes[0] if sizes else 0)
        array = array.flatten()
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "fiub":  # truth values with gaps
        values = values.astype(np.float32)
    return values.reshape(shape)
