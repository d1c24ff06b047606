"""One set of colors and labels for page and figures: Okabe and Ito's, told apart with any color vision."""

from collections.abc import Iterable, Mapping

# Okabe–Ito, without the yellow that paper swallows; then the same made to stand on a dark ground.
LIGHT = ("#0072B2", "#C04F00", "#00795A", "#A8508A", "#8A6100", "#3B6FA0", "#4D4D4D")
DARK = ("#56B4E9", "#F0A36B", "#35C79B", "#E29AC6", "#E6C34A", "#9CC3EA", "#C8C8C8")
SPARSE, DENSE, OTHERS = 0, 1, range(2, len(LIGHT))  # indices into both
LABEL = {True: "sparse", False: "dense"}
METHODS = {"lpwm": "LpWM", "lpwm-tj": "LpWM+TJ", "lewm": "LeWM"}
GRAY, FAINT, INK, MARK, SHADE = "#6b6f76", "#c9c5ba", "#1c1e22", "#b00020", "#E9B44C"
MAP = "cividis"  # of 0…1 quantities: monotone in lightness, the same to all color vision


def called(name: str, sparse: bool) -> str:
    """`sparse LpWM`, `dense LeWM`: a method's name in every figure, page and table."""
    return f"{LABEL[sparse]} {METHODS.get(name, name)}"


def assign(methods: Iterable[tuple[str, bool]]) -> Mapping[str, int]:
    """A color for each (method, sparse): the first sparse and the first dense one have theirs everywhere."""
    out: dict[str, int] = {}
    for name, sparse in methods:
        own = SPARSE if sparse else DENSE
        if name not in out:
            taken = sum(index in OTHERS for index in out.values())
            out[name] = own if own not in out.values() else OTHERS[taken % len(OTHERS)]
    return out


def color(index: int) -> str:
    return GRAY if index < 0 else LIGHT[index]


def stops(count: int = 33) -> list[str]:
    """The color map at evenly spaced points, as #rrggbb."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps[MAP](i / (count - 1))) for i in range(count)]
