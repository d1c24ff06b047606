"""One set of colors for page and figures: Okabe and Ito's eight, told apart with any color vision."""

from __future__ import annotations

# Okabe–Ito, without the yellow that paper swallows; then the same made to stand on a dark ground.
LIGHT = ("#0072B2", "#C04F00", "#00795A", "#A8508A", "#8A6100", "#3B6FA0", "#4D4D4D")
DARK = ("#56B4E9", "#F0A36B", "#35C79B", "#E29AC6", "#E6C34A", "#9CC3EA", "#C8C8C8")
MAP = "cividis"  # of 0…1 quantities: monotone in lightness, the same to all color vision


def stops(count: int = 33) -> list[str]:
    """The color map at evenly spaced points, as #rrggbb."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps[MAP](i / (count - 1))) for i in range(count)]
