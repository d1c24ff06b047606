"""The worlds as gymnasium environments, one at a time and batched.

`import lpwm` registers lpwm/Piecewise-v0, PushT-v0, TwoRoom-v0, Wall-v0 and Cube-v0 with gymnasium (`gym_ids`):

    gymnasium.make("lpwm/Piecewise-v0", g=3, render_mode="rgb_array", size=64)
    gymnasium.make_vec("lpwm/Piecewise-v0", num_envs=64, g=3, render_mode="rgb_array")

Observations are the state followed by the goal's state, float32. `info` carries `state`, `proprio`,
`goal_state` and `distance`; the reward is 1 on the step that reaches the goal, which ends the episode, and 0
before. `reset` takes `options={"state": …, "goal_state": …}`.

A world of live simulators (PushT) keeps them in this process; `workers=4` spreads a batch over four others.

Environment i of a batch, seeded with s, is the single environment seeded with s + i.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from lpwm.core.errors import UserError, nearest
from lpwm.worlds import Live, SimWorld, World, WorldSpec, make
from lpwm.worlds.gym_ids import register_worlds

FRAMES_PER_SECOND = 10
Float = NDArray[np.float32]


class _Batch:
    """N environments of a world, with hidden state or without: their states and goals (N, S), and their generators."""

    def __init__(self, world: World, n: int, workers: int | None = 1) -> None:
        self.world, self.workers = world, workers
        self.states = self.goals = torch.zeros((n, world.spec.state_dim))
        self._live: Live | None = None

    def reset(
        self, rows: NDArray[np.int64], generators: list[np.random.Generator], options: dict[str, Any] | None
    ) -> None:
        """New starts and goals of these rows: drawn with their own generators, or given in `options`."""
        options = dict(options or {})
        given = {name: options.pop(name, None) for name in ("state", "goal_state")}
        if options:
            unknown = next(iter(options))
            raise UserError(f"reset has no option {unknown!r}: {nearest(unknown, given)}.")
        keys = [("gym", int(g.integers(2**63))) for g in generators]
        samples = {"state": self.world.sample_state, "goal_state": self.world.sample_goal}
        states, goals = (
            _given(given[name], torch.cat([draw(1, key) for key in keys]), rows) for name, draw in samples.items()
        )
        where = torch.as_tensor(rows)
        self.states, self.goals = self.states.index_copy(0, where, states), self.goals.index_copy(0, where, goals)
        if isinstance(self.world, SimWorld):
            if self._live is None:
                assert len(rows) == len(self.states)  # the first reset is everybody's
                self._live = self.world.open(states, self.workers)
            else:
                self._live.restart(where, states)
            self.states = self._live.states

    def step(self, action: Float) -> NDArray[np.bool_]:
        """Actions (N, A); which environments are at their goals."""
        action_NA = torch.as_tensor(np.asarray(action, dtype=np.float32))
        if isinstance(self.world, SimWorld):
            assert self._live is not None
            self.states = self._live.step(action_NA)
        else:
            self.states = self.world.step(self.states, action_NA)
        return self.world.success(self.states, self.goals).numpy()

    def observe(self) -> tuple[Float, dict[str, Any]]:
        info = {
            "state": self.states.numpy().copy(),
            "proprio": self.states[:, list(self.world.spec.proprio)].numpy(),
            "goal_state": self.goals.numpy().copy(),
            "distance": self.world.distance(self.states, self.goals).numpy(),
        }
        return torch.cat((self.states, self.goals), dim=1).numpy(), info

    def frames(self, size: int | None) -> NDArray[np.uint8]:
        """(N, size, size, 3)."""
        return self.world.render(self.states, size).permute(0, 2, 3, 1).numpy()

    def close(self) -> None:
        if self._live is not None:
            self._live.close()
            self._live = None


class WorldEnv(gymnasium.Env[Float, Float]):
    """One environment."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_SECOND}  # noqa: RUF012

    def __init__(self, world: str, render_mode: str | None = None, size: int | None = None, **options: Any) -> None:
        _check_mode(render_mode)
        self.world = make(world, **options)
        self.render_mode = render_mode
        self.size = size
        self.observation_space, self.action_space = _spaces(self.world.spec)
        self._batch = _Batch(self.world, 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Float, dict[str, Any]]:
        super().reset(seed=seed)
        self._batch.reset(np.zeros(1, dtype=np.int64), [self.np_random], options)
        return self._observe()

    def step(self, action: Float) -> tuple[Float, float, bool, bool, dict[str, Any]]:
        reached = bool(self._batch.step(np.asarray(action)[None]))
        observation, info = self._observe()
        return observation, float(reached), reached, False, info

    def render(self) -> NDArray[np.uint8] | None:
        return self._batch.frames(self.size)[0] if self.render_mode else None

    def close(self) -> None:
        self._batch.close()

    def _observe(self) -> tuple[Float, dict[str, Any]]:
        observation, info = self._batch.observe()
        return observation[0], {name: value[0] for name, value in info.items()}


