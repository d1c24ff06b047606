"""One gymnasium environment: made by its ID, its actions and state as vectors, its picture.

Not every environment can be set to a state. Three kinds can: those with `get_state()` and `set_state(vector)`, which a
wrapper may provide, MuJoCo's (qpos, qvel), and those that keep all they are in a vector `state` (the classic ones). A
state of the others is known by its tape: the seed of the reset and the actions since (`gym_sim`).

A size of an action, S of a state.
"""

import functools
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from lpwm.core import plugins
from lpwm.core.errors import UserError, nearest
from lpwm.core.resize import resize

Float = NDArray[np.float64]

EPISODE = 200  # raw steps, where the environment does not say
PROBE = 60  # random steps that tell how an environment behaves
TAPE = ("tape_high", "tape_low")  # of a state that cannot be set: 24 bits each, so exact in float32
CLOSE = 1e-3  # relative: a state that was set or replayed is the same
SUCCESS = "is_success"


def make_env(env_id: str, kwargs: str, wrapper: str) -> Any:
    """The environment with its wrapper, ready to draw. kwargs: JSON of `gymnasium.make`'s arguments."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else pygame prints an error on machines without a screen
    module, colon, name = env_id.rpartition(":")
    if colon and (":" in module or not plugins.is_given(env_id)):
        raise UserError(
            f"the environment {env_id!r} names a module, and names in files are not imported: add --plugin {module} if "
            "you trust it."
        )
    if colon:
        plugins.load_plugin(module)
    if name not in gymnasium.registry:
        raise UserError(
            f"gymnasium has no environment {name!r}: {nearest(name, gymnasium.registry)}; others are registered by "
            "a module of theirs (--plugin MODULE)."
        )
    options = {"disable_env_checker": True, **json.loads(kwargs)}
    for value in _texts(options):  # some environments make others, by names that import modules
        if ":" in value and not plugins.is_given(value):
            raise UserError(f"the option {value!r} of {name} may name a module: add --plugin {value} if you trust it.")
    try:
        env: Any = gymnasium.make(name, render_mode="rgb_array", **options)
    except gymnasium.error.DependencyNotInstalled as error:
        raise _missing(name, error) from error
    except Exception as error:  # another's constructor fails in any way
        raise UserError(f"gymnasium cannot make {name}: {_short(error)}.") from error
    if wrapper:
        env = plugins.named(wrapper, "wrapper")(env)
        if not hasattr(env, "step"):
            raise UserError(f"the wrapper {wrapper} gives {type(env).__name__}: it must give an environment.")
    if "rgb_array" not in ((env.metadata or {}).get("render_modes") or ()):
        env.reset(seed=0)  # it may draw although it does not say so
        if not isinstance(_picture(env), np.ndarray):
            raise UserError(
                f"{name} draws nothing (it has no render mode rgb_array): a world model needs frames; give it a "
                "wrapper that draws (--wrapper module:function)."
            )
    return env


def _texts(value: Any) -> list[str]:
    """All texts in a value of JSON."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value] if isinstance(value, str) else [text for one in inner for text in _texts(one)]


def _picture(env: Any) -> Any:
    try:
        return env.render()
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise _missing(_name(env), error) from error
    except Exception as error:  # another's drawing fails in any way
        raise UserError(f"{_name(env)} does not draw ({type(error).__name__}: {_short(error)}).") from error


def _missing(name: str, error: Exception) -> UserError:
    return UserError(
        f"{name} needs a package that is not installed ({_short(error)}): pip install 'lpwm[gym]' brings what the "
        "classic environments draw with."
    )


def _short(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__


def _name(env: Any) -> str:
    return env.spec.id if env.spec is not None else type(env).__name__


def draw(env: Any, size: int) -> NDArray[np.uint8]:
    """What it looks like now, (3, size, size); a picture that is not square is squeezed."""
    frame = _picture(env)
    frame = frame[-1] if isinstance(frame, list) and frame else frame
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise UserError(
            f"{_name(env)} renders {got}: frames must be uint8 (height, width, 3); give it a wrapper that draws."
        )
    picture = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)[None]
    return resize(picture, (size, size))[0].numpy()


