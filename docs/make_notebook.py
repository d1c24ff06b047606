"""Makes notebooks/*.ipynb from notebooks/*.py: runs their cells in order and stores what they print and draw.

    python docs/make_notebook.py [NAME ...]

A cell begins with a line "# %%", a cell of text with "# %% [markdown]".
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent / "notebooks"


def cells(name: str) -> list[tuple[str, str]]:
    """(code or markdown, source) of each cell."""
    parts = re.split(r"^# %%(.*)\n", (HERE / f"{name}.py").read_text(), flags=re.M)[1:]
    out = []
    for head, body in zip(parts[::2], parts[1::2], strict=True):
        if "markdown" in head:
            out.append(("markdown", re.sub(r"^# ?", "", body.strip(), flags=re.M)))
        else:
            out.append(("code", body.strip()))
    return out


def run_cells(name: str) -> list[dict]:
    """Every cell as notebook JSON, executed."""
    space: dict = {"__name__": "notebook"}
    out, count = [], 0
    for kind, text in cells(name):
        cell: dict = {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
        if kind == "code":
            count += 1
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(text, f"cell {count}", "exec"), space)
            outputs: list[dict] = []
            if printed.getvalue():
                lines = printed.getvalue().splitlines(keepends=True)
                outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
            for number in plt.get_fignums():
                picture = io.BytesIO()
                plt.figure(number).savefig(picture, format="png", dpi=80, bbox_inches="tight")
                data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
                outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
            plt.close("all")
            cell |= {"execution_count": count, "outputs": outputs}
        out.append(cell)
    return out


def notebook(name: str) -> dict:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": run_cells(name), "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.py")):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            made = notebook(name)
        (HERE / f"{name}.ipynb").write_text(json.dumps(made, indent=1) + "\n")
