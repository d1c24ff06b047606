"""How every static figure of this room is made into files, and into pictures that a page carries."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from lpwm.core.files import disk_errors, make_folder

GRAY = "#6b6f76"
Make = Callable[[], Figure]


def style() -> Any:
    return matplotlib.rc_context(fname=str(resources.files("lpwm.report") / "assets" / "lpwm.mplstyle"))


def save(folder: str | Path, figures: Mapping[str, Make], formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Every figure as NAME.png and NAME.pdf; the files written. The same numbers give the same files."""
    place, written = Path(folder), []
    make_folder(place)
    with style():
        for name, make in figures.items():
            figure = make()
            for kind in formats:
                path = place / f"{name}.{kind}"
                with disk_errors(path):
                    figure.savefig(path, metadata={"CreationDate": None} if kind == "pdf" else {})
                written.append(path)
    return written


def picture(make: Make, caption: str, alt: str, dpi: int = 110) -> str:
    """A figure as HTML that needs no other file: an image in the page, with words for who does not see it."""
    data = io.BytesIO()
    with style():
        make().savefig(data, format="png", dpi=dpi, metadata={"Software": None})
    code = base64.b64encode(data.getvalue()).decode()
    return (
        f'<figure class="still"><figcaption>{escape(caption)}</figcaption>'
        f'<img alt="{escape(alt)}" src="data:image/png;base64,{code}"></figure>'
    )
