"""Makes first-look.ipynb: runs the cells below in order and stores what they print and draw.

python docs/make_notebook.py
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

CELLS: list[tuple[str, str]] = [
    ("markdown", "# A first look\n\nA world, its data, a model, a plan. The model here is tiny and trained for seconds: it "
     "shows how things fit together, not how well they work (`lpwm demo` does that)."),
    ("markdown", "## A world is a few tensor functions"),
    ("code", """import matplotlib.pyplot as plt
import torch
from lpwm import worlds

world = worlds.make("piecewise", visible=True)
states = world.sample_state(6, key=(0, "look"))
frames = world.render(states, 96)
print(frames.shape, frames.dtype, "zones:", world.factors(states)["zone"].tolist())
fig, axes = plt.subplots(1, 6, figsize=(9, 1.7))
for axis, frame in zip(axes, frames):
    axis.imshow(frame.permute(1, 2, 0))
    axis.axis("off")"""),
    ("markdown", "## A run: data, model, training, all from one config"),
    ("code", """from pathlib import Path
from lpwm.recipes import recipe
from lpwm.train import Run, load, pick_device

run = Run.create(recipe("tiny/lpwm"), Path("runs"), "look")
run.train(pick_device("cpu"), console=False)
print("data:", run.data.episodes, "episodes,", run.data.steps, "steps, digest", run.data.digest[:12])"""),
    ("markdown", "## Codes are non-negative, with exact zeros"),
    ("code", """it = load(run.folder)
with torch.no_grad():
    z = it.model.encode(it.world.render(it.world.sample_state(40, (1,)), it.image))
print("active:", round((z > 0).float().mean().item(), 2), " smallest:", z.min().item())
fig, axis = plt.subplots(figsize=(7, 1.8))
axis.imshow((z > 0).T, aspect="auto", cmap="Grays", interpolation="nearest")
axis.set(xlabel="frame", ylabel="unit", title="supports")"""),
    ("markdown", "## A plan: CEM towards the code of a goal image"),
    ("code", """from lpwm.plan import CEMConfig, LatentProblem

start, goal = it.world.sample_state(8, (2,)), it.world.sample_goal(8, (2,))
with torch.no_grad():
    z0, zg = (it.model.encode(it.world.render(s, it.image)) for s in (start, goal))
plan = CEMConfig(samples=64, elites=8, iterations=8).build().solve(LatentProblem(it.model, z0[:, None], zg, horizon=5))
nothing = LatentProblem(it.model, z0[:, None], zg, horizon=5).cost(torch.zeros(8, 1, 5, it.model.action_dim))
print("predicted cost: plan", round(plan.costs_B.mean().item(), 5), " doing nothing", round(nothing.mean().item(), 5))"""),
    ("markdown", "Predicted cost is not success: `lpwm eval` executes plans in the world, beside the controls."),
]  # fmt: skip


def run_cells() -> list[dict]:
    """Every cell as notebook JSON, executed."""
    space: dict = {"__name__": "notebook"}
    out, count = [], 0
    for kind, text in CELLS:
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


def notebook() -> dict:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": run_cells(), "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        made = notebook()
    (here / "first-look.ipynb").write_text(json.dumps(made, indent=1) + "\n")
