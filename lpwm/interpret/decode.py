"""Imagination made visible: a small decoder from codes to frames, fitted after training to frozen codes.

It is an aid for reading and no part of the model: the model neither trains with it nor plans with it. What it cannot
draw, the code may still hold; next to it stands the nearest training frame, which needs no fitting.

Legend: N frames, D latent width, s side of a decoded frame, P = 3·s² pixels, Q components, b clips, H depths.
"""

import io
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor, nn

from lpwm.core.config import digest
from lpwm.core.errors import UserError
from lpwm.core.files import check_output, make_folder, write_whole
from lpwm.data.clips import resize
from lpwm.interpret.config import DecoderConfig
from lpwm.interpret.results import Result, WorldInfo
from lpwm.interpret.study import made
from lpwm.train import Loaded, Run
from lpwm.train.monitors import held_out_clips
from lpwm.train.weights import read_tensors

EPOCHS = 100  # of few frames, at most: the decoder's steps are for thousands
GUESSES = ("imagined", "decoded", "nearest", "copy", "mean")  # of a frame that is not seen


class Decoder(nn.Module):
    """(…, D) -> (…, 3, s, s) between 0 and 1: mean frame + principal components · network(normalized code)."""

    shift: Tensor
    scale: Tensor
    mean: Tensor
    basis: Tensor

    def __init__(self, latent: int, side: int, components: int, hidden: int) -> None:
        super().__init__()
        self.side = side
        sizes = {"shift": (latent,), "scale": (latent,), "mean": (3 * side**2,), "basis": (components, 3 * side**2)}
        for name, shape in sizes.items():
            self.register_buffer(name, torch.zeros(shape))
        layers = (nn.Linear(latent, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU())
        self.network = nn.Sequential(*layers, nn.Linear(hidden, components))

    def forward(self, z: Tensor) -> Tensor:
        flat = self.mean + self.network((z - self.shift) * self.scale) @ self.basis
        return flat.clamp(0, 1).unflatten(-1, (3, self.side, self.side))


def fit_decoder(z_ND: Tensor, frames_N3ss: Tensor, config: DecoderConfig) -> Decoder:
    """Least squares on pixels. The network predicts principal components, a tenth of the pixels: seconds on a CPU."""
    x_NP = frames_N3ss.flatten(1).float() / 255
    count, side = len(x_NP), frames_N3ss.shape[-1]
    components = min(config.components, count - 1, x_NP.shape[1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        decoder = Decoder(z_ND.shape[1], side, components, config.hidden).to(z_ND.device)
        decoder.mean.copy_(x_NP.mean(0))
        decoder.shift.copy_(z_ND.mean(0))
        spread_D = z_ND.std(0)
        floor = 0.3 * spread_D.square().mean().sqrt() + 1e-6  # a unit that is hardly ever on is not blown up
        decoder.scale.copy_(1 / spread_D.clamp(min=floor))
        _, _, basis_PQ = torch.svd_lowrank(x_NP - decoder.mean, q=components, niter=1)
        target_NQ = (x_NP - decoder.mean) @ basis_PQ
        spread = target_NQ.std().clamp(min=1e-6)
        decoder.basis.copy_(basis_PQ.T * spread)
        input_ND, target_NQ = (z_ND - decoder.shift) * decoder.scale, target_NQ / spread
        optimizer = torch.optim.AdamW(decoder.network.parameters(), lr=config.lr)
        batch = min(config.batch, count)
        steps = min(config.steps, EPOCHS * math.ceil(count / batch))
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.lr, total_steps=steps)
        for _ in range(steps):
            rows = torch.randint(count, (batch,)).to(z_ND.device)
            loss = (decoder.network(input_ND[rows]) - target_NQ[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return decoder.eval()


def decoder_of(
    loaded: Loaded, run: Run, config: DecoderConfig, fitted_to: tuple[Tensor, Tensor] | None = None
) -> Decoder:
    """The decoder of a checkpoint: fitted once where studies of the run are kept, in its folder `interpret`.
    fitted_to: training codes and frames, where the caller has them."""
    path = loaded.path / "interpret" / f"decoder-{loaded.step}-{digest(config)}.safetensors"
    device = next(loaded.model.parameters()).device
    with suppress(UserError, KeyError, IndexError, RuntimeError):  # not there, or damaged: fitted anew
        tensors = read_tensors(path)
        (hidden, latent), (components, pixels) = (tensors[n].shape for n in ("network.0.weight", "basis"))
        decoder = Decoder(latent, math.isqrt(pixels // 3), components, hidden)
        decoder.load_state_dict(tensors)
        return decoder.to(device).eval()
    decoder = fit_decoder(*(fitted_to or training_codes(loaded, run, config)), config)
    if path.parent.is_dir():
        with suppress(UserError, OSError):  # it is fitted again where it cannot be written
            check_output(path, overwrite=True)
            write_whole(path, save({name: t.detach().cpu().contiguous() for name, t in decoder.state_dict().items()}))
    return decoder


@dataclass(frozen=True)
class Strip:
    """A picture of one held-out clip: rows what happened, what was imagined, nearest training frames; a column a
    depth, the frame seen first."""

    outcome: str  # "success": most is gained over copying; "failure": the largest error
    file: str  # next to the result
    error: float
    copy: float


@dataclass(frozen=True, kw_only=True)
class Imagination(Result):
    """Mean squared pixel errors (0 to 1) of held-out frames at rollout depth 1 to H."""

    KIND: ClassVar[str] = "lpwm imagination"

    imagined: tuple[float, ...]  # the decoded prediction
    decoded: tuple[float, ...]  # the decoded code of the true frame: what the decoder itself misses
    nearest: tuple[float, ...]  # the training frame whose code is nearest to the prediction
    copy: tuple[float, ...]  # the last frame seen
    mean: tuple[float, ...]  # the mean training frame
    side: int
    clips: int
    settings: DecoderConfig
    strips: tuple[Strip, ...] = ()

    def table(self) -> str:
        from lpwm.evaluate.table import columns

        rows = [[name, *(f"{1000 * v:.2f}" for v in getattr(self, name))] for name in GUESSES]
        title = f"{self.run.name}: 1000 × squared pixel error by depth, {self.clips} held-out clips"
        return columns(["", *map(str, range(1, len(self.imagined) + 1))], rows, 80, title)


@dataclass(frozen=True)
class Strips:
    """What rollouts look like: uint8 (b, 1 + H, 3, s, s) each, the frame seen first; and the errors of each clip."""

    seen: Tensor
    imagined: Tensor
    nearest: Tensor
    error_b: Tensor
    copy_b: Tensor

    def save(self, folder: Path, stem: str) -> tuple[Strip, ...]:
        """FOLDER/STEM-OUTCOME.webp of a success and of a failure."""
        make_folder(folder)
        chosen = {"success": int((self.copy_b - self.error_b).argmax()), "failure": int(self.error_b.argmax())}
        out = []
        for outcome, i in chosen.items():
            name, rows = f"{stem}-{outcome}.webp", torch.stack((self.seen[i], self.imagined[i], self.nearest[i]))
            write_whole(folder / name, sheet(nn.functional.pad(rows, (1, 1, 1, 1), value=220)))
            errors = (round(float(e[i]), 7) for e in (self.error_b, self.copy_b))
            out.append(Strip(outcome, name, *errors))
        return tuple(out)


def sheet(frames_RC3ss: Tensor) -> bytes:
    """uint8 frames in rows and columns, as one WebP picture."""
    R, C, _, s, _ = frames_RC3ss.shape
    rows = frames_RC3ss.cpu().permute(0, 3, 1, 4, 2).reshape(R * s, C * s, 3).contiguous()
    packed = io.BytesIO()
    Image.fromarray(rows.numpy()).save(packed, "WEBP", quality=80, method=4)
    return packed.getvalue()


@torch.no_grad()
def imagine(
    loaded: Loaded, decoder: Decoder, codes_ND: Tensor, frames_N3ss: Tensor, run: Run, config: DecoderConfig
) -> tuple[Imagination, Strips]:
    """Roll held-out clips out from one real frame under their own actions, decode, and compare with what happened."""
    model, device = loaded.model, codes_ND.device
    options = {**run.clip_options(), "device": device, "stats": loaded.stats, "image_size": loaded.image}
    clips = held_out_clips(run.data, depths=config.depths, batch=min(config.clips, 64), **options)
    errors: list[Tensor] = []
    strips: list[tuple[Tensor, Tensor, Tensor]] = []
    mean = decoder.mean.view(3, decoder.side, decoder.side)
    for step in range(max(1, min(config.clips // 64, clips.steps_per_epoch))):
        clip = clips.batch(step)
        z_bTD = model.encode(clip.pixels)
        true = resize(clip.pixels.flatten(0, 1), (decoder.side,) * 2).unflatten(0, z_bTD.shape[:2]).float() / 255
        zhat_bHD = model.rollout(z_bTD[:, :1], clip.actions[:, None, : z_bTD.shape[1] - 1]).squeeze(1)
        near = frames_N3ss[torch.cdist(zhat_bHD.flatten(0, 1), codes_ND).argmin(1)].unflatten(0, zhat_bHD.shape[:2])
        drawn = decoder(zhat_bHD)
        guesses = (drawn, decoder(z_bTD[:, 1:]), near.float() / 255, true[:, :1], mean)
        errors.append(torch.stack([(g - true[:, 1:]).square().mean((-3, -2, -1)) for g in guesses]))  # (5, b, H)
        first = true[:, :1]
        strips.append((true, torch.cat((first, drawn), 1), torch.cat((first, near.float() / 255), 1)))
    clips.close()
    every = torch.cat(errors, 1)
    seen, drawn, near = ((torch.cat(part) * 255).round().to(torch.uint8) for part in zip(*strips, strict=True))
    by_depth: dict[str, Any] = {
        name: tuple(round(v, 7) for v in row) for name, row in zip(GUESSES, every.mean(1).tolist(), strict=True)
    }
    result = Imagination(
        **made(loaded),
        **by_depth,
        world=WorldInfo(loaded.spec.name, dict(loaded.spec.options)),
        side=decoder.side,
        clips=every.shape[1],
        settings=config,
    )
    return result, Strips(seen, drawn, near, every[0].mean(1), every[3].mean(1))


@torch.no_grad()
def training_codes(loaded: Loaded, run: Run, config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Codes (N, D) of training frames, and the frames (N, 3, s, s) uint8 at the size they are decoded at."""
    if loaded.model.proprio_dim:
        raise UserError(f"{loaded.path} was trained with proprioception, which is not fed here yet.")
    device = next(loaded.model.parameters()).device
    clips = run.source(device, clip_length=2, batch=128, seed=config.seed, compiled=False)
    codes, frames = [], []
    side = min(config.side, loaded.image)
    for step in range(max(1, min(config.frames // 256, clips.steps_per_epoch))):
        pixels = clips.batch(step).pixels.flatten(0, 1)
        codes.append(loaded.model.encode(pixels))
        frames.append(resize(pixels, (side, side)))
    clips.close()
    return torch.cat(codes), torch.cat(frames)


def imagination(loaded: Loaded, config: DecoderConfig | None = None) -> tuple[Imagination, Strips, Decoder]:
    """The decoder of a run, measured on held-out clips."""
    config, run = config or DecoderConfig(), Run.open(loaded.path)
    codes, frames = training_codes(loaded, run, config)
    decoder = decoder_of(loaded, run, config, (codes, frames))
    return *imagine(loaded, decoder, codes, frames, run, config), decoder


def imagination_study(loaded: Loaded, folder: Path, config: DecoderConfig | None = None) -> Imagination:
    """`imagination`, with a picture of a success and of a failure in `folder`."""
    result, strips, _ = imagination(loaded, config)
    return replace(result, strips=strips.save(folder, f"imagination-{loaded.run_hash}-{loaded.step}"))