class WorldVectorEnv(VectorEnv[Float, Float, Any]):
    """N environments stepped together. A finished one is reset by the step after (gymnasium's NEXT_STEP)."""

    metadata = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": FRAMES_PER_SECOND,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        world: str,
        num_envs: int = 1,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        size: int | None = None,
        workers: int | None = 1,
        **options: Any,
    ) -> None:
        _check_mode(render_mode)
        if num_envs < 1:
            raise UserError(f"a batch needs at least one environment, not num_envs={num_envs}.")
        self.world = make(world, **options)
        self.render_mode = render_mode
        self.size = size
        self.num_envs = num_envs
        self.max_episode_steps = max_episode_steps
        self.single_observation_space, self.single_action_space = _spaces(self.world.spec)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._batch = _Batch(self.world, num_envs, workers)
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._done = np.zeros(num_envs, dtype=bool)
        self._generators = [seeding.np_random()[0] for _ in range(num_envs)]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float, dict[str, Any]]:
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        if seeds is not None and len(seeds) != self.num_envs:
            raise UserError(f"reset needs one seed or {self.num_envs}, not {len(seeds)}.")
        for i, one in enumerate(seeds or ()):
            if one is not None:
                self._generators[i] = seeding.np_random(one)[0]
        self._restart(np.arange(self.num_envs), options)
        return self._observe()

    def step(
        self, actions: Float
    ) -> tuple[Float, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        fresh = self._done
        reached = self._batch.step(actions) & ~fresh
        self._steps += 1
        if fresh.any():
            self._restart(np.flatnonzero(fresh), None)
        observation, info = self._observe()
        late = np.zeros(self.num_envs, dtype=bool)
        if self.max_episode_steps is not None:
            late = (self._steps >= self.max_episode_steps) & ~fresh
        self._done = reached | late
        return observation, reached.astype(np.float64), reached, late, info

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        return tuple(self.frames()) if self.render_mode else None

    def close_extras(self, **kwargs: Any) -> None:
        self._batch.close()

    def frames(self) -> NDArray[np.uint8]:
        """What all environments look like now, (N, size, size, 3)."""
        return self._batch.frames(self.size)

    def _restart(self, rows: NDArray[np.int64], options: dict[str, Any] | None) -> None:
        self._batch.reset(rows, [self._generators[i] for i in rows], options)
        self._steps[rows] = 0
        self._done = np.zeros(self.num_envs, dtype=bool)

    def _observe(self) -> tuple[Float, dict[str, Any]]:
        observation, info = self._batch.observe()
        present = {f"_{name}": np.ones(self.num_envs, dtype=bool) for name in info}
        return observation, {**info, **present}


def _check_mode(render_mode: str | None) -> None:
    if render_mode not in (None, "rgb_array"):
        raise UserError(f"unknown render_mode {render_mode!r}: {nearest(render_mode, ['rgb_array'])}.")


def _spaces(spec: WorldSpec) -> tuple[spaces.Box[np.float32], spaces.Box[np.float32]]:
    """State and goal can be anywhere in the arena; actions within the world's bounds."""
    low, high = (np.asarray(2 * bound, dtype=np.float32) for bound in (spec.state_low, spec.state_high))
    least, most = (np.asarray(bound, dtype=np.float32) for bound in (spec.action_low, spec.action_high))
    return spaces.Box(low, high, dtype=np.float32), spaces.Box(least, most, dtype=np.float32)


def _given(value: Any, drawn: Tensor, rows: Any) -> Tensor:
    """One state for all environments or one for each; the drawn ones where none is given."""
    if value is None:
        return drawn
    array = np.asarray(value, dtype=np.float32)
    if array.shape[-1:] != drawn.shape[1:] or array.ndim > 2 or (array.ndim == 2 and len(array) != len(rows)):
        raise UserError(f"reset needs states of shape {tuple(drawn.shape)}, not {array.shape}.")
    return torch.tensor(np.broadcast_to(array, tuple(drawn.shape)).copy())


register_worlds()  # gymnasium's own convention: importing the module makes its names known
