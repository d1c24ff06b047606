"""What every run watches, because losses alone mislead: numbers that tell a model from a dead code.

Legend: B clips, T frames, K predictions (ẑ_k forecasts frame k+1), D latent width, N pooled frames, S state entries.

Everything here is arithmetic on tensors without a wait for the device: each result is a 0-d float32 tensor, and the
logger moves all of them to the host at once. A ratio whose denominator vanishes (a dead code) is 0, not NaN, so that
NaN always means that something was not finite. With several ranks the numbers are those of the global batch.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lpwm.core.errors import UserError
from lpwm.data import ClipSource, EpisodeData, ResidentClips, StreamedClips, open_clips, splits
from lpwm.losses.base import ALONE, Group, no_autocast
from lpwm.model import WorldModel

TINY = 1e-20  # mean squares below this are zero: codes of size 1e-10 are dead whatever their shape


def measure(
    z_BTD: Tensor, zhat_BKD: Tensor, *, permuted_zhat_BKD: Tensor | None = None, sparse: bool
) -> dict[str, Tensor]:
    """The monitors of one batch; y = z[:, 1:K+1] are the frames that ẑ forecasts, x = z[:, :K] those before.

    relative_error       mean((ẑ−y)²)/mean(y²)
    copy_error           mean((x−y)²)/mean(y²): what ẑ = "nothing changes" would score
    code_rms             √mean(z²); not finite if and only if a code is not (or its square overflows)
    code_std             √(tr(C)/D): RMS deviation from the mean code. A constant code can have any RMS and, through
                         its last digits, any dimension and variation; here it reads 0
    effective_dimension  tr(C)²/‖C‖²_F, C the covariance of all frames; see `effective_dimension`
    temporal_variation   mean ‖z_{t+1}−z_t‖² over the same for two different frames drawn from the batch: 0 is a code
                         constant in time, 1 one whose neighbors are no nearer than strangers
    action_sensitivity   mean((ẑ'−ẑ)²)/mean((y−x)²), ẑ' forecast under other clips' actions; 0 is an action-blind
                         predictor. Only with `permuted_zhat_BKD`; a batch of one clip has no other actions.
    active_fraction      share of z > 0; for a dense link the sign pattern, about ½
    support_instability  mean 1 − |s_t ∩ s_{t+1}|/|s_t ∪ s_{t+1}|, s = supp(z > 0); two empty supports are equal
    churn                share of units that switch on or off between consecutive frames
    empty_fraction       share of frames without an active unit; sparse links only

    ẑ and ẑ' must come from passes without dropout, or its noise passes for sensitivity; `observe` makes both.
    """
    T, K = z_BTD.shape[1], zhat_BKD.shape[1]
    if not 1 <= K < T:
        raise UserError(f"{K} one-step predictions do not fit a clip of {T} frames: give 1 to {T - 1}.")
    with torch.no_grad(), no_autocast(z_BTD):
        z, zhat = z_BTD.float(), zhat_BKD.float()
        before, after = z[:, :K], z[:, 1 : K + 1]
        power, moved = after.square().mean(), (after - before).square().mean()
        neighbors = (z[:, 1:] - z[:, :-1]).square().sum(-1).mean()
        variance_D = z.flatten(0, 1).var(dim=0, correction=1)
        out = {
            "relative_error": _ratio((zhat - after).square().mean(), power),
            "copy_error": _ratio(moved, power),
            "code_rms": z.square().mean().sqrt(),
            "code_std": variance_D.mean().sqrt(),
            "effective_dimension": effective_dimension(z.flatten(0, 1)),
            "temporal_variation": _ratio(neighbors, 2 * variance_D.sum()),
            **_supports(z > 0, sparse),
        }
        if permuted_zhat_BKD is not None and z.shape[0] > 1:
            out["action_sensitivity"] = _ratio((permuted_zhat_BKD.float() - zhat).square().mean(), moved)
        return out


def observe(model: WorldModel, z_BTD: Tensor, actions_BPA: Tensor, group: Group = ALONE) -> dict[str, Tensor]:
    """`measure` on the codes of a training clip, with both forecasts made here, in evaluation mode. The other actions
    are those of the neighbor in the batch: every clip gets foreign ones, and clips that share a batch are already in
    random order. With several ranks each forecasts the whole batch: its numbers are one process's."""
    if group.gather is not None:
        z_BTD, actions_BPA = group.gather(z_BTD.detach()), group.gather(actions_BPA)
    K = min(model.history, z_BTD.shape[1] - 1)
    z_BKD, actions_BKA = z_BTD[:, :K].detach(), actions_BPA[:, :K]
    with torch.no_grad(), evaluating(model):
        zhat = model.predict(z_BKD, actions_BKA)
        permuted = model.predict(z_BKD, actions_BKA.roll(1, dims=0)) if z_BKD.shape[0] > 1 else None
    return measure(z_BTD, zhat, permuted_zhat_BKD=permuted, sparse=model.config.sparse)


def effective_dimension(z_ND: Tensor) -> Tensor:
    """tr(C)²/‖C‖²_F of the codes' covariance: D for isotropic codes, r for r equal directions, 0 for a constant. C and
    the N×N Gram matrix of the centered codes have the same non-zero eigenvalues, so the smaller is made. Never above
    min(N−1, D): isotropic codes of a batch read about ND/(N+D)."""
    x = z_ND.float()
    x = x - x.mean(dim=0)
    x = x / x.square().mean().clamp(min=TINY).sqrt()  # the fourth power of a large code would overflow
    gram = x @ x.T if x.shape[0] < x.shape[1] else x.T @ x
    return _ratio(gram.trace().square(), gram.square().sum())


def _supports(active_BTD: Tensor, sparse: bool) -> dict[str, Tensor]:
    before, after = active_BTD[:, :-1], active_BTD[:, 1:]
    shared, either = (before & after).sum(-1), (before | after).sum(-1)
    jaccard = torch.where(either == 0, 1.0, shared / either.clamp(min=1))
    out = {
        "active_fraction": active_BTD.float().mean(),
        "support_instability": 1 - jaccard.mean(),
        "churn": (before ^ after).float().mean(),
    }
    if sparse:
        out["empty_fraction"] = 1 - active_BTD.any(-1).float().mean()
    return out


class ActivityWindow:
    """Which units were active (z > 0) in any frame since the last reading: the dead fraction over a window. `update` is
    in place on a fixed buffer, so it may be captured in a CUDA graph."""

    def __init__(self, dim: int, device: torch.device | str = "cpu") -> None:
        self.seen_D = torch.full((dim,), math.nan, device=device)  # NaN: nothing was seen yet

    def update(self, z_BTD: Tensor) -> None:
        now_D = (z_BTD.detach() > 0).flatten(0, -2).any(dim=0).float()
        torch.fmax(self.seen_D, now_D, out=self.seen_D)

    def read_and_reset(self, reduce: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
        """The share of units silent in the whole window, as a 0-d tensor, and a new window. NaN if nothing was seen.
        `reduce` sums over ranks: a unit that is active on one is not silent."""
        silent = 1 - reduce(self.seen_D).clamp(max=1).mean()
        self.seen_D.fill_(math.nan)
        return silent

    def pack(self, reduce: Callable[[Tensor], Tensor] = lambda x: x) -> str:
        """The window so far, a digit per unit, for a checkpoint; "" if nothing was seen."""
        seen = reduce(self.seen_D).tolist()
        return "" if math.isnan(seen[0]) else "".join("01"[x > 0] for x in seen)

    def unpack(self, seen: str) -> None:
        if len(seen) == len(self.seen_D):
            self.seen_D.copy_(torch.tensor([float(x == "1") for x in seen]))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each module's own mode again (a frozen part may have been in it before)."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _ratio(value: Tensor, scale: Tensor) -> Tensor:
    """value/scale, and 0 where the scale vanishes; what is not finite shows."""
    return torch.where(scale <= TINY, value * 0, value / scale)


def held_out_clips(
    episodes: EpisodeData,
    *,
    depths: int = 8,
    context: int = 1,
    frameskip: int = 5,
    holdout: float = 0.1,
    **options: Any,
) -> ResidentClips | StreamedClips:
    """Held-out clips of context + depths frames, or of as many as the longest held-out episode holds. `options` go to
    open_clips (source, world, batch, size, device, stats, …)."""
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
    model: WorldModel, source_val: ClipSource, depths: int = 8, batches: int = 4, context: int = 1
) -> dict[str, Any]:
    """Errors at rollout depth 1…H from `context` real frames, next to those of the copy predictor:

        error_depth[h−1]      = mean((ẑ⁽ʰ⁾ − z_{C−1+h})²) / mean(z²_{C−1+h})
        copy_error_depth[h−1] = the same for ẑ = z_{C−1}, the last frame seen

    over the clips of the first `batches` batches, the same at every call so that evaluations compare. H is `depths`,
    or what the clips hold; then `note` says so. Callers choose the precision (autocast); the errors are float32.
    """
    if depths < 1 or batches < 1 or context < 1:
        raise UserError(f"depths = {depths}, batches = {batches} and context = {context} must be at least 1.")
    batches = min(batches, source_val.steps_per_epoch)
    sums: Tensor | None = None
    clips = horizon = 0
    with torch.no_grad(), evaluating(model):
        for step in range(batches):
            clip = source_val.batch(step)
            z = model.encode(clip.pixels)
            horizon = min(depths, z.shape[1] - context)
            if horizon < 1:
                raise UserError(f"clips of {z.shape[1]} frames hold nothing beyond {context} context frames.")
            part = _squares(model, z, clip.actions, context, horizon)
            sums = part if sums is None else sums + part
            clips += z.shape[0]
    assert sums is not None
    error, copy = (sums[:2] / sums[2]).tolist()  # the one wait for the device
    out: dict[str, Any] = {"error_depth": error, "copy_error_depth": copy, "clips": clips}
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
