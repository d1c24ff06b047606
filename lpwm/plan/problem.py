"""What a planner minimizes: what is encoded once per plan, and a score of candidate sequences of z-scored actions.

B environments, S candidates, H blocks, A = raw action size × frameskip, C context frames, D latent width,
P = C − 1 executed blocks between the context frames.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any, Self

import torch
from einops import rearrange
from torch import Tensor

from lpwm.core.errors import UserError, require
from lpwm.worlds.base import Live, World

Rows = slice | Tensor
Metric = Callable[[Tensor, Tensor], Tensor]
TILE = 900  # candidates scored at a time on a CPU


class Problem(ABC):
    """B planning problems solved at once. A subclass lists its per-environment tensors in `rows`. `env_ids` (B,) int64:
    noise is keyed by it, so a plan does not depend on who else is in the batch."""

    rows: tuple[str, ...] = ("env_ids",)
    horizon: int
    action_dim: int
    env_ids: Tensor
    dtype: torch.dtype

    @abstractmethod
    def cost(self, actions_BSHA: Tensor) -> Tensor:
        """(B, S, H, A) -> (B, S). Only comparable within one call: ranks are allowed."""

    def value(self, actions_BSHA: Tensor) -> Tensor:
        """(B, S, H, A) -> (B, S), comparable between calls and differentiable; what a plan reports."""
        return self.cost(actions_BSHA)

    def prepared(self) -> "Problem":
        """The same problem, ready to be scored many times without gradients; called once per plan."""
        return self

    def frozen_state(self) -> Hashable | None:
        """What scoring depends on besides the rows; None where it cannot be captured as a CUDA graph."""
        return None

    @property
    def batch(self) -> int:
        return self.env_ids.shape[0]

    @property
    def device(self) -> torch.device:
        return self.env_ids.device

    def tensors(self) -> list[Tensor]:
        """Every per-environment tensor, in a fixed order."""
        return [t for name in self.rows if (t := getattr(self, name)) is not None]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """The same problem about other environments."""
        other, given = copy.copy(self), iter(tensors)
        for name in self.rows:
            if getattr(self, name) is not None:
                setattr(other, name, next(given))
        return other

    def select(self, rows: Rows) -> Self:
        """A sub-batch."""
        return self.with_tensors([t[rows] for t in self.tensors()])

    def candidate_bytes(self) -> int:
        """About how much memory one candidate of one environment needs while it is scored."""
        return 8 * self.horizon * self.action_dim * self.dtype.itemsize


def _ids(env_ids: Tensor | None, batch: int, device: torch.device) -> Tensor:
    if env_ids is None:
        return torch.arange(batch, device=device)
    if env_ids.shape != (batch,) or env_ids.dtype != torch.int64:
        given = f"shape {tuple(env_ids.shape)} and type {env_ids.dtype}"
        raise UserError(f"env_ids has {given}: give one int64 per environment, shape ({batch},).")
    return env_ids.to(device)


def block_weights(horizon: int, path_discount: float) -> list[float]:
    """What each of H blocks counts in the cost of a plan: path_discount^(H−h) over their sum. 0: the end alone."""
    weights = [require("path_discount", path_discount, 0, 1) ** (horizon - h) for h in range(1, horizon + 1)]  # 0⁰ = 1
    return [w / sum(weights) for w in weights]


class LatentProblem(Problem):
    """cost(a) = mean_d (ẑ_H − z_goal)²: the last predicted latent against the goal's (method §5).

    `path_discount` > 0 is the path cost: Σ_h w_h mean_d (ẑ_h − z_goal)² with w_h ∝ path_discount^(H−h).
    `model.rollout(z_BCD, actions_BSHA, past_BPA=None, last_only=True) -> (B, S, D)` does the predicting.
    `autocast` scores in a lower precision (torch.bfloat16 on CUDA); the plan itself keeps z's type.
    `project` makes of candidates the actions that would be executed (within bounds, or one-hot).
    `metric` replaces the mean square: (codes (B, S, D), goals (B, 1, K)) -> (B, S), for goals of any size K.
    """

    rows = ("env_ids", "z_BCD", "z_goal_BD", "past_BPA", "context_B")
    context_B: Tensor | None = None  # what frozen dynamics made of z and past, once per plan

    def __init__(
        self,
        model: Any,
        z_BCD: Tensor,
        z_goal_BD: Tensor,
        past_BPA: Tensor | None = None,
        horizon: int = 5,
        *,
        action_dim: int | None = None,
        env_ids: Tensor | None = None,
        autocast: torch.dtype | None = None,
        path_discount: float = 0.0,
        project: Callable[[Tensor], Tensor] | None = None,
        metric: Metric | None = None,
    ) -> None:
        if getattr(model, "training", False):
            raise UserError("the model is in training mode (dropout is on): call model.eval() before planning.")
        width = z_goal_BD.shape[-1] if metric else z_BCD.shape[-1]
        if z_BCD.dim() != 3 or z_goal_BD.shape != (z_BCD.shape[0], width):
            shapes = f"context {tuple(z_BCD.shape)} and goal {tuple(z_goal_BD.shape)}"
            raise UserError(f"{shapes} do not match: give latents (B, C, D) and (B, D).")
        self.action_dim = int(getattr(model, "action_dim", 0) if action_dim is None else action_dim)
        if not self.action_dim:
            raise UserError("the model does not tell the size of its action: pass action_dim=.")
        blocks = (z_BCD.shape[0], z_BCD.shape[1] - 1, self.action_dim)
        if past_BPA is not None and past_BPA.shape != blocks:
            raise UserError(f"past actions have shape {tuple(past_BPA.shape)}: {blocks} join these frames.")
        if past_BPA is None and blocks[1] > 0:
            raise UserError(f"{blocks[1] + 1} context frames need the {blocks[1]} blocks executed between them.")
        self.model = model
        self.z_BCD, self.z_goal_BD = z_BCD, z_goal_BD
        self.past_BPA = past_BPA if blocks[1] > 0 else None
        self.horizon = require("horizon", horizon, 1)
        self.env_ids = _ids(env_ids, z_BCD.shape[0], z_BCD.device)
        self.dtype = z_BCD.dtype
        self.autocast, self.path_discount = autocast, require("path_discount", path_discount, 0, 1)
        self.project, self.metric = project, metric

    def frozen_state(self) -> Hashable | None:
        if self.metric is not None:  # a user's function may look at the host
            return None
        parameters: Callable[[], Any] = getattr(self.model, "parameters", lambda: ())
        settings = self.autocast, self.path_discount, self.project
        return id(self.model), *settings, tuple(p.data_ptr() for p in parameters())

    def prepared(self) -> Problem:
        """With the model's frozen dynamics, where it has them."""
        frozen = getattr(self.model, "frozen", None)
        model = frozen(self.autocast or self.dtype) if callable(frozen) else None
        if model is None:
            return self
        other = copy.copy(self)
        other.model, other.autocast = model, None
        if hasattr(model, "context"):
            other.context_B = model.context(self.z_BCD, self.past_BPA)
        return other

    def cost(self, actions_BSHA: Tensor) -> Tensor:
        """On a CPU some hundred candidates at a time, so that what passes between operations stays in the cache."""
        step = max(1, TILE // actions_BSHA.shape[1])
        if step >= self.batch or self.device.type != "cpu" or torch.is_grad_enabled():
            return self._cost(actions_BSHA)
        rows = [slice(at, at + step) for at in range(0, self.batch, step)]
        return torch.cat([self.select(r)._cost(actions_BSHA[r]) for r in rows])

    def _cost(self, actions_BSHA: Tensor) -> Tensor:
        if self.project is not None:
            actions_BSHA = self.project(actions_BSHA)
        more = {} if self.context_B is None else {"context": self.context_B}
        last_only = self.path_discount == 0
        with torch.autocast(self.device.type, dtype=self.autocast) if self.autocast else nullcontext():
            z = self.model.rollout(self.z_BCD, actions_BSHA, past_BPA=self.past_BPA, last_only=last_only, **more)
        return latent_cost(z, self.z_goal_BD, self.path_discount, self.metric or mean_square)

    def candidate_bytes(self) -> int:
        """An upper bound: the output of every predictor matrix kept for every token of context and plan."""
        part = getattr(self.model, "predictor", self.model)
        parameters: Callable[[], Any] = getattr(part, "parameters", lambda: ())
        width = sum(p.shape[0] for p in parameters() if p.dim() == 2)
        tokens = self.z_BCD.shape[1] + self.horizon
        return tokens * (width + 4 * self.z_BCD.shape[2]) * self.dtype.itemsize


def mean_square(z_BSD: Tensor, goal_B1D: Tensor) -> Tensor:
    return (z_BSD.to(goal_B1D.dtype) - goal_B1D).square().mean(-1)


def latent_cost(z: Tensor, z_goal_BD: Tensor, path_discount: float, metric: Metric = mean_square) -> Tensor:
    """(B, S): what codes (B, S, H, D) cost; with path_discount = 0 the last alone, (B, S, D), is enough."""
    blocks = [z] if z.dim() == 3 else z.unbind(2)
    return path_cost(blocks, lambda z_BSD: metric(z_BSD, z_goal_BD[:, None]), path_discount)


def path_cost(blocks: Sequence[Tensor], left: Callable[[Tensor], Tensor], path_discount: float) -> Tensor:
    """The cost of a plan from what is left to the goal after each of its blocks, or after the last alone."""
    if path_discount == 0:
        return left(blocks[-1])
    weighted = [w * left(b) for w, b in zip(block_weights(len(blocks), path_discount), blocks, strict=True)]
    return sum(weighted[1:], start=weighted[0])


class OracleProblem(Problem):
    """The true world as the model: cost(a) = distance(state after H·frameskip raw steps, goal)², or the world's own
    `plan_cost`. raw = mean + std · a undoes the z-scoring with the training set's statistics."""

    rows: tuple[str, ...] = ("env_ids", "state_BS", "goal_BS")

    def __init__(
        self,
        world: World,
        state_BS: Tensor,
        goal_BS: Tensor,
        horizon: int = 5,
        frameskip: int = 5,
        mean: Sequence[float] | Tensor = (0.0,),
        std: Sequence[float] | Tensor = (1.0,),
        *,
        env_ids: Tensor | None = None,
        path_discount: float = 0.0,
    ) -> None:
        if state_BS.dim() != 2 or state_BS.shape != goal_BS.shape:
            shapes = f"states {tuple(state_BS.shape)} and goals {tuple(goal_BS.shape)}"
            raise UserError(f"{shapes} do not match: give (B, S) both.")
        require("frameskip", frameskip, 1)
        raw = world.spec.action_dim
        self.world, self.frameskip = world, frameskip
        self.state_BS, self.goal_BS = state_BS, goal_BS.to(state_BS)
        self.mean_A = torch.as_tensor(mean).to(state_BS).expand(raw)
        self.std_A = torch.as_tensor(std).to(state_BS).expand(raw)
        self.horizon, self.action_dim = require("horizon", horizon, 1), raw * frameskip
        self.env_ids = _ids(env_ids, state_BS.shape[0], state_BS.device)
        self.dtype, self.path_discount = state_BS.dtype, require("path_discount", path_discount, 0, 1)

    def cost(self, actions_BSHA: Tensor) -> Tensor:
        raw_BSTA = rearrange(actions_BSHA, "b s h (f a) -> b s (h f) a", f=self.frameskip)
        states = self._after_blocks(self.mean_A + self.std_A * raw_BSTA)
        return path_cost(states, self._left, self.path_discount)

    def _left(self, state: Tensor) -> Tensor:
        """What is left to the goal, (B, S)."""
        goal, own = self.goal_BS[:, None].expand_as(state), getattr(self.world, "plan_cost", None)
        return own(state, goal) if own else self.world.distance(state, goal).square()

    def _after_blocks(self, raw_BSTA: Tensor) -> list[Tensor]:
        """The states that raw actions lead to after each block, (B, S, state) each."""
        state = self.state_BS[:, None].expand(-1, raw_BSTA.shape[1], -1)
        states = []
        for t, action in enumerate(raw_BSTA.unbind(2), start=1):
            state = self.world.step(state, action)  # type: ignore[union-attr]
            if t % self.frameskip == 0:
                states.append(state)
        return states

    def candidate_bytes(self) -> int:
        blocks = 4 * self.horizon * self.action_dim
        return (blocks + 16 * self.state_BS.shape[1]) * self.dtype.itemsize


class LiveOracleProblem(OracleProblem):
    """The same through live simulators: candidates branch off the very ones that act. `row_B`: which one is whose."""

    rows = ("env_ids", "state_BS", "goal_BS", "row_B")

    def __init__(self, live: Live, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.live = live
        self.row_B = torch.arange(self.batch)

    def _after_blocks(self, raw_BSTA: Tensor) -> list[Tensor]:
        """Branches move nobody: simulators outside the batch are given zeros, and ignored."""
        count, device = len(self.live.states), self.state_BS.device
        raw = raw_BSTA.cpu()
        if count != self.batch:
            raw = raw.new_zeros(count, *raw.shape[1:]).index_copy_(0, self.row_B.cpu(), raw)
        blocks = self.live.branches(raw)[self.row_B.cpu(), :, self.frameskip - 1 :: self.frameskip]
        return list(blocks.to(device, self.dtype).unbind(2))
