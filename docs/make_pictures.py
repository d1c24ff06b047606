"""The pictures of README and home page: `python docs/make_pictures.py [NAME ...]`. About a minute for all.

dots      dots.gif: the packaged models on the same start and goal: what the camera saw, and what each imagined
pusht     pusht.gif: one episode of the scripted pusher whose data PushT models learn from
success   success.png: success of trained models next to the controls, from results/*.json
worlds    worlds/*.png: a frame of every world
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import lpwm
from lpwm.evaluate.results import Evaluation
from lpwm.interpret.decode import Decoder, imagination
from lpwm.report import palette
from lpwm.train import load
from lpwm.train.pretrained import unpack

OUT = Path(__file__).parent / "pictures"
SIDE, GAP, TOP = 200, 10, 26
THUMBNAILS = {"piecewise": {"visible": True}, "two_room": {}, "wall": {}, "pusht": {}, "cube": {}}


def picture(frame_3ss: torch.Tensor, side: int = SIDE) -> Image.Image:
    return Image.fromarray(frame_3ss.permute(1, 2, 0).numpy()).resize((side, side), Image.Resampling.BICUBIC)


def episode(folder: Path, decoder: Decoder, world: lpwm.worlds.World, start: torch.Tensor, goal: torch.Tensor):
    """(state, imagined frame at the end of the plan in force) before every step of one planned episode."""
    agent = lpwm.load(folder, preset="path", seed=3)
    agent.reset(goal=world.render(goal).permute(0, 2, 3, 1)[0])
    state, out, shown = start, [], None
    for t in range(51):
        frame = world.render(state).permute(0, 2, 3, 1)[0]
        action = agent.act(frame)
        if t % agent.frameskip == 0:
            with torch.no_grad():
                z = agent.model.encode(world.render(state, agent.image_size))
                codes = agent.model.rollout(z[:, None], agent.plan.actions_BHA[:, None])[0, 0]
                shown = (decoder(codes[-1]) * 255).round().to(torch.uint8)
        out.append((state, shown))
        state = world.step(state, torch.as_tensor(action)[None])
    return out


def dots(path: Path) -> None:
    world = lpwm.make_world("piecewise")
    start, goal = torch.tensor([[45.0, 180.0]]), torch.tensor([[165.0, 55.0]])
    columns = []
    with tempfile.TemporaryDirectory() as root:
        for name, label in (("lpwm", "sparse"), ("lewm", "dense")):
            folder = unpack(name, root)
            decoder = imagination(load(folder))[2]
            columns.append((label, palette.LIGHT[label == "dense"], episode(folder, decoder, world, start, goal)))
    font = ImageFont.load_default(15)
    frames = []
    for t in range(len(columns[0][2])):
        sheet = Image.new("RGB", (4 * SIDE + 5 * GAP, SIDE + TOP + 2 * GAP), "white")
        draw = ImageDraw.Draw(sheet)
        for k, (label, color, steps) in enumerate(columns):
            state, imagined = steps[t]
            seen = picture(world.render(state)[0])
            ring = ImageDraw.Draw(seen)
            x, y = (float(v) * SIDE / 224 for v in goal[0])
            ring.ellipse((x - 9, y - 9, x + 9, y + 9), outline="#1c1e22", width=2)
            for j, (title, shown) in enumerate(((f"{label}: seen", seen), ("imagined", picture(imagined)))):
                left = GAP + (2 * k + j) * (SIDE + GAP)
                draw.text((left, 6), title, fill=color, font=font)
                sheet.paste(shown, (left, TOP))
                draw.rectangle((left - 1, TOP - 1, left + SIDE, TOP + SIDE), outline=color)
        frames.append(sheet.quantize(64, dither=Image.Dither.NONE))
    duration = [70] * (len(frames) - 1) + [1500]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=duration, loop=0, optimize=True)


def pusht(path: Path) -> None:
    """Of twelve episodes the one in which the T moves furthest."""
    world = lpwm.make_world("pusht")
    with tempfile.TemporaryDirectory() as root:
        data = lpwm.collect(world, Path(root) / "pusht.h5", 12, steps=120, seed=5)
        runs = [data.episode(e)[0] for e in range(data.episodes)]
    states = max(runs, key=lambda s: float((s[-1, 2:4] - s[0, 2:4]).norm()))
    frames = [picture(frame, 224).quantize(32, dither=Image.Dither.NONE) for frame in world.render(states[::2])]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=80, loop=0, optimize=True)


SHOWN = {  # file, cell (goals, executed blocks), budget, title
    "end": ("piecewise-small-pairs-end.json", 5, 50, "dots, random goals, 50 steps\nplans judged by their end"),
    "path": ("piecewise-small-pairs-path.json", 5, 50, "dots, the same models and goals\nplans judged by their path"),
    "pusht": ("pusht-small-replication-closed.json", 5, 250, "PushT, goals from recordings\n250 steps"),
}


def success(path: Path) -> None:
    """Bars of success with 95 % intervals: models and controls on the same episodes."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    results = Path(__file__).parents[1] / "results"
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(9, 2.6))
    for axis, (file, receding, budget, title) in zip(axes, SHOWN.values(), strict=True):
        evaluation = Evaluation.read(results / file)
        cell = next(c for c in evaluation.cells if c.receding in (0, receding))
        rows = sorted(cell.rows, key=lambda row: (bool(row.control), "lewm" in row.name))
        for k, row in enumerate(rows):
            rate = row.at(budget).latched
            color = palette.GRAY if row.control else palette.LIGHT["lewm" in row.name]
            axis.barh(k, 100 * rate.rate, color=color, height=0.7)
            axis.plot([100 * rate.low, 100 * rate.high], [k, k], color=palette.INK, linewidth=1.5)
            inside = rate.high > 0.9
            style = {"color": "white", "ha": "right"} if inside else {}
            at = 100 * (rate.low - 0.02 if inside else rate.high + 0.02)
            axis.text(at, k, f"{100 * rate.rate:.0f}", va="center", fontsize=9, **style)
        names = {dense: palette.called("lewm" if dense else "lpwm", not dense) for dense in (False, True)}
        labels = [row.name if row.control else names["lewm" in row.name] for row in rows]
        if axis is axes[0]:
            axis.set_yticks(range(len(rows)), ["oracle: the true simulator" if n == "oracle" else n for n in labels])
        else:
            axis.set_yticks([])
        if len(rows) < 5:
            axis.text(2, 4, "oracle not run", va="center", fontsize=9, color=palette.GRAY)
        axis.set_ylim(4.6, -0.6)
        axis.set(xlim=(0, 100), xlabel="goals reached (%)")
        axis.set_title(title, fontsize=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def thumbnails(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in THUMBNAILS.items():
        world = lpwm.make_world(name, **options)
        frame = world.render(world.sample_state(1, (7, "thumbnail")))[0]
        picture(frame.cpu(), 112).save(folder / f"{name}.png")


if __name__ == "__main__":
    np.seterr(all="raise")
    OUT.mkdir(exist_ok=True)
    targets = {"dots": (dots, "dots.gif"), "pusht": (pusht, "pusht.gif"), "success": (success, "success.png")}
    targets["worlds"] = (thumbnails, "worlds")
    for name in sys.argv[1:] or targets:
        make, target = targets[name]
        make(OUT / target)
