"""stable-worldmodel's contracts, met by structure: nothing of it is imported.

    SwmModel(model)            our world model as its Dynamics (encode, rollout) and Costable (get_cost)
    SwmSolver(CEM(), model)    our planner as its Solver, for our models or its own
    CostProblem(model, info)   anything with get_cost as one of our planning problems
    SwmPolicy(agent)           an agent as its Policy
    ActionProcess(stats)       our action normalization as its Transformable

Its dictionaries hold, per environment or per environment and candidate, `pixels`, `goal` and more.
B environments, S candidates, C context frames, T blocks of a plan, A action size × block, D latent width.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from einops import rearrange
from torch import Tensor, nn

from lpwm.agent import Agent
from lpwm.core.errors import UserError, require
from lpwm.core.rng import seed_of
from lpwm.data import ActionStats
from lpwm.model import WorldModel
from lpwm.plan import LatentProblem, Problem, Solver, chunked
from lpwm.plan.problem import latent_cost

Info = dict[str, Any]


def frames(pixels: Tensor, name: str = "pixels") -> Tensor:
    """(…, 3, h, w) or (…, h, w, 3) uint8 -> (…, 3, h, w). Its environments give the latter."""
    if pixels.dtype != torch.uint8:
        remedy = "give the uint8 frames of the environment, without an image transform (the model normalizes them)"
        raise UserError(f"{name} is {pixels.dtype}: {remedy}.")
    if pixels.dim() < 4 or 3 not in (pixels.shape[-1], pixels.shape[-3]):
        raise UserError(f"{name} has shape {tuple(pixels.shape)}: give frames of three channels, (…, h, w, 3).")
    return pixels if pixels.shape[-3] == 3 else rearrange(pixels, "... h w c -> ... c h w")


class SwmModel(nn.Module):
    """A WorldModel behind stable-worldmodel's protocols.

    encode(info)          adds emb (B, C, D), and act_emb (B, C, D) where `action` holds whole blocks
    rollout(info, a)      a (B, S, T, A) adds predicted_emb (B, S, C + T, D): the context's codes, then the forecasts
    get_cost(info, a)     (B, S): mean_d (ẑ_T − z_goal)²; with `path_discount` > 0 the path cost

    Codes are left in the dictionary (`emb`, `goal_emb`), so every frame is encoded once per plan. Solvers plan z-scored
    actions: pass `process={"action": model.process}` to its WorldModelPolicy. A context of several frames needs
    `action` (B, S, C − 1, A), the blocks between them.
    """

    def __init__(self, model: WorldModel, stats: ActionStats | None = None, path_discount: float = 0.0) -> None:
        super().__init__()
        self.model, self.path_discount = model.eval(), require("path_discount", path_discount, 0, 1)
        given = model.meta.get("normalization")
        self.stats = stats or (ActionStats.from_dict(given) if given else None)
        self._dynamics: tuple[Any, Any] = (None, None)  # frozen, and the weights that it was made of

    @property
    def process(self) -> "ActionProcess":
        if self.stats is None:
            raise UserError("the model was saved without its action statistics: pass stats=ActionStats(mean, std).")
        return ActionProcess(self.stats)

    @property
    def action_dim(self) -> int:
        return self.model.action_dim

    def encode(self, info: Info) -> Info:
        self._dynamics = (None, None)
        info["emb"] = self.model.encode(self._frames(info, "pixels"))
        action = info.get("action")
        if torch.is_tensor(action) and action.shape[-1] == self.action_dim:
            info["act_emb"] = self.model.embed_action(action.to(info["emb"].dtype))
        return info

    def rollout(self, info: Info, action_sequence: Tensor) -> Info:
        z_BCD = self._context(info, action_sequence.shape[1])
        predicted = self._predict(info, z_BCD, action_sequence, last_only=False)
        shared = z_BCD[:, None].expand(-1, predicted.shape[1], -1, -1)
        info["predicted_emb"] = torch.cat((shared, predicted), dim=2)
        return info

    def criterion(self, info: Info) -> Tensor:
        """The cost of a rollout that is already in the dictionary."""
        predicted = info["predicted_emb"]
        plan = predicted[:, :, self._context(info, predicted.shape[1]).shape[1] :]
        return latent_cost(plan, self._goal(info), self.path_discount)

    def get_cost(self, info: Info, action_candidates: Tensor) -> Tensor:
        z_BCD = self._context(info, action_candidates.shape[1])
        goal_BD = self._goal(info)
        z = self._predict(info, z_BCD, action_candidates, last_only=self.path_discount == 0)
        return latent_cost(z, goal_BD, self.path_discount)

    def problem(self, info: Info, horizon: int, env_ids: Tensor | None = None) -> LatentProblem:
        """One of our planning problems, from a dictionary of environments (no candidate axis)."""
        with torch.no_grad():
            z_BCD = self.model.encode(self._frames(info, "pixels"))
            goal_BD = self.model.encode(self._frames(info, "goal")[:, -1])
        about = self.model, z_BCD, goal_BD, self._past(info.get("action"), z_BCD), horizon
        return LatentProblem(*about, env_ids=env_ids, path_discount=self.path_discount)

    def _frames(self, info: Info, name: str) -> Tensor:
        if not torch.is_tensor(info.get(name)):
            raise UserError(f"the dictionary has no {name!r}: the model plans from frames to a goal frame.")
        return frames(info[name], name).to(next(self.parameters()).device)

    def _context(self, info: Info, samples: int) -> Tensor:
        """Codes (B, C, D) of the context, which all candidates of an environment share."""
        if "emb" not in info:
            with torch.no_grad():
                z_BCD = self.model.encode(self._frames(info, "pixels")[:, 0])
            info["emb"] = z_BCD[:, None].expand(-1, samples, -1, -1)
            self._dynamics = (None, None)
        emb: Tensor = info["emb"]  # with a candidate axis, unless `encode` made it
        return emb if emb.dim() == 3 else emb[:, 0]

    def _frozen(self, dtype: torch.dtype) -> Any:
        """The dynamics with the weights as they are now, or the model itself where it has none to freeze."""
        weights = [(p.data_ptr(), p._version) for p in self.model.parameters()]
        if self._dynamics[1] != weights:
            self._dynamics = self.model.frozen(dtype), weights
        return self._dynamics[0] or self.model

    def _goal(self, info: Info) -> Tensor:
        if "goal_emb" not in info:
            with torch.no_grad():
                info["goal_emb"] = self.model.encode(self._frames(info, "goal")[:, 0, -1:])
        return info["goal_emb"][:, -1]

    def _past(self, action: Any, z_BCD: Tensor) -> Tensor | None:
        need = z_BCD.shape[1] - 1
        if not need:
            return None
        if not torch.is_tensor(action) or action.shape[-1] != self.action_dim or action.shape[1] < need:
            blocks = f"the {need} action blocks of {self.action_dim} numbers executed between them, as `action`"
            raise UserError(f"{need + 1} context frames need {blocks}; or plan with history_len=1.")
        return action[:, -need:].to(z_BCD)

    def _predict(self, info: Info, z_BCD: Tensor, actions: Tensor, last_only: bool) -> Tensor:
        if actions.shape[-1] != self.action_dim:
            widths = f"actions are {actions.shape[-1]} wide and the model takes {self.action_dim}"
            raise UserError(f"{widths}: set PlanConfig.action_block to the frameskip the model was trained with.")
        action = info.get("action")
        past = self._past(action[:, 0] if torch.is_tensor(action) and action.dim() == 4 else None, z_BCD)
        # Its gradient solvers need the link's own gradient; the others the frozen dynamics.
        gradient = torch.is_grad_enabled() and actions.requires_grad
        dynamics = self.model if gradient else self._frozen(z_BCD.dtype)
        predicted: Tensor = dynamics.rollout(z_BCD, actions.to(z_BCD), past_BPA=past, last_only=last_only)
        return predicted


class ActionProcess:
    """ActionStats with stable-worldmodel's names, on arrays (…, raw action size)."""

    def __init__(self, stats: ActionStats) -> None:
        self.stats = stats

    def transform(self, x: Any) -> np.ndarray:
        return self.stats.normalize(torch.as_tensor(np.asarray(x))).numpy()

    def inverse_transform(self, x: Any) -> np.ndarray:
        return self.stats.denormalize(torch.as_tensor(np.asarray(x))).numpy()


