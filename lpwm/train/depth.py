"""Held-out evaluation during training: how errors grow when predictions are fed back.

Legend: b clips of a batch, T frames, C context frames, H depths, D latent width, A action block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.data import ClipSource, EpisodeData, ResidentClips, StreamedClips, open_clips, splits
from lpwm.data.clips import Clip
from lpwm.model import WorldModel
from lpwm.train.monitors import evaluating, latent_range

Encode = Callable[[Clip], Tensor]  # (b, T, D) codes of a clip


def held_out_clips(
    episodes: EpisodeData,
    *,
    depths: int = 8,
    context: int = 1,
    frameskip: int = 5,
    holdout: float = 0.1,
    **options: Any,
) -> ResidentClips | StreamedClips:
    """Held-out clips of context + depths frames, or of as many as the longest held-out episode holds.

    `options` go to open_clips (source, world, batch, size, device, stats, …).
    """
    _, held = splits(episodes, holdout)
    longest = int(episodes.lengths[held].max()) if len(held) else 0
    fits = (longest - 1) // frameskip + 1
    if fits < context + 1:
        raise UserError(
            f"the {len(held)} held-out episodes (the longest of {longest} frames) hold no prediction {frameskip} steps "
            f"ahead of {context} context frames: use a larger holdout, longer episodes or a smaller frameskip."
        )
    frames = min(context + depths, fits)
    return open_clips(episodes, clip_length=frames, frameskip=frameskip, split="val", holdout=holdout, **options)


def depth_errors(
    model: WorldModel,
    source_val: ClipSource,
    depths: int = 8,
    batches: int = 4,
    context: int = 1,
    encode: Encode | None = None,
) -> dict[str, Any]:
    """Errors at rollout depth 1…H from `context` real frames, next to those of the copy predictor:

        error_depth[h−1]      = mean((ẑ⁽ʰ⁾ − z_{C−1+h})²) / mean(z²_{C−1+h})
        copy_error_depth[h−1] = the same for ẑ = z_{C−1}, the last frame seen

    over the clips of the first `batches` batches, the same at every call so that evaluations compare. H is `depths`,
    or what the clips hold; then `note` says so. `encode` replaces model.encode(clip.pixels), e.g. to add
    proprioception. Callers choose the precision (autocast); the errors are float32.
    """
    if depths < 1 or batches < 1 or context < 1:
        raise UserError(f"depths = {depths}, batches = {batches} and context = {context} must be at least 1.")
    batches = min(batches, source_val.steps_per_epoch)
    sums: Tensor | None = None
    clips = horizon = 0
    with torch.no_grad(), evaluating(model):
        for step in range(batches):
            clip = source_val.batch(step)
            z = model.encode(clip.pixels) if encode is None else encode(clip)
            horizon = min(depths, z.shape[1] - context)
            if horizon < 1:
                raise UserError(
                    f"clips of {z.shape[1]} frames hold nothing beyond {context} context frames: give longer clips."
                )
            part = _squares(model, z, clip.actions, context, horizon)
            sums = part if sums is None else sums + part
            clips += z.shape[0]
    assert sums is not None
    error, copy, power = sums.unbind(0)
    values = torch.stack((error / power, copy / power)).tolist()  # the one wait for the device
    out: dict[str, Any] = {"error_depth": values[0], "copy_error_depth": values[1], "clips": clips}
    if horizon < depths:
        out["note"] = f"the held-out clips have {context + horizon} frames: depths 1 to {horizon}, not {depths}."
    return out


def _squares(model: WorldModel, z_bTD: Tensor, actions_bPA: Tensor, context: int, horizon: int) -> Tensor:
    """Sums of squares by depth (3, H): of the rollout's error, of the copy's, of the codes."""
    past = actions_bPA[:, : context - 1] if context > 1 else None
    future_bHA = actions_bPA[:, context - 1 : context - 1 + horizon]
    zhat_bHD = model.rollout(z_bTD[:, :context], future_bHA.unsqueeze(1), past).squeeze(1).float()
    target_bHD = z_bTD[:, context : context + horizon].float()
    last_b1D = z_bTD[:, context - 1 : context].float()
    terms = (zhat_bHD - target_bHD, last_b1D - target_bHD, target_bHD)
    return torch.stack([term.square().sum((0, 2)) for term in terms])


def held_out_range(
    model: WorldModel,
    source_val: ClipSource,
    position: tuple[int, ...],
    frame: float,
    encode: Encode | None = None,
    limit: int = 512,
) -> dict[str, float]:
    """`latent_range` of the first batch of held-out clips, of at most `limit` frames of it.

    The entries `position` of the state are in pixels of a `frame`-pixel frame. Frames of one clip give the near
    pairs, frames of different clips the far ones.
    """
    with torch.no_grad(), evaluating(model):
        clip = source_val.batch(0)
        z = model.encode(clip.pixels) if encode is None else encode(clip)
        states = clip.states[..., list(position)].flatten(0, 1)
        values = latent_range(z.flatten(0, 1)[:limit], states[:limit], frame)
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
