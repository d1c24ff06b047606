"""A trained model that acts: frames in, raw actions out. Neither a world nor a data set is needed.

B environments, A size of a raw action, H blocks of a plan, T = H·frameskip raw actions, D latent width, K numbers of a
goal, h and w sides of a frame.
"""

import copy
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.core.rng import seed_of
from lpwm.data import ActionStats
from lpwm.data.clips import resize
from lpwm.data.normalize import from_blocks
from lpwm.evaluate.agent import Projection
from lpwm.evaluate.config import preset as find_preset
from lpwm.model import WorldModel
from lpwm.plan import LatentProblem, MPCConfig, Plan, Solver, make_solver
from lpwm.plan.problem import Metric, mean_square
from lpwm.train.loaded import Use
from lpwm.train.run_config import pick_device
from lpwm.worlds.gym_ids import register_worlds

Project = Callable[[Tensor], Tensor]


@runtime_checkable
class SolverConfig(Protocol):
    def build(self) -> Solver: ...


@dataclass(frozen=True, kw_only=True)
class AgentPlan(Plan):
    """What the agent is going to do, and what it expects of it.

    raw_BTA       the raw actions, within the bounds
    codes_BHD     the code imagined after each block
    distances_BH  what is then left to the goal: the RMS distance of codes, or what the goal's own function says
    """

    raw_BTA: Tensor
    codes_BHD: Tensor
    distances_BH: Tensor