@dataclass(frozen=True)
class Actions:
    """An action space as a vector within bounds. A choice among n is one-hot: the largest entry counts."""

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]
    first: int | None = None  # of a Discrete space, its smallest action

    @classmethod
    def of(cls, space: Any, env_id: str) -> "Actions":
        if isinstance(space, spaces.Discrete):
            n, first = int(space.n), int(space.start)
            return cls(tuple(f"choice {first + i}" for i in range(n)), (0.0,) * n, (1.0,) * n, (), first)
        problem = f"its actions are {str(space).splitlines()[0][:80]}"
        if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
            low, high = (np.asarray(b, np.float64).ravel() for b in (space.low, space.high))
            if np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all():
                names = ("action",) if len(low) == 1 else tuple(f"action_{i}" for i in range(len(low)))
                return cls(names, tuple(low.tolist()), tuple(high.tolist()), space.shape)
            problem = "its actions have no bounds"
        raise UserError(
            f"{env_id} cannot be used: {problem}, and actions must be Discrete or a Box of floats with finite bounds; "
            "a wrapper can change them (--wrapper module:function)."
        )

    def snap(self, action: Any) -> Float:
        """The action that is executed: within the bounds, or one-hot. (A,) -> (A,)"""
        action = np.asarray(action, np.float64)
        if self.first is None:
            return action.clip(self.low, self.high)
        return np.eye(len(self.low))[int(action.argmax())]

    def send(self, snapped: Float) -> Any:
        """As the environment takes it."""
        if self.first is not None:
            return self.first + int(snapped.argmax())
        return snapped.astype(np.float32).reshape(self.shape)

    def receive(self, action: Any) -> Float:
        """The environment's own action, from a policy, as a vector."""
        first, n, values = self.first, len(self.low), np.ravel(action).tolist()
        if first is not None and len(values) == 1 and values[0] in range(first, first + n):
            return np.eye(n)[int(values[0]) - first]
        if first is None and len(values) == n and all(isinstance(v, int | float) and np.isfinite(v) for v in values):
            return self.snap(values)
        wanted = f"{n} finite numbers" if first is None else f"a whole number from {first} to {first + n - 1}"
        raise UserError(f"{action!r} is not an action of this environment: give {wanted}.")


def flatten(observation: Any, prefix: str = "") -> dict[str, float]:
    """Every number of an observation by its name: a dictionary's keys joined by dots. Pictures are left out."""
    if isinstance(observation, Mapping):
        parts = [flatten(value, f"{prefix}{key}.") for key, value in observation.items()]
        return {name: value for part in parts for name, value in part.items()}
    if isinstance(observation, tuple | list):
        return flatten(dict(enumerate(observation)), prefix)
    array = np.asarray(observation)
    number = np.issubdtype(array.dtype, np.number) or array.dtype == bool
    if not number or (array.dtype == np.uint8 and array.ndim >= 2):
        return {}
    stem = prefix.removesuffix(".") or "observation"
    if array.ndim == 0:
        return {stem: float(array)}
    return {f"{stem}_{i}": float(x) for i, x in enumerate(array.ravel())}


# How an environment is set to a state ---------------------------------------------------------------------------

KINDS = ("methods", "mujoco", "attribute")


def get_state(env: Any, kind: str) -> Float | None:
    """All it is, as a vector; None where it has none of this kind."""
    inner = env.unwrapped
    if kind == "methods":
        if not (env.has_wrapper_attr("get_state") and env.has_wrapper_attr("set_state")):
            return None
        return np.array(env.get_wrapper_attr("get_state")(), np.float64).ravel()
    if kind == "mujoco":
        data: Any = getattr(inner, "data", None)
        if not (hasattr(data, "qpos") and callable(getattr(inner, "set_state", None))):
            return None
        return np.concatenate([data.qpos, data.qvel]).astype(np.float64)
    try:
        state = np.array(inner.state, np.float64)
    except (AttributeError, TypeError, ValueError):
        return None
    return state if state.ndim == 1 and state.size else None


def set_state(env: Any, kind: str, state: Float) -> None:
    """After a reset, so that nothing else of an earlier episode is left."""
    env.reset(seed=0)
    inner = env.unwrapped
    if kind == "methods":
        env.get_wrapper_attr("set_state")(np.array(state))
    elif kind == "mujoco":
        n = len(inner.data.qpos)
        inner.set_state(np.array(state[:n]), np.array(state[n:]))
    elif isinstance(inner.state, np.ndarray):
        inner.state = np.array(state, inner.state.dtype)
    else:
        inner.state = tuple(state.tolist())


# What an environment is, by trying it ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """What the names of gymnasium's own environments mean."""

    names: tuple[str, ...] = ()
    angles: tuple[str, ...] = ()  # columns in radians
    columns: tuple[str, ...] = ()  # those in which a goal is near
    within: float = 0.0
    goal_steps: int = 0


