"""Environments of a user's own module, which draw with NumPy: no package is needed."""

from posixpath import join  # noqa: F401 (what a module imports is not its own)

import gymnasium
import numpy as np
from gymnasium import spaces


class Slide(gymnasium.Env):
    """A bead on a line, which can be set to a state. It ends at the right border."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    observation_space = spaces.Box(-2.0, 2.0, (2,), np.float32)
    kept = "state"  # the attribute that holds what it is

    def __init__(self, render_mode=None, drag=0.5):
        self.render_mode, self.drag = render_mode, drag

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.put(self.np_random.uniform(-1, 0.5), 0.0)
        return self.observe(), {}

    def put(self, x, v):
        setattr(self, self.kept, np.array([x, v]))

    def observe(self):
        return getattr(self, self.kept).astype(np.float32)

    def step(self, action):
        x, v = getattr(self, self.kept)
        v = (1 - self.drag) * v + 0.1 * float(action[0])
        x = np.clip(x + v, -1, 1)
        self.put(x, v)
        return self.observe(), 0.0, bool(x >= 1), False, {}

    def render(self):
        frame = np.full((40, 60, 3), 255, np.uint8)
        at = int((getattr(self, self.kept)[0] + 1) / 2 * 49)
        frame[10:30, at : at + 10] = 0
        return frame


class Hidden(Slide):
    """The same behind a dictionary, with two choices; it cannot be set to a state."""

    action_space = spaces.Discrete(2, start=1)
    kept = "_bead"

    def __init__(self, render_mode=None, wind=0.0):
        super().__init__(render_mode)
        self.wind = wind

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"is_success": False}

    def observe(self):
        return {"bead": {"x": np.float32(self._bead[0])}, "picture": np.zeros((4, 4, 3), np.uint8)}

    def step(self, action):
        push = 2.0 * action - 3.0
        if self.wind:
            push += self.wind * np.random.default_rng().uniform()  # a generator that no seed reaches
        observation, reward, _, _, _ = super().step([push])
        return observation, reward, False, False, {"is_success": bool(self._bead[0] > 0.4)}


class Broken(Slide):
    """It fails as told."""

    kept = "_bead"

    def __init__(self, render_mode=None, how=""):
        super().__init__(render_mode)
        self.how = how
        if how == "unbounded":
            self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        if how == "tuple":
            self.action_space = spaces.Tuple([spaces.Discrete(2)])
        if how == "multi":
            self.action_space = spaces.MultiDiscrete([2, 3])

    def step(self, action):
        observation, *rest = super().step(action)
        observation = observation[:1] if self.how == "ragged" else observation
        return (observation * np.nan if self.how == "nan" else observation, *rest)

    def render(self):
        if self.how == "raises":
            raise RuntimeError("no display\nat all")
        return None if self.how == "empty" else super().render()


class Blind(Slide):
    metadata = {"render_modes": []}  # noqa: RUF012

    def render(self):
        return None


class Modest(Slide):
    """It draws and does not say so."""

    metadata = {}  # noqa: RUF012


class Visible(gymnasium.Wrapper):
    """It draws what is under it."""

    def render(self):
        return Slide.render(self.unwrapped)


class Bright(gymnasium.Wrapper):
    def render(self):
        return 255 - self.env.render()


def right(observation, rng):
    return np.array([rng.uniform(0, 1)])


def wrong(observation, rng):
    return [0.5, 0.5]


def undefined(observation, rng):
    return [np.nan]


def third(observation, rng):
    return 0  # of the choices 1 and 2


def near(state, goal):
    return abs(state["state_0"] - goal["state_0"]) < 0.2


for kind in (Slide, Hidden, Broken, Blind, Modest):
    gymnasium.register(f"mine/{kind.__name__}-v0", entry_point=kind, max_episode_steps=30)
