"""Any gymnasium environment as a world: `make_world("gym:Pendulum-v1")`.

The state is the environment's own where it can be set to one (`gym_env`), otherwise the numbers of its observation and
two that name its tape: the seed and the actions since, done again where a start or a goal is needed. Frames are what
the live environment draws; `render(state)` draws an environment that was set to the state, or replayed to it.

An environment that ends (`terminated`) stays as it is; data end there.

N environments, S state, A action, T steps.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpwm.core import plugins
from lpwm.core.errors import UserError, nearest
from lpwm.worlds.base import Key, Renderer, WorldSpec, row_keys
from lpwm.worlds.gym_env import KNOWN, SUCCESS, TAPE, Facts, Float, Known, try_out
from lpwm.worlds.gym_sim import Simulator, remember, spare
from lpwm.worlds.pool import Live, Snapshot, open_live


@dataclass(frozen=True, eq=True)
class GymWorld:
    """id: what `gymnasium.make` takes. Options:

    wrapper     module:function (or the function) from the environment to the one to use
    kwargs      of `gymnasium.make`
    frame       the side of a frame
    columns     of the state, in whose numbers a goal must be near; within: how near. Without them all, in units of
                their standard deviation in random play, and half of it
    angles      columns in radians, whose difference is taken around the circle
    reached     in place of a distance: "env", the environment's own is_success; or module:function of two dictionaries
                of columns, state and goal
    goal_steps  random actions before a state is taken for a goal, at most; 0: states as the environment begins
    noop        of discrete actions the one that does nothing, if there is one
    """

    id: str
    wrapper: Any = None
    kwargs: Any = None
    frame: int = 64
    columns: Any = None
    within: Any = None
    angles: Any = None
    reached: Any = None
    goal_steps: Any = None
    noop: Any = None

    live_frames: ClassVar[bool] = True  # what is seen may be more than the state: live simulators draw themselves

    def __post_init__(self) -> None:
        known = KNOWN.get(self.id.rpartition("-")[0], Known())
        kwargs = self.kwargs if isinstance(self.kwargs, str) else json.dumps(self.kwargs or {}, sort_keys=True)
        own = known.columns if self.columns is None else _tuple(self.columns)
        values = {
            "wrapper": plugins.name_of(self.wrapper) if self.wrapper else "",
            "reached": plugins.name_of(self.reached) if self.reached else "",
            "kwargs": kwargs,
            "columns": own,
            "angles": known.angles if self.angles is None else _tuple(self.angles),
            "within": float(self.within or (known.within if own == known.columns else 0.0)),
            "goal_steps": known.goal_steps if self.goal_steps is None else int(self.goal_steps),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.within < 0 or self.goal_steps < 0 or self.frame < 8:
            raise UserError("within and goal_steps of a gym world must not be negative, and frame at least 8.")

    def __reduce__(self) -> Any:
        """To worker processes with what the user gave: they have no command line."""
        names = [n for n in (self.wrapper, self.reached, self.id) if ":" in n and plugins.is_given(n)]
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return _received, (fields, names, plugins.loaded())

    @property
    def facts(self) -> Facts:
        return try_out(self.id, self.kwargs, self.wrapper)

    @functools.cached_property
    def spec(self) -> WorldSpec:
        facts = self.facts
        for column in (*self.columns, *self.angles):
            if column not in facts.names:
                raise UserError(f"gym:{self.id} has no state column {column!r}: {nearest(column, facts.names)}.")
        if self.reached == "env" and SUCCESS not in facts.names:
            raise UserError(f"gym:{self.id} does not tell is_success in its info: choose columns and within instead.")
        if ":" in self.reached and plugins.is_given(self.reached):
            plugins.named(self.reached, "success function")  # a wrong name is told before anything is recorded
        usual, options = GymWorld(self.id), {}
        for f in dataclasses.fields(self)[1:]:
            value = getattr(self, f.name)
            if value != getattr(usual, f.name):
                options[f.name] = json.loads(value) if f.name == "kwargs" else value
        return WorldSpec(
            name=f"gym:{self.id}",
            options=options,
            state_names=facts.names,
            action_names=facts.actions.names,
            action_low=facts.actions.low,
            action_high=facts.actions.high,
            frame=self.frame,
            episode=facts.episode,
            factors=tuple(self.factors(torch.zeros(1, len(facts.names)))),
            success_within=0.0 if self.reached else self._within,
        )

    # Starts, goals, simulators ----------------------------------------------------------------------------------

    def sample_state(self, n: int, key: Key, start: int = 0) -> Tensor:
        """As the environment begins, by the seed of the row."""
        return self._begun(row_keys((*key, "state"), n, start), 0)

    def sample_goal(self, n: int, key: Key, start: int = 0) -> Tensor:
        return self._begun(row_keys((*key, "goal"), n, start), self.goal_steps)

    def _begun(self, keys: Tensor, most: int) -> Tensor:
        rows = [self._played(seed, most).state for seed in _seeds(keys)]
        return torch.from_numpy(np.array(rows, np.float32).reshape(len(keys), len(self.facts.names)))

    def _played(self, seed: int, most: int) -> Simulator:
        """The simulator of this process that is tried out, after a reset and up to `most` random actions."""
        simulator, draws = spare(self), np.random.default_rng(seed)
        simulator.begin(seed)
        for _ in range(int(draws.integers(most + 1)) if most else 0):
            simulator.step(draws.uniform(self.facts.actions.low, self.facts.actions.high))
        return simulator

    def open(self, states: Any, workers: int | None = 1) -> Live:
        if not isinstance(states, Snapshot):
            states = torch.as_tensor(states)
            if states.ndim != 2 or states.shape[1] != len(self.facts.names):
                raise UserError(f"gym:{self.id} opens at states (N, {len(self.facts.names)}), not {states.shape}.")
        return open_live(functools.partial(Simulator, self), states, workers)

    def remember(self, states: Tensor, actions: Tensor) -> None:
        """Rows of recorded episodes, so that their states can be reached again where they cannot be set."""
        if self.facts.kind == "replay":
            remember(self.facts.actions, states, actions)

    @property
    def controls(self) -> tuple[str, ...]:
        """Doing nothing needs such an action; the oracle an environment that can be set back."""
        still = () if self.facts.actions.first is not None and self.noop is None else ("nothing",)
        return (*still, "random", *(("oracle",) if self.facts.kind != "replay" else ()))

    @property
    def still(self) -> tuple[float, ...]:
        """The action that does nothing."""
        actions = self.facts.actions
        vector = np.zeros(len(actions.low)) if self.noop is None else actions.receive(self.noop)
        return tuple(actions.snap(vector).tolist())

    # What is seen, and when a goal is reached -------------------------------------------------------------------

    def renderer(self, size: int | None = None, device: torch.device | str = "cpu") -> Renderer:
        return lambda state: self.render(state.to(device), size)

    def render(self, state: Tensor, size: int | None = None) -> Tensor:
        size = self.frame if size is None else size
        frames = np.zeros((len(state), 3, size, size), np.uint8)
        simulator = spare(self)
        for i, row in enumerate(state.detach().cpu().double().numpy()):
            simulator.go_to(row)
            frames[i] = simulator.frame(size)
        return torch.from_numpy(frames).to(state.device)

    def distance(self, state: Tensor, goal: Tensor) -> Tensor:
        names, spread = self.facts.names, self.facts.spread
        columns = self.columns or tuple(n for n in names if n not in (*TAPE, SUCCESS))
        apart = torch.stack([self._apart(state, goal, names.index(c)) for c in columns], -1)
        if not self.columns:
            apart = apart / apart.new_tensor([spread[names.index(c)] for c in columns]) / len(columns) ** 0.5
        return torch.linalg.vector_norm(apart, dim=-1)

    def _apart(self, state: Tensor, goal: Tensor, k: int) -> Tensor:
        difference = state[..., k] - goal[..., k]
        if self.facts.names[k] in self.angles:
            difference = torch.atan2(difference.sin(), difference.cos())
        return difference

    @property
    def _within(self) -> float:
        spread = [s for n, s in zip(self.facts.names, self.facts.spread, strict=True) if n in self.columns]
        return self.within or (0.5 if not spread else 0.5 * float(np.linalg.norm(spread)))

    def success(self, state: Tensor, goal: Tensor) -> Tensor:
        if not self.reached:
            return self.distance(state, goal) < self._within
        same = (state == goal).all(-1)
        if self.reached == "env":
            return same | (state[..., self.facts.names.index(SUCCESS)] > 0.5)
        named = ({n: x[..., k].cpu().numpy() for k, n in enumerate(self.facts.names)} for x in (state, goal))
        answer = np.asarray(plugins.named(self.reached, "success function")(*named), bool)
        return same | torch.as_tensor(np.broadcast_to(answer, same.shape).copy(), device=state.device)

    def factors(self, state: Tensor) -> dict[str, Tensor]:
        """The columns of the state; of an angle its cosine and sine, which are linear in what is seen."""
        out: dict[str, Tensor] = {}
        for k, name in enumerate(self.facts.names):
            if name in self.angles:
                out |= {f"cos {name}": state[..., k].cos(), f"sin {name}": state[..., k].sin()}
            elif name not in TAPE:
                out[name] = state[..., k]
        return out

    # Data -------------------------------------------------------------------------------------------------------

    def policy_from(self, function: Any) -> "GymPolicy":
        return GymPolicy(plugins.name_of(function), function)

    def record(
        self, policy: Any, key: Key, n: int, first: int, steps: int, size: int | None
    ) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8] | None]]:
        """Episodes first…first+n−1, one at a time: states (L, S), actions (L − 1, A), frames (L, size, size, 3). An
        episode starts as `sample_state` says and ends after `steps`, or when the environment does."""
        actions_of, own = self.facts.actions, isinstance(policy, GymPolicy)  # which sees no goals
        goals = torch.zeros(n, 0) if own else self.sample_goal(n, key, first)
        keys, seeds = (row_keys((*key, what), n, first) for what in ("policy", "state"))
        for row, seed in enumerate(_seeds(seeds)):
            simulator, mine, goal = spare(self), keys[row : row + 1], goals[row : row + 1]
            simulator.begin(seed)
            states, frames = [simulator.state], [simulator.frame(size)] if size else []
            actions: list[Float] = []
            draws, carried = np.random.default_rng(seed), None
            while len(actions) < steps and not simulator.over:
                if own:
                    action = actions_of.receive(policy.function(simulator.observation, draws))
                else:
                    state = torch.from_numpy(np.array(states[-1:], np.float32))
                    carried = policy.begin(state, goal, mine) if carried is None else carried
                    move, carried = policy.act(state, goal, carried, mine, len(actions))
                    action = actions_of.snap(move[0].double().numpy())
                actions.append(action)
                simulator.step(action)
                states.append(simulator.state)
                frames += [simulator.frame(size)] if size else []
            picture = np.stack(frames).transpose(0, 2, 3, 1) if size else None
            yield np.array(states, np.float32), np.array(actions, np.float32), picture

    def notes(self) -> list[str]:
        """Sentences about what this environment cannot do."""
        facts, out = self.facts, []
        if facts.kind == "replay":
            out.append(f"gym:{self.id} cannot be set to a state: starts and goals are replayed, seed and actions.")
        if not facts.deterministic:
            out.append(
                f"gym:{self.id} is not deterministic: the same seed and actions lead to different states, so "
                "starts and goals cannot be replayed exactly."
            )
        if facts.kind != "replay" and not _pure(self):
            out.append(
                f"the picture of gym:{self.id} shows more than its state (the last action, perhaps): a model may learn "
                "that instead; a wrapper can draw without it (--wrapper module:function)."
            )
        return out


@dataclass(frozen=True)
class GymPolicy:
    """A function of the observation and a NumPy generator that gives the environment's own action."""

    name: str
    function: Any

    def __repr__(self) -> str:
        return self.name


def _seeds(keys: Tensor) -> list[int]:
    return (keys & 0x7FFFFFFF).tolist()


def _tuple(value: Any) -> tuple[str, ...]:
    """Names in a list, or in a text with commas."""
    return tuple(value.split(",")) if isinstance(value, str) else tuple(value)


def _received(fields: dict[str, Any], names: list[str], modules: list[str]) -> GymWorld:
    plugins.give(*names)
    for module in modules:  # which may register the environment
        plugins.load_plugin(module)
    return GymWorld(**fields)


def _pure(world: GymWorld) -> bool:
    """Whether the live environment looks like one that was set to its state."""
    live = world._played(7, 0)
    for _ in range(3):
        live.step(world.facts.actions.high)
    seen, state = live.frame(64), live.state
    live.go_to(state)
    return bool((seen == live.frame(64)).all())
