"""What every run watches, because losses alone have misled: numbers that tell a model from a dead code.

Legend: B clips, T frames, K predictions (ẑ_k forecasts frame k+1), D latent width, N pooled frames, S state entries.

Everything here is arithmetic on tensors without a wait for the device: each result is a 0-d float32 tensor, and the
logger moves all of them to the host at once. A ratio whose denominator vanishes (a dead code) is 0, not NaN, so that
NaN always means that something was not finite. With several ranks the numbers are those of this rank's clips.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lpwm.core.errors import UserError
from lpwm.losses.base import no_autocast
from lpwm.model import WorldModel

TINY = 1e-20  # mean squares below this are zero: codes of size 1e-10 are dead whatever their shape
# Bins of state distance, as shares of the frame: 10, 25, 50 and 100 of 224 pixels.
RANGE = (10 / 224, 25 / 224, 50 / 224, 100 / 224)


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


def observe(model: WorldModel, z_BTD: Tensor, actions_BPA: Tensor) -> dict[str, Tensor]:
    """`measure` on the codes of a training clip, with both forecasts made here, in evaluation mode.

    The other actions are those of the neighbor in the batch: every clip gets foreign ones, and clips that share a
    batch are already in random order.
    """
    K = min(model.history, z_BTD.shape[1] - 1)
    z_BKD, actions_BKA = z_BTD[:, :K].detach(), actions_BPA[:, :K]
    with torch.no_grad(), evaluating(model):
        zhat = model.predict(z_BKD, actions_BKA)
        permuted = model.predict(z_BKD, actions_BKA.roll(1, dims=0)) if z_BKD.shape[0] > 1 else None
    return measure(z_BTD, zhat, permuted_zhat_BKD=permuted, sparse=model.config.sparse)


def effective_dimension(z_ND: Tensor) -> Tensor:
    """tr(C)²/‖C‖²_F of the codes' covariance: D for isotropic codes, r for r equal directions, 0 for a constant.

    C and the N×N Gram matrix of the centered codes have the same non-zero eigenvalues, so the smaller is made. Never
    above min(N−1, D): isotropic codes of a batch read about ND/(N+D).
    """
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


def latent_range(z_ND: Tensor, position_NS: Tensor, frame: float) -> dict[str, Tensor]:
    """Mean ‖z−z'‖ of frames at growing state distance, relative to that of far frames (beyond 100/224 of the frame).

    Planning to far goals needs the latent distance to keep growing: .22 .54 .84 .99 saturates, .11 .29 .53 .80 does
    not (method §2). Bins: up to 10, 25, 50 and 100 pixels of a 224-pixel frame. `position_NS` are the entries of the
    state measured in pixels of a `frame`-pixel frame. A bin without a pair, or without far frames, is NaN.
    """
    with torch.no_grad(), no_autocast(z_ND):
        z, position = z_ND.float(), position_NS.float()
        share_NN = torch.cdist(position, position) / frame
        # Through differences, not norms: ‖z‖²+‖z'‖²−2z·z' loses the small distances that matter here.
        latent_NN = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")
        pair_NN = ~torch.eye(len(z), dtype=torch.bool, device=z.device)

        def mean(low: float, high: float) -> Tensor:
            inside = (pair_NN & (share_NN >= low) & (share_NN < high)).float()
            return (latent_NN * inside).sum() / inside.sum()

        far = mean(RANGE[-1], float("inf"))
        edges = (0.0, *RANGE)
        return {
            f"range_{round(high * 224)}px": mean(low, high) / far
            for low, high in zip(edges[:-1], edges[1:], strict=True)
        }


class ActivityWindow:
    """Which units were active (z > 0) in any frame since the last reading: the dead fraction over a window.

    `update` is a few in-place tensor operations on fixed buffers, so it may be captured in a CUDA graph.
    """

    def __init__(self, dim: int, device: torch.device | str = "cpu") -> None:
        self.seen_D = torch.zeros(dim, dtype=torch.bool, device=device)
        self.updates = torch.zeros((), dtype=torch.int64, device=device)

    def update(self, z_BTD: Tensor) -> None:
        self.seen_D.logical_or_((z_BTD.detach() > 0).flatten(0, -2).any(dim=0))
        self.updates.add_(1)

    def read_and_reset(self) -> Tensor:
        """The share of units silent in the whole window, as a 0-d tensor, and a new window. NaN if nothing was seen."""
        silent = 1 - self.seen_D.float().mean()
        silent = torch.where(self.updates > 0, silent, float("nan"))
        self.seen_D.zero_()
        self.updates.zero_()
        return silent


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
