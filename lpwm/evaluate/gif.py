"""An episode as a GIF or an mp4: what happened, the goal, and the latent distance over time."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from lpwm.core.errors import UserError
from lpwm.core.files import make_folder, replacing
from lpwm.data.frames.video import decoder
from lpwm.evaluate.episodes import Record
from lpwm.evaluate.goals import EpisodeSet

SIDE, GAP, CURVE = 224, 8, 72  # pixels
INK, SEEN, FORECAST, DONE = (40, 40, 40), (30, 90, 200), (230, 130, 30), (30, 150, 60)


def episode_gif(path: str | Path, world: Any, episodes: EpisodeSet, record: Record, index: int, every: int = 1) -> Path:
    """Writes episode `index` of a record, as mp4 if the path ends so; `every` raw steps a frame, 50 ms a raw step.

    Below the pictures the latent distance to the goal: blue as seen, orange as the plan in force forecast it,
    up to now. Green border: success at this very step.
    """
    if not 0 <= index < len(record.ids):
        raise UserError(f"there is no episode {index}: the record has 0 to {len(record.ids) - 1}.")
    assert record.ids == episodes.ids
    shown = [*range(0, record.steps, every), record.steps]
    happened = _pictures(world, torch.from_numpy(record.states_BTS[index][shown]))
    goal = _pictures(world, episodes.goal_BS[index : index + 1])[0]
    frames = [_compose(picture, goal, record, index, step) for picture, step in zip(happened, shown, strict=True)]
    make_folder(Path(path).parent)
    with replacing(Path(path)) as temporary:
        if Path(path).suffix == ".mp4":
            _film(temporary, frames, Fraction(20, every))
            return Path(path)
        duration = [50 * every] * (len(frames) - 1) + [1500]
        options: dict[str, Any] = {"duration": duration, "loop": 0, "optimize": True}
        frames[0].save(temporary, format="GIF", save_all=True, append_images=frames[1:], **options)
    return Path(path)


def _film(path: Path, frames: list[Image.Image], rate: Fraction) -> None:
    """The last frame stays for 1.5 s, as in the GIF."""
    av = decoder()
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=rate, options={"crf": "23"})
        stream.width, stream.height, stream.pix_fmt = *frames[0].size, "yuv420p"
        for frame in [*frames, *frames[-1:] * int(1.5 * rate)]:
            container.mux(stream.encode(av.VideoFrame.from_image(frame.convert("RGB"))))
        container.mux(stream.encode())


def _pictures(world: Any, state_NS: torch.Tensor) -> list[Image.Image]:
    frames = world.render(state_NS).cpu().permute(0, 2, 3, 1).contiguous().numpy()
    return [Image.fromarray(f).resize((SIDE, SIDE), Image.Resampling.BILINEAR) for f in frames]


def _compose(picture: Image.Image, goal: Image.Image, record: Record, index: int, step: int) -> Image.Image:
    wide = 2 * SIDE + 3 * GAP
    sheet = Image.new("RGB", (wide, SIDE + 3 * GAP + CURVE + 14), "white")
    draw = ImageDraw.Draw(sheet)
    for at, image, title in ((GAP, picture, f"step {step}"), (SIDE + 2 * GAP, goal, "goal")):
        sheet.paste(image, (at, GAP + 12))
        draw.text((at, 4), title, fill=INK)
    if step and record.success_BT[index, step - 1]:
        box = (GAP - 3, GAP + 9, GAP + SIDE + 2, GAP + SIDE + 14)
        draw.rectangle(box, outline=DONE, width=3)
        draw.text((GAP + 60, 4), "success", fill=DONE)
    top = SIDE + 2 * GAP + 12
    _curves(draw, record, index, step, (GAP, top, wide - GAP, top + CURVE))
    return sheet.quantize(64, dither=Image.Dither.NONE)


def _curves(draw: ImageDraw.ImageDraw, record: Record, index: int, step: int, box: tuple[int, int, int, int]) -> None:
    left, top, right, bottom = box
    draw.rectangle(box, outline=(200, 200, 200))
    # What was forecast begins after the first block. A control plans in no latent space.
    traces = (("latent", 0, SEEN), ("predicted", 1, FORECAST))
    lines = [(record.traces[n][index], first, ink) for n, first, ink in traces if n in record.traces]
    block, title = record.frameskip, "latent distance: seen (blue), forecast (orange)"
    if not lines:
        lines, block, title = [(record.distance_BT[index], 0, SEEN)], 1, "distance to the goal"
    draw.text((left + 4, top + 2), title, fill=INK)
    highest = max(float(np.nanmax(y)) for y, *_ in lines) or 1.0
    for y, first, color in lines:
        x = (np.arange(len(y)) + first) * block
        at = left + 2 + (right - left - 4) * x / record.steps
        height = bottom - 2 - (bottom - top - 18) * y / highest
        points = [(float(a), float(b)) for a, b, now in zip(at, height, x <= step, strict=True) if now]
        if len(points) > 1:
            draw.line(points, fill=color, width=2)
        for a, b in points:
            draw.ellipse((a - 1.5, b - 1.5, a + 1.5, b + 1.5), fill=color)
