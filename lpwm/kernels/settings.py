"""How the kernels of the encoder's blocks are cut, by width of the stream: which forms run, in tiles of which size.

The function computed does not depend on it; `bench/encoder_stack.py` measures what is fastest on a GPU and writes what
`apply` reads. Nothing here needs Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from lpwm.core.errors import UserError


@dataclass(frozen=True)
class NormTiles:
    """LayerNorm: `rows` at a time, each in parts of `part` columns (0: one part, up to the next power of two).

    A part that is a power of two wastes no lanes and lets a row's sum stay within one warp.
    """

    rows: int = 8
    part: int = 0
    warps: int = 4
    span: int = 64  # backwards: rows that one program adds up
    stages: int = 1  # backwards: rows read ahead


@dataclass(frozen=True)
class GeluTiles:
    block: int = 1024  # forwards: numbers of one program
    warps: int = 4
    span: int = 128  # backwards: rows that one program adds up, `rows` × `cols` at a time
    rows: int = 16
    cols: int = 128
    warps_back: int = 4
    stages: int = 3


@dataclass(frozen=True)
class Product:
    """A matrix product with the GELU in its epilogue: tiles of rows × cols, the inner dimension `depth` at a time."""

    rows: int = 128
    cols: int = 128
    depth: int = 64
    warps: int = 8
    stages: int = 3


@dataclass(frozen=True)
class LastTiles:
    """The last block's attention: `rows` tokens at a time, in parts of `part` columns (as `NormTiles`)."""

    rows: int = 16
    part: int = 0
    warps: int = 4
    stages: int = 2  # rows read ahead
    registers: int = 0  # most of a thread; 0: as many as it needs


@dataclass(frozen=True)
class Settings:
    norm_forward: NormTiles = NormTiles()
    norm_backward: NormTiles = NormTiles()
    gelu: GeluTiles = GeluTiles()
    up: Product | None = None  # None: torch's product and a kernel of its own for the GELU
    down: Product | None = None
    last: LastTiles = LastTiles()
    last_backward: LastTiles = LastTiles()
    slope: bool = False  # with `up`: keep the GELU's derivative for the backward pass, not its argument


DEFAULT = Settings()
# Measured on an H200. Whether products have the GELU in them was decided by the whole step, which runs into the limit
# of power: there less traffic counts for more than a kernel's own time (docs/performance.md).
BY_WIDTH: dict[int, Settings] = {
    384: Settings(
        norm_forward=NormTiles(rows=4, part=128),
        norm_backward=NormTiles(rows=4, part=128, warps=2, span=32, stages=3),
        gelu=GeluTiles(span=64, rows=8, warps_back=2),
        up=Product(),
        down=Product(),
        slope=True,
        last=LastTiles(32, 128, stages=1),
        last_backward=LastTiles(32, 128, warps=8, stages=3, registers=128),
    ),
    192: Settings(
        norm_forward=NormTiles(rows=16, part=64, warps=8),
        norm_backward=NormTiles(rows=4, part=64, warps=2, span=32),
        gelu=GeluTiles(span=64, rows=8, warps_back=2),
        up=Product(),
        down=Product(cols=64, warps=4, stages=2),
        slope=True,
        last=LastTiles(32, 64, stages=3),
        last_backward=LastTiles(32, 64, registers=128),
    ),
}
_PARTS: dict[str, type] = {
    "norm_forward": NormTiles,
    "norm_backward": NormTiles,
    "gelu": GeluTiles,
    "up": Product,
    "down": Product,
    "last": LastTiles,
    "last_backward": LastTiles,
}


def of(width: int) -> Settings:
    return BY_WIDTH.get(width, DEFAULT)


def fused(chosen: Settings, serves: Callable[[Product], bool]) -> tuple[Product | None, Product | None, bool]:
    """Which products of the MLP have the GELU in them where `serves` says they can; and whether its derivative is kept,
    which is only where both sides are the kernels that write and read it."""
    up, down = (p if p is not None and serves(p) else None for p in (chosen.up, chosen.down))
    return up, down, chosen.slope and up is not None and down is not None


def read(found: Mapping[str, Any]) -> Settings:
    """Settings from their dictionary (`dataclasses.asdict`); what is left out is as by default."""
    known = {f.name for f in fields(Settings)}
    try:
        if not known.issuperset(found):
            raise TypeError(f"no field {sorted(set(found) - known)}")
        made = {k: _PARTS[k](**v) if k in _PARTS and v is not None else v for k, v in found.items()}
    except TypeError as error:
        raise UserError(f"these are no settings of the encoder's kernels ({error}): measure them anew.") from None
    return Settings(**made)


def apply(found: Mapping[str, Any]) -> None:
    """Uses settings by width, as `bench/encoder_stack.py` writes them: {"384": {...}, "192": {...}}."""
    BY_WIDTH.update({int(width): read(one) for width, one in found.items()})