class CostProblem(Problem):
    """Anything with `get_cost(info, actions (B, S, T, A)) -> (B, S)` as a planning problem. `info` holds tensors and
    arrays with one row per environment; they are given a candidate axis as its own solvers do. What the model leaves in
    the dictionary is there at the next call."""

    def __init__(
        self,
        model: Any,
        info: Mapping[str, Any],
        horizon: int,
        action_dim: int,
        env_ids: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not callable(getattr(model, "get_cost", None)):
            raise UserError(f"{type(model).__name__} has no get_cost(info, actions): it cannot be planned with.")
        self.info = {k: v for k, v in info.items() if isinstance(v, Tensor | np.ndarray) and np.ndim(v) > 0}
        batches = {len(v) for v in self.info.values()}
        if len(batches) != 1:
            raise UserError(f"entries of the dictionary have {sorted(batches)} rows: give one row per environment.")
        self.model, self.dtype = model, dtype
        self.horizon, self.action_dim = require("horizon", horizon, 1), action_dim
        device = next((v.device for v in self.info.values() if torch.is_tensor(v)), torch.device("cpu"))
        self.env_ids = torch.arange(batches.pop(), device=device) if env_ids is None else env_ids.to(device)
        self._seen: dict[int, Info] = {}

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        raise UserError("a problem behind get_cost cannot be moved to other environments: build a new one.")

    def select(self, rows: slice | Tensor) -> Self:
        other = copy.copy(self)
        other.env_ids, other._seen = self.env_ids[rows], {}
        index = rows if isinstance(rows, slice) else rows.cpu().numpy()
        other.info = {k: v[rows] if torch.is_tensor(v) else v[index] for k, v in self.info.items()}
        return other

    def prepared(self) -> Self:
        """Nothing is carried from one plan to the next: the weights may have changed."""
        other = copy.copy(self)
        other._seen = {}
        return other

    def cost(self, actions_BSHA: Tensor) -> Tensor:
        samples = actions_BSHA.shape[1]
        if samples not in self._seen:
            self._seen[samples] = {k: _with_candidates(v, samples) for k, v in self.info.items()}
        cost: Tensor = self.model.get_cost(self._seen[samples], actions_BSHA)
        shape, wanted = tuple(cost.shape), tuple(actions_BSHA.shape[:2])
        if shape != wanted:
            raise UserError(f"get_cost returned shape {shape} for {wanted} candidates.")
        return cost.to(self.dtype)

    def candidate_bytes(self) -> int:
        """Unknown for a stranger's model: a transformer over a history of four, 64 kB a token, is assumed."""
        return (1 + self.horizon) * 4 * (1 << 16)


def _with_candidates(value: Tensor | np.ndarray, samples: int) -> Any:
    if torch.is_tensor(value):
        return value.unsqueeze(1).expand(value.shape[0], samples, *value.shape[1:])
    return np.repeat(value[:, None], samples, axis=1)


class SwmSolver:
    """One of our planners under stable-worldmodel's Solver protocol, for its WorldModelPolicy and `World.evaluate`.
    `model` is an SwmModel, or any model of its own with get_cost. All environments are planned at once. The n-th call
    draws its noise from (seed, n)."""

    def __init__(self, solver: Solver, model: Any, seed: int = 0, compile: bool = False) -> None:
        self.solver, self.model, self.seed, self.compile = solver, model, seed, compile
        self._calls = 0

    def configure(self, *, action_space: Any, n_envs: int, config: Any) -> None:
        self.n_envs, self.horizon = n_envs, int(config.horizon)
        self.action_dim = int(np.prod(action_space.shape[1:])) * int(config.action_block)

    def __getattr__(self, name: str) -> Any:
        if name in ("n_envs", "horizon", "action_dim"):
            raise UserError("the solver does not know its environments yet: call configure(...) first.")
        raise AttributeError(name)

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self.solve(*args, **kwargs)

    def solve(self, info_dict: Info, init_action: Tensor | None = None) -> dict[str, Any]:
        """{"actions": (B, T, A) on the CPU, "costs": one per environment}."""
        problem: Problem
        if isinstance(self.model, SwmModel):
            problem = self.model.problem(info_dict, self.horizon)
        else:
            problem = CostProblem(self.model, info_dict, self.horizon, self.action_dim)
        start = init_action
        if start is not None:  # a shifted plan is shorter than the horizon; the rest starts at zero
            start = nn.functional.pad(start, (0, 0, 0, max(0, self.horizon - start.shape[1])))[:, : self.horizon]
        seed = seed_of(self.seed, "plan", self._calls)
        self._calls += 1
        plan = chunked(problem, self.solver, start=start, seed=seed, compile=self.compile)
        return {"actions": plan.actions_BHA.cpu(), "costs": plan.costs_B.tolist()}


class SwmPolicy:
    """An `Agent` as a policy of its World: `world.set_policy(SwmPolicy(agent))`, then `world.evaluate(...)`. Goals are
    the `goal` frames in the world's dictionary, or `goal`, anything that `Agent.reset` takes. Every environment has an
    agent of its own, so that one which is reset plans anew while the others go on."""

    type, seed = "lpwm", None

    def __init__(self, agent: Agent, goal: Any = None) -> None:
        self.agent, self.goal, self.env = agent, goal, None
        self._agents: list[Agent | None] = []

    def set_env(self, env: Any) -> None:
        self.env, self._agents = env, [None] * getattr(env, "num_envs", 1)

    def get_action(self, info_dict: Info, **_: Any) -> np.ndarray:
        """(N, A) for the dictionary's frames, `pixels` (N, 1, h, w, 3); NaN where an episode has ended."""
        if not self._agents:
            raise UserError("the policy does not know its environments yet: call world.set_policy(policy) first.")
        for name in ("pixels",) if self.goal is not None else ("pixels", "goal"):
            if name not in info_dict:
                raise UserError(f"the dictionary has no {name!r}: the agent needs frames, and a goal frame or goal=.")
        flush, ended = (info_dict.get(name) for name in ("_needs_flush", "terminated"))
        width = len(self.agent.low) if not self.agent.choices else 1
        actions = np.full((len(self._agents), width), np.nan, np.float32)
        for i in range(len(self._agents)):
            if ended is not None and bool(np.asarray(ended)[i]):
                continue
            agent = None if flush is not None and bool(np.asarray(flush)[i]) else self._agents[i]
            if agent is None:
                agent = self._agents[i] = self.agent.fork(i)
                agent.reset(self.goal if self.goal is not None else _last_frame(info_dict["goal"][i]))
            actions[i] = agent.act(_last_frame(info_dict["pixels"][i]))
        shape = getattr(getattr(self.env, "action_space", None), "shape", None)
        return actions.reshape(shape) if shape else actions


def _last_frame(pixels: Any) -> np.ndarray:
    """(h, w, 3) of frames (C, h, w, 3) or (C, 3, h, w)."""
    frame = torch.as_tensor(np.asarray(pixels))
    return frames(frame if frame.dim() > 3 else frame[None])[-1].permute(1, 2, 0).numpy()
