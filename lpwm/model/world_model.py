"""The world model: z_t = link(project(ViT(o_t))), ẑ_{t+1} = link(predictor(z_{t−k+1..t}, a_t)).

Legend: B batch or environments, T frames, K positions, C context frames, S samples, H horizon, D latent width,
A size of an action block (raw action_dim × frameskip).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lpwm.core.errors import UserError
from lpwm.model.config import LINKS, ModelConfig
from lpwm.model.encoder import Encoder
from lpwm.model.frozen import Rollout, freeze
from lpwm.model.layers import linear
from lpwm.model.predictors.check import rolls_out_by_steps


class WorldModel(nn.Module):
    """`encode` frames to codes, `predict` the next ones, `rollout` plans; `from_pretrained` loads a trained one."""

    def __init__(self, config: ModelConfig, action_dim: int, proprio_dim: int = 0) -> None:
        super().__init__()
        if action_dim < 1 or proprio_dim < 0:
            raise UserError(f"action_dim = {action_dim} and proprio_dim = {proprio_dim}: give at least one action.")
        self.config, self.action_dim, self.proprio_dim = config, action_dim, proprio_dim
        self.meta: dict[str, Any] = {}  # what config.json held, for a model that was loaded
        self.encoder = Encoder(config.encoder, config.projector, config.latent, proprio_dim)
        self.embed_action = action_encoder(config, action_dim)
        self.predictor: Any = config.predictor.build(config.latent)
        self._steps = rolls_out_by_steps(self.predictor, config.predictor.rung, config.latent, self.history)
        self.link = LINKS.get(config.link)
        deliberate_init(self)

    @property
    def history(self) -> int:
        """How many past codes a prediction reads; longer contexts are cut to it."""
        return getattr(self.predictor, "lags", self.config.predictor.history)

    def encode(self, frames: Tensor, proprio: Tensor | None = None, white: float | None = None) -> Tensor:
        """Frames (…, 3, h, w), uint8, [proprio (…, P)] -> codes (…, D). white: the value of a white pixel, for frames
        of another type: 255.0, or 1.0 for floats in [0, 1]."""
        if white is not None:
            frames = frames * (255.0 / white)
        elif frames.dtype != torch.uint8:
            raise UserError(
                f"frames are {str(frames.dtype).removeprefix('torch.')}, whose range is not known: give uint8, or "
                "encode(frames, white=1.0) for floats in [0, 1] and white=255.0 for floats in [0, 255]."
            )
        lead = frames.shape[:-3]
        flat = None if proprio is None else proprio.reshape(-1, proprio.shape[-1])
        return self.link(self.encoder(frames.reshape(-1, *frames.shape[-3:]), flat)).reshape(*lead, -1)

    def predict(self, z_BKD: Tensor, actions_BKA: Tensor) -> Tensor:
        """Teacher-forced, causal: position t forecasts z_{t+1} from z_{≤t} and a_{≤t}; K ≤ history for AdaLN."""
        return self.link(self.predictor(z_BKD, self.embed_action(actions_BKA)))

    def rollout(
        self,
        z_BCD: Tensor,
        actions_BSHA: Tensor,
        past_BPA: Tensor | None = None,
        last_only: bool = False,
        cached: bool = True,
    ) -> Tensor:
        """Codes that S action sequences lead to: (B, S, H, D), or the last one alone (B, S, D).

        The context is C real frames with the C−1 = P blocks executed between them; it grows to `history` and then
        slides. What is common to all samples (the context) is computed once. `cached=False` recomputes each window with
        the training-time pass: slower, the definition, and what a predictor without a `step` of its own gets.
        """
        z_BCD, past_BPA = self._context(z_BCD, past_BPA)
        e = self.embed_action(actions_BSHA)
        if not (cached and self._steps):
            return self._rollout_windows(z_BCD, e, past_BPA, last_only)
        cache = self.predictor.start()
        if past_BPA is not None:
            past = self.embed_action(past_BPA)
            for c in range(past.shape[1]):
                _, cache = self.predictor.step(cache, z_BCD[:, c : c + 1], past[:, c : c + 1])
        z, out, horizon = z_BCD[:, -1:], [], e.shape[2]
        for t in range(horizon):
            u, cache = self.predictor.step(cache, z, e[:, :, t], keep=horizon - 1 - t)
            z = self.link(u)
            out.append(z)
        return z if last_only else torch.stack(out, dim=2)

    def frozen(self, dtype: torch.dtype) -> Rollout | None:
        """The dynamics alone, for planning: same codes, weights cast and multiplied together beforehand. It has
        `rollout` and no gradients, and does not follow later changes of the weights. None where the predictor has no
        `freeze` of its own (MLP∘LTV)."""
        return freeze(self, dtype)

    def _context(self, z_BCD: Tensor, past_BPA: Tensor | None) -> tuple[Tensor, Tensor | None]:
        frames, blocks = z_BCD.shape[1], 0 if past_BPA is None else past_BPA.shape[1]
        if blocks != frames - 1:
            raise UserError(f"{frames} context frames need the {frames - 1} action blocks between them, not {blocks}.")
        keep = min(frames, self.history)
        z_BCD = z_BCD[:, frames - keep :]
        return z_BCD, past_BPA[:, blocks - (keep - 1) :] if past_BPA is not None and keep > 1 else None

    def _rollout_windows(self, z_BCD: Tensor, e: Tensor, past_BPA: Tensor | None, last_only: bool) -> Tensor:
        B, S, H, _ = e.shape
        z = z_BCD.unsqueeze(1).expand(-1, S, -1, -1).flatten(0, 1)
        if past_BPA is not None:
            past = self.embed_action(past_BPA).unsqueeze(1).expand(-1, S, -1, -1)
            e = torch.cat((past, e), dim=2)
        e, C = e.flatten(0, 1), z_BCD.shape[1]
        for t in range(C, C + H):
            low = max(0, t - self.history)
            u = self.predictor(z[:, low:t], e[:, low:t])[:, -1:]
            z = torch.cat((z, self.link(u)), dim=1)
        out = z[:, C:].unflatten(0, (B, S))
        return out[:, :, -1] if last_only else out

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        device: str | torch.device = "cpu",
        revision: str | None = None,
        checkpoint: str = "latest",
        token: str | None = None,
    ) -> "WorldModel":
        """A trained model, in eval mode, with `.meta` (the world's spec, the action normalization, frameskip, …).
        `path` is a folder of `save_pretrained`, a checkpoint, a run (its latest checkpoint that is whole, or
        `checkpoint="best"`), or a name owner/name on the Hugging Face Hub. Nothing is unpickled."""
        from lpwm.train import pretrained

        return pretrained.load(path, device, revision, checkpoint, token)

    def save_pretrained(self, folder: str | os.PathLike[str], meta: Mapping[str, Any] | None = None) -> Path:
        """Write model.safetensors and config.json, with `meta` (or this model's own) in the latter."""
        from lpwm.train import pretrained

        return pretrained.save_pretrained(self, folder, meta)

    def push_to_hub(
        self,
        repo_id: str,
        private: bool = False,
        token: str | None = None,
        commit_message: str = "Upload an LpWM world model",
        meta: Mapping[str, Any] | None = None,
        license: str = "mit",
    ) -> str:
        """Upload the model with a card that states what is in its config; the address it has then."""
        from lpwm.train import pretrained

        return pretrained.push(
            self, repo_id, self.meta if meta is None else meta, private, token, commit_message, license
        )


def action_encoder(config: ModelConfig, action_dim: int) -> nn.Module:
    """The paper's: 1×1 convolution over the block, Linear to 4D, SiLU, Linear to D. Or one linear map (for LQR)."""
    D = config.latent
    if config.action_encoder == "linear":
        return linear(action_dim, D, problem=True)
    smooth = config.action_smooth or action_dim
    return nn.Sequential(
        linear(action_dim, smooth, problem=True), linear(smooth, 4 * D, problem=True), nn.SiLU(), linear(4 * D, D)
    )


def deliberate_init(model: nn.Module) -> None:
    """Initializations that are part of the method (AdaLN-zero, the identity, a closed gate), after any other."""
    for module in model.modules():
        deliberate = getattr(module, "deliberate_init", None)
        if callable(deliberate):
            deliberate()