class Agent:
    """Plans in latent space towards a goal.

        agent = lpwm.load("runs/…")
        agent.reset(goal=goal_frame)
        while …:
            action = agent.act(frame)

    A frame is uint8 (h, w, 3), as gymnasium renders it, or a batch (B, h, w, 3); another size is resized. A plan is
    made of blocks of `frameskip` actions: every call returns one action, every `frameskip` calls the frame is encoded,
    and after `receding` blocks the next plan starts from the tail of the last one.

    plan      the last plan with what it expects (`AgentPlan`)
    distance  what is left to the goal from the last encoded frame, (B,): as `plan.distances_BH`
    """

    def __init__(
        self,
        model: WorldModel,
        stats: ActionStats,
        frameskip: int,
        low: Sequence[float],
        high: Sequence[float],
        *,
        name: str = "model",
        solver: Solver | None = None,
        config: MPCConfig | None = None,
        seed: int = 0,
        seconds: float | None = None,
        compile: bool = False,
        autocast: torch.dtype | None = None,
        choices: Sequence[int] = (),
        project: Project | None = None,
        folder: str | os.PathLike[str] | None = None,
        step: int | None = None,
    ) -> None:
        if getattr(model, "proprio_dim", 0):
            raise UserError(f"{name} was trained with proprioception, which the agent does not feed yet.")
        if seconds is not None and not seconds > 0:
            raise UserError(f"seconds = {seconds}: give the seconds that a plan may take, more than 0.")
        self.model, self.name, self.stats, self.frameskip = model, name, stats, frameskip
        self.low, self.high = np.array(low, np.float32), np.array(high, np.float32)
        self.seed, self.seconds, self.choices, self.folder, self.step = seed, seconds, tuple(choices), folder, step
        self.device = next(model.parameters()).device
        self.image_size = model.config.encoder.image_size
        config = config or MPCConfig(context=model.history)
        self._mpc = config.build(copy.copy(solver or make_solver("cem")), compile)
        self._project, self._autocast = project, autocast
        self._goal_BK: Tensor | None = None
        self._metric: Metric | None = None
        self._steps: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._calls = 0
        self._queue: list[NDArray[np.float32]] = []  # raw actions (B, A) to come
        self._blocks: list[Tensor] = []  # of the plan in force, (B, frameskip·A)
        self._code_BD: Tensor | None = None
        self._problem: LatentProblem | None = None
        self._plan: AgentPlan | None = None

    def fork(self, seed: int | None = None) -> "Agent":
        """An agent with the same model and settings, and an episode of its own."""
        other = copy.copy(self)
        other._mpc = self._mpc.config.build(copy.copy(self._mpc.solver), self._mpc.compile)
        other.seed = self.seed if seed is None else seed_of(self.seed, "fork", seed)
        other._goal_BK, other._metric = None, None
        other._begin()
        return other

    # Goals ------------------------------------------------------------------------------------------------------

    def reset(self, goal: Any, steps: int | None = None) -> None:
        """Begin an episode, or a batch of them, with one goal for all or one for each:

        - a picture, uint8 (h, w, 3) or (B, h, w, 3)
        - a code, floats (D,) or (B, D)
        - wanted values of factors, {"block_x": 300, "block_y": 200} or a list of such: `lpwm interpret RUN` keeps the
          linear probes that tell them from codes
        - a cost function of predicted codes, (…, D) -> (…)

        steps: the calls of `act` after which it is to be there. No plan then reaches beyond that; without it every
        plan is to arrive at its own end.
        """
        if steps is not None and steps < 1:
            raise UserError(f"steps = {steps}: give the actions of an episode, at least 1.")
        self._goal_BK, self._metric, self._steps = None, None, steps
        several = isinstance(goal, list | tuple) and bool(goal) and all(isinstance(g, Mapping) for g in goal)
        if isinstance(goal, Mapping) or several:
            self._goal_BK, self._metric = self._wanted([goal] if isinstance(goal, Mapping) else goal)
        elif callable(goal) and not isinstance(goal, Tensor):
            self._goal_BK, self._metric = torch.zeros(1, 0, device=self.device), self._cost(goal)
        else:
            self._goal_BK = self._code(goal)
        self._begin()

    @torch.no_grad()
    def _code(self, goal: Any) -> Tensor:
        array = _tensor(goal, "the goal")
        if not (array.is_floating_point() and array.ndim in (1, 2)):
            return self.model.encode(self._frames(_batch(array, "the goal")))
        if array.shape[-1] != self.model.config.latent:
            width = self.model.config.latent
            raise UserError(f"the goal is a code of {array.shape[-1]} numbers, and codes of {self.name} have {width}.")
        return array.to(self.device, torch.float32).reshape(-1, array.shape[-1])

    @torch.no_grad()
    def _cost(self, cost: Callable[[Tensor], Tensor]) -> Metric:
        given = cost(torch.zeros(2, 3, self.model.config.latent, device=self.device))
        if not isinstance(given, Tensor) or given.shape != (2, 3):
            got = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
            raise UserError(
                f"the cost function returned {got} for codes (2, 3, D): it must return (2, 3), one per code."
            )
        return lambda z_BSD, _: cost(z_BSD)

    def _wanted(self, goals: Sequence[Mapping[str, float]]) -> tuple[Tensor, Metric]:
        if self.folder is None:
            raise UserError("the agent does not know its run, where the probes of factors are kept: use lpwm.load.")
        from lpwm.interpret.factors import load_factors

        factors = load_factors(Path(self.folder), self.step)
        costs = [factors.cost(goal) for goal in goals]

        def metric(z_BSD: Tensor, which_B11: Tensor) -> Tensor:
            if len(costs) == 1:
                return costs[0](z_BSD)
            return torch.stack([costs[i](z) for i, z in zip(which_B11.flatten().tolist(), z_BSD, strict=True)])

        return torch.arange(len(goals), device=self.device)[:, None], metric

    # Acting -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, frame: Any) -> Any:
        """The next raw action for this frame, float32 (A,) or (B, A) within the bounds; a choice comes as an int."""
        begun = time.perf_counter()
        if self._goal_BK is None:
            raise UserError("the agent has no goal: call reset(goal=frame) first.")
        batch = _batch(frame, "the frame")
        if self._calls % self.frameskip == 0:
            self._observe(self._frames(batch))
        if not self._queue:
            if self.seconds is not None:
                self._mpc.solver.seconds = max(0.0, self.seconds - (time.perf_counter() - begun))
            blocks_BRA = self._executed(self._mpc.plan(self._make_problem, self.seed))
            self._blocks, self._plan = list(blocks_BRA.unbind(1)), None
            raw_BTA = from_blocks(self.stats.denormalize(blocks_BRA), self.frameskip).float().cpu().numpy()
            self._queue = list(raw_BTA.clip(self.low, self.high).swapaxes(0, 1))  # one look at the device per plan
        self._calls += 1
        action = self._queue.pop(0)
        if self.choices:
            action = np.array(self.choices)[action.argmax(-1)]
        return action if np.ndim(frame) == 4 else int(action[0]) if self.choices else action[0]

    def _observe(self, frames: Tensor) -> None:
        z_BD = self.model.encode(frames)
        if self._code_BD is None:
            assert self._goal_BK is not None
            goals, batch = len(self._goal_BK), len(frames)
            if goals not in (1, batch):
                raise UserError(f"there are {goals} goals and {batch} frames: give one goal, or one per frame.")
            self._goal_BK = self._goal_BK.expand(batch, -1)
            self._mpc.begin(z_BD, None if self._steps is None else -(-self._steps // self.frameskip))
        elif len(self._code_BD) != len(frames):
            count = f"{len(frames)} frames, and the episode began with {len(self._code_BD)}"
            raise UserError(f"there are {count}: call reset(goal=…) for another batch.")
        else:
            self._mpc.observe(z_BD, self._blocks.pop(0))
        self._code_BD = z_BD

    def _make_problem(self, z_BCD: Tensor, past_BPA: Tensor | None, horizon: int) -> LatentProblem:
        assert self._goal_BK is not None
        self._problem = LatentProblem(
            self.model,
            z_BCD,
            self._goal_BK.contiguous(),
            past_BPA,
            horizon,
            autocast=self._autocast,
            path_discount=self._mpc.config.path_discount,
            project=self._project,
            metric=self._metric,
        )
        return self._problem

    def _executed(self, blocks: Tensor) -> Tensor:
        return blocks if self._project is None else self._project(blocks)

    def _left(self, z: Tensor, goal: Tensor) -> Tensor:
        return mean_square(z, goal).sqrt() if self._metric is None else self._metric(z, goal)

    @property
    def distance(self) -> NDArray[np.float32] | None:
        if self._code_BD is None or self._goal_BK is None:
            return None
        with torch.no_grad():
            return self._left(self._code_BD[:, None], self._goal_BK[:, None])[:, 0].cpu().numpy()

    @property
    def plan(self) -> AgentPlan | None:
        """Imagined when it is asked for: `act` does not wait for it."""
        last, p = self._mpc.last, self._problem
        if self._plan is None and last is not None and p is not None:
            with torch.no_grad():
                blocks_BHA = self._executed(last.actions_BHA)
                z_BHD = self.model.rollout(p.z_BCD, blocks_BHA[:, None], past_BPA=p.past_BPA)[:, 0]
                raw_BTA = from_blocks(self.stats.denormalize(blocks_BHA), self.frameskip)
                low, high = (torch.from_numpy(bound).to(raw_BTA) for bound in (self.low, self.high))
                left_BH = self._left(z_BHD, p.z_goal_BD[:, None])
            known = last.actions_BHA, last.costs_B, last.info
            self._plan = AgentPlan(*known, raw_BTA=raw_BTA.clamp(low, high), codes_BHD=z_BHD, distances_BH=left_BH)
        return self._plan

    def _frames(self, batch_BHWC: Tensor) -> Tensor:
        """(B, 3, size, size) uint8 on the model's device."""
        frames = batch_BHWC.to(self.device).permute(0, 3, 1, 2).contiguous()
        return resize(frames, (self.image_size, self.image_size))


def _batch(given: Any, what: str) -> Tensor:
    """uint8 (B, h, w, 3)."""
    array = _tensor(given, what)
    if array.dtype != torch.uint8 or array.ndim not in (3, 4) or array.shape[-1] != 3 or 0 in array.shape:
        is_ = f"{str(array.dtype).removeprefix('torch.')} of shape {tuple(array.shape)}"
        raise UserError(f"{what} is {is_}: give uint8 (height, width, 3), or a batch (B, height, width, 3).")
    return array[None] if array.ndim == 3 else array


def _tensor(given: Any, what: str) -> Tensor:
    if isinstance(given, Tensor):
        return given
    array = np.asarray(given)
    if array.dtype.kind not in "uifb":
        raise UserError(f"{what} is {type(given).__name__}, not an array: give uint8 (height, width, 3).")
    return torch.as_tensor(array)


def load(
    path: str | os.PathLike[str] | Any,
    device: str | torch.device = "cpu",
    *,
    preset: str = "quick",
    solver: str | SolverConfig | Solver | None = None,
    horizon: int | None = None,
    receding: int = 1,
    seconds: float | None = None,
    compile: bool = False,
    precision: Literal["float32", "bfloat16"] | None = None,
    seed: int = 0,
    checkpoint: str = "latest",
) -> Agent:
    """An agent from a run, a checkpoint, a folder of `save_pretrained`, or owner/name on the Hugging Face Hub.

    preset    where the solver and the horizon come from: one of `lpwm eval`'s
    solver    another one: a name ("cem", "icem", "mppi", "gradient", "lqr") or a config (`lpwm.CEMConfig(samples=64)`)
    receding  blocks executed before planning again
    seconds   a plan takes as many of the solver's iterations as fit
    compile   on CUDA, a plan becomes one graph; the first one takes a minute
    precision in which candidates are scored; the preset's, when not given
    """
    if "gymnasium" in sys.modules:  # imported after lpwm: its make knows our worlds from here on
        register_worlds()
    path = getattr(path, "folder", path)
    settings = find_preset(preset)
    model = WorldModel.from_pretrained(path, device=pick_device(device), checkpoint=checkpoint)
    use = Use.of(model, str(path))
    if use.normalization is None or use.frameskip is None:
        raise UserError(
            f"{path} does not say how its actions are normalized: save it with meta={{'normalization': …, "
            "'frameskip': …}, or load the run it came from."
        )
    if precision not in (None, "float32", "bfloat16"):
        raise UserError(f"unknown precision {precision!r}: use float32 or bfloat16.")
    horizon, context = settings.horizons[0] if horizon is None else horizon, settings.context or model.history
    config = MPCConfig(horizon, receding, settings.warm, context, path_discount=settings.path_discount)
    if solver is None:
        solver = settings.build_solver()
    elif isinstance(solver, str):
        solver = make_solver(solver)
    elif not isinstance(solver, Solver):
        solver = solver.build()
    gym = use.spec.name.startswith("gym:")
    first = "choice "  # how discrete actions are recorded: one-hot, by their numbers
    return Agent(
        model,
        use.normalization,
        use.frameskip,
        use.spec.action_low,
        use.spec.action_high,
        name=Path(path).name,
        solver=solver,
        config=config,
        seed=seed,
        seconds=seconds,
        compile=compile,
        autocast=torch.bfloat16 if (precision or settings.precision) == "bfloat16" else None,
        choices=[int(n.removeprefix(first)) for n in use.spec.action_names if n.startswith(first)],
        project=Projection(use.spec, use.normalization, use.frameskip) if gym else None,
        folder=path,
        step=use.step or None,
    )
