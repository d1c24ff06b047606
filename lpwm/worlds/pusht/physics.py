"""PushT's physics: one disc, one T, four walls, in pymunk.

The numbers are those of stable-worldmodel's PushT-v1 (0.1.1); tests/golden holds traces made with it.

- The pusher is a kinematic disc: nothing stops it. Ten times per raw step, every 0.01 s, its velocity changes by
  (100·(target − p) − 20·v)·0.01, where target = p + 100·a is fixed at the start of the raw step.
- The T is two boxes in its own frame. Mass 1; the moment of inertia is twice the *bar's*; the center of gravity is the
  mean of the two centers; no friction. Damping 0: what is not pushed stands still at once.

A state is seven numbers: the pusher's x and y, the T's origin x and y, its angle in [0, 2π), the pusher's velocity.
pymunk also keeps the T's velocity and the impulses of contacts that last. So a simulator remembers where it began and
what was done to it since, and is copied by doing it again, from the last moment when the T had been still for a whole
raw step and the pusher was off it: then nothing is hidden.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import need

SIDE = 512.0
RADIUS = 15.0  # of the pusher
WALLS = (5.0, 506.0)
WALL_RADIUS = 2.0
REACH = 100.0  # px per unit of action
KP, KV = 100.0, 20.0
DT, SUBSTEPS = 0.01, 10
SCALE = 30.0
OFF = 2.0  # px of air beyond which the pusher has surely let go
# The two boxes of the T in its own frame: (x0, y0, x1, y1).
BAR = (-2 * SCALE, 0.0, 2 * SCALE, SCALE)
STEM = (-SCALE / 2, SCALE, SCALE / 2, 4 * SCALE)
COG = (0.0, 45.0)  # the mean of the boxes' centers
TURN = 2 * math.pi


class Past(NamedTuple):
    """A snapshot: where a simulator began, (7,), and what was done to it since, (t, 2)."""

    first: NDArray[np.float64]
    done: NDArray[np.float64]


class Simulator:
    """One live PushT, from a state (seven numbers) or as it was when a snapshot was taken."""

    def __init__(self, start: Sequence[float] | NDArray[np.float64] | Past) -> None:
        first, done = start if isinstance(start, Past) else (start, ())
        self.first = [float(x) for x in first]
        self.done: list[Sequence[float]] = []
        self._build()
        # The last state that hid nothing, and how much of `done` led to it.
        self._plain, self._plain_at = self.state, 0
        for action in np.asarray(done, dtype=np.float64).reshape(-1, 2).tolist():
            self.step(action)

    def _build(self) -> None:
        pymunk = need("pymunk", "PushT needs pymunk: pip install 'lpwm[pusht]'.")
        from pymunk._chipmunk_cffi import lib  # its wrappers would take longer than the physics

        space = pymunk.Space()
        space.damping = 0.0
        low, high = WALLS
        corners = [((low, high), (low, low)), ((low, low), (high, low))]
        corners += [((high, low), (high, high)), ((low, high), (high, high))]
        space.add(*(pymunk.Segment(space.static_body, a, b, WALL_RADIUS) for a, b in corners))
        x, y, block_x, block_y, angle, vx, vy = self.first
        agent = pymunk.Body(body_type=pymunk.Body.KINEMATIC)
        agent.position, agent.velocity = (x, y), (vx, vy)
        space.add(agent, pymunk.Circle(agent, RADIUS))
        bar, stem = ([(a, d), (c, d), (c, b), (a, b)] for a, b, c, d in (BAR, STEM))
        block = pymunk.Body(1.0, 2 * pymunk.moment_for_poly(1.0, bar))
        shapes = [pymunk.Poly(block, corners) for corners in (bar, stem)]
        block.center_of_gravity = COG
        block.angle = angle
        block.position = (block_x, block_y)  # after the angle: the origin turns about the center of gravity
        space.add(block, *shapes)
        self._keep = space, agent, block, shapes  # alive as long as the C structures are used
        self._space, self._agent, self._block = space._space, agent._body, block._body
        self._set_velocity, self._get_position = lib.cpBodySetVelocity, lib.cpBodyGetPosition
        self._get_angle, self._advance = lib.cpBodyGetAngle, lib.cpSpaceStep
        self.state = (x, y, block_x, block_y, angle % TURN, vx, vy)

    def step(self, action: Sequence[float]) -> None:
        """One raw step, 0.1 s."""
        self.done.append(action)
        before = self.state
        self._move(action)
        if before[2:5] == self.state[2:5] and _gap(self.state) > OFF:
            self._plain, self._plain_at = self.state, len(self.done)

    def _move(self, action: Sequence[float]) -> None:
        """The step itself, unremembered. The pusher is kinematic, so its path needs no answer from pymunk."""
        space, agent = self._space, self._agent
        set_velocity, advance = self._set_velocity, self._advance
        x, y, _, _, _, vx, vy = self.state
        to_x, to_y = x + action[0] * REACH, y + action[1] * REACH
        for _ in range(SUBSTEPS):
            vx += (KP * (to_x - x) + KV * (0.0 - vx)) * DT
            vy += (KP * (to_y - y) + KV * (0.0 - vy)) * DT
            set_velocity(agent, (vx, vy))
            advance(space, DT)
            x += vx * DT
            y += vy * DT
        at = self._get_position(self._block)
        self.state = (x, y, at.x, at.y, self._get_angle(self._block) % TURN, vx, vy)

    def snapshot(self) -> Past:
        return Past(np.array(self.first), np.array(self.done, dtype=np.float64).reshape(-1, 2))

    def branch(self, actions: NDArray[np.float64]) -> NDArray[np.float32]:
        """(M, T, 2) -> (M, T, 7): each sequence in a copy of this simulator."""
        again = self.done[self._plain_at :]
        out = []
        for sequence in actions.tolist():
            copy = Simulator(self._plain)  # it lives for this sequence alone, so it need not remember anything
            for action in again:
                copy._move(action)
            seen = []
            for action in sequence:
                copy._move(action)
                seen.append(copy.state)
            out.append(seen)
        return np.array(out, dtype=np.float32).reshape(*actions.shape[:2], 7)


def _gap(state: Sequence[float]) -> float:
    """The air between disc and T, of one state, in plain numbers: needed at every step."""
    c, s = math.cos(state[4]), math.sin(state[4])
    dx, dy = state[0] - state[2], state[1] - state[3]
    x, y = c * dx + s * dy, c * dy - s * dx
    gaps = []
    for x0, y0, x1, y1 in (BAR, STEM):
        across, along = max(x0 - x, x - x1), max(y0 - y, y - y1)
        gaps.append(math.hypot(max(across, 0.0), max(along, 0.0)) + min(max(across, along), 0.0))
    return min(gaps) - RADIUS