KNOWN = {
    "Pendulum": Known(("angle", "velocity"), ("angle",), ("angle",), 0.3),
    "CartPole": Known(("x", "velocity", "angle", "spin"), (), ("x", "angle"), 0.1, 30),
    "MountainCar": Known(("position", "velocity"), (), ("position",), 0.05, 200),
    "MountainCarContinuous": Known(("position", "velocity"), (), ("position",), 0.05, 200),
    "Acrobot": Known(
        ("angle_1", "angle_2", "velocity_1", "velocity_2"), ("angle_1", "angle_2"), ("angle_1",), 0.3, 100
    ),
}


@dataclass(frozen=True)
class Facts:
    """What trying an environment tells about it."""

    kind: str  # of the state that it can be set to, or "replay"
    exact: bool  # a set state continues to the last bit
    deterministic: bool  # the same seed and actions lead to the same state
    names: tuple[str, ...]  # of the state
    actions: Actions
    episode: int
    spread: tuple[float, ...]  # of each entry of the state in random play


@functools.lru_cache(maxsize=16)
def try_out(env_id: str, kwargs: str, wrapper: str) -> Facts:
    """Try it: 60 random steps, the same again, and once more from a state that was set."""
    first, second = (make_env(env_id, kwargs, wrapper) for _ in range(2))
    actions = Actions.of(first.action_space, env_id)
    draws = np.random.default_rng(0)
    moves = [actions.snap(draws.uniform(actions.low, actions.high)) for _ in range(PROBE)]
    rows = _play(first, actions, moves)
    again = _play(second, actions, moves)
    names, values = list(flatten(rows[-1][0])), [list(flatten(r[0]).values()) for r in rows]
    if any(list(flatten(r[0])) != names for r in rows):
        raise UserError(f"gym:{env_id} gives observations of different sizes: give it a wrapper that makes them alike.")
    deterministic = values == [list(flatten(r[0]).values()) for r in again]
    kind, exact, own = "replay", False, np.array(values)
    for candidate in KINDS:
        states = _states(env_id, kwargs, wrapper, actions, moves, candidate)
        if states is not None:
            kind, exact, own = candidate, states[1], states[0]
            known = KNOWN.get(env_id.rpartition("-")[0], Known()).names
            names = list(known) if len(known) == own.shape[1] else [f"state_{i}" for i in range(own.shape[1])]
            break
    if not names:
        raise UserError(f"gym:{env_id} can neither be set to a state nor gives numbers as observations: wrap it.")
    names += [SUCCESS] if SUCCESS in rows[-1][1] else []
    spread = np.where(own.std(0) > 1e-6, own.std(0), 1.0).tolist()
    steps = first.spec.max_episode_steps if first.spec is not None else None
    names += list(TAPE) if kind == "replay" else []
    spread += [1.0] * (len(names) - len(spread))
    return Facts(kind, exact, deterministic, tuple(names), actions, int(steps or EPISODE), tuple(spread))


def _play(env: Any, actions: Actions, moves: list[Float]) -> list[tuple[Any, dict[str, Any]]]:
    """Observations and infos of random play, begun anew with the next seed where it ends."""
    seed, rows = 0, [env.reset(seed=0)]
    for move in moves:
        observation, _, ended, cut, info = env.step(actions.send(move))
        rows.append((observation, info))
        if ended or cut:
            seed += 1
            rows.append(env.reset(seed=seed))
    return rows


def _states(
    env_id: str, kwargs: str, wrapper: str, actions: Actions, moves: list[Float], kind: str
) -> tuple[Float, bool] | None:
    """States of random play, and whether they are set exactly; None where setting them does not work."""
    first, second = (make_env(env_id, kwargs, wrapper) for _ in range(2))
    first.reset(seed=7)  # another seed than that of `set_state`: what a reset draws may be more than the state
    second.reset(seed=0)
    state = get_state(first, kind)
    states, exact = [state], True
    for t, move in enumerate(moves):
        if state is None:
            return None
        _, _, ended, cut, _ = first.step(actions.send(move))
        after = get_state(first, kind)
        if t % 10 == 3:
            set_state(second, kind, state)
            second.step(actions.send(move))
            reached = get_state(second, kind)
            if after is None or reached is None or after.shape != reached.shape:
                return None
            if np.abs(after - reached).max() > CLOSE * (1 + np.abs(after).max()):
                return None
            exact = exact and bool((after == reached).all())
        if ended or cut:
            first.reset(seed=7 + t)
            after = get_state(first, kind)
        state = after
        states.append(state)
    rows = np.array(states)
    return (rows, exact) if rows.std(0).max() > 0 else None
