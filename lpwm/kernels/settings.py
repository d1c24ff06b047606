"""How the encoder's kernels are cut, by width of the stream. What they compute does not depend on it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tiles:
    rows: int = 8  # at a time
    part: int = 0  # columns of a row at a time; 0: all, up to the next power of two
    warps: int = 4
    stages: int = 1  # rows read ahead
    span: int = 64  # LayerNorm backwards: rows that one program adds up
    registers: int = 0  # at most, per thread; 0: as many as it needs


@dataclass(frozen=True)
class Product:
    rows: int = 128  # of a tile of the result
    cols: int = 128
    depth: int = 64  # of the inner dimension at a time
    warps: int = 8
    stages: int = 3


@dataclass(frozen=True)
class Settings:
    norm_forward: Tiles = Tiles()
    norm_backward: Tiles = Tiles()
    last: Tiles = Tiles(16, stages=2)
    last_backward: Tiles = Tiles(16, stages=2)
    up: Product = Product()
    down: Product = Product()


# The fastest of those tried on an H200 (bench/results/encoder_stack_h200.json).
_BY_WIDTH = {
    384: Settings(
        norm_forward=Tiles(4, 128),
        norm_backward=Tiles(4, 128, warps=2, stages=3, span=32),
        last=Tiles(32, 128),
        last_backward=Tiles(32, 128, warps=8, stages=3, registers=128),
    ),
    192: Settings(
        norm_forward=Tiles(16, 64, warps=8),
        norm_backward=Tiles(4, 64, warps=2, span=32),
        last=Tiles(32, 64, stages=3),
        last_backward=Tiles(32, 64, stages=2, registers=128),
        down=Product(cols=64, warps=4, stages=2),
    ),
}


def of(width: int) -> Settings:
    return _BY_WIDTH.get(width, Settings())
