"""One live gymnasium environment, and how states that cannot be set are reached again.

Such a state carries the key of its tape: the seed of the reset, hashed with every action since. What led to a key is
kept for as long as the process lives (`remember` reads it from data).
"""

import functools
import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.worlds.gym_env import CLOSE, SUCCESS, TAPE, Actions, Float, draw, flatten, get_state, make_env, set_state


class Simulator:
    """One live environment. It starts at a row of the state, or at a tape: the first state or the seed, and actions."""

    def __init__(self, world: Any, start: Any) -> None:
        self.world, self.facts = world, world.facts
        self.env = make_env(world.id, world.kwargs, world.wrapper)
        self.begin(0)
        if isinstance(start, tuple):
            self.play(*start)
        elif start is not None:
            self.go_to(np.asarray(start, np.float64))

    def begin(self, origin: int | Float) -> None:
        """A new episode, by its seed or at its first state."""
        self.origin, self.moves = origin, list[bytes]()
        self.ended = self.over = False
        self.key = origin if isinstance(origin, int) else 0
        self.observation: Any = None
        self.info: dict[str, Any] = {}
        if isinstance(origin, int):
            self.observation, self.info = self.env.reset(seed=origin)
        else:
            set_state(self.env, self.facts.kind, origin)

    def play(self, origin: int | Float, moves: tuple[bytes, ...]) -> None:
        """To the end of a tape; onward from here where it began like that."""
        done = len(self.moves)
        same = isinstance(origin, int) and isinstance(self.origin, int) and origin == self.origin
        if not same or tuple(self.moves) != tuple(moves[:done]):
            self.begin(origin)
            done = 0
        for move in moves[done:]:
            self.step(np.frombuffer(move, np.float32))

    def go_to(self, row: Float) -> None:
        """To a state: set, or replayed."""
        if self.facts.kind != "replay":
            self.begin(row[: self._own].copy())
            return
        self.play(*tape_of(self.world.id, row))
        now = np.asarray(self.state)[: self._own]
        if np.abs(now - row[: self._own]).max() > CLOSE * (1 + np.abs(now).max()):
            raise UserError(
                f"gym:{self.world.id} cannot be replayed: the same seed and actions led to another state, so it is not "
                "deterministic, or is not the version that made the data."
            )

    @property
    def _own(self) -> int:
        """Entries of the state that are the environment's own."""
        return len([n for n in self.facts.names if n not in (*TAPE, SUCCESS)])

    @property
    def state(self) -> Float:
        if self.facts.kind == "replay":
            numbers = list(flatten(self.observation).values())
        else:
            own = get_state(self.env, self.facts.kind)
            assert own is not None
            numbers = own.tolist()
        if SUCCESS in self.facts.names:
            numbers.append(float(np.max(self.info.get(SUCCESS, 0.0))))
        if not np.isfinite(numbers).all():
            raise UserError(
                f"gym:{self.world.id} gave an observation that is not finite {len(self.moves)} steps after the reset"
                f" with seed {self.origin}: look for NaN in the environment, or give it a wrapper."
            )
        if self.facts.kind == "replay":
            numbers += [self.key >> 24, self.key & 0xFFFFFF]
        return np.array(numbers, np.float64)

    def step(self, action: Any) -> None:
        if self.ended:
            return
        snapped = self.facts.actions.snap(action)
        self.observation, _, self.ended, cut, self.info = self.env.step(self.facts.actions.send(snapped))
        self.over = self.ended or cut
        move = snapped.astype(np.float32).tobytes()
        self.moves.append(move)
        if self.facts.kind == "replay":
            parent, self.key = self.key, _next_key(self.key, move)
            _tapes[self.key] = parent, move

    def frame(self, size: int) -> NDArray[np.uint8]:
        """(3, size, size)."""
        return draw(self.env, size)

    def snapshot(self) -> tuple[int | Float, tuple[bytes, ...]]:
        return self.origin, tuple(self.moves)

    def branch(self, actions: NDArray[np.float64]) -> NDArray[np.float32]:
        other, here = spare(self.world), self.state[: self._own]
        out = np.zeros((*actions.shape[:2], len(self.facts.names)), np.float32)
        for m, sequence in enumerate(actions):
            if self.facts.exact:
                other.begin(here.copy())
                other.ended, other.info = self.ended, self.info
            else:
                other.play(*self.snapshot())
            for t, action in enumerate(sequence):
                other.step(action)
                out[m, t] = other.state
        return out


_tapes: dict[int, tuple[int, bytes]] = {}  # of states that cannot be set: the state before and the action that left it


def _next_key(key: int, move: bytes) -> int:
    """48 bits, the first of them set: a seed has fewer."""
    word = hashlib.blake2b(key.to_bytes(8, "little") + move, digest_size=6).digest()
    return int.from_bytes(word, "little") | 1 << 47


def _keys(states: Tensor) -> list[int]:
    high, low = states[:, -2:].to(torch.int64).unbind(1)
    return ((high << 24) | low).tolist()


def tape_of(env_id: str, row: Float) -> tuple[int, tuple[bytes, ...]]:
    key, moves = (int(row[-2]) << 24) | int(row[-1]), list[bytes]()
    while key >> 47:
        if key not in _tapes:
            raise UserError(
                f"gym:{env_id} cannot be set to a state, and how this one was reached is not known here: start from "
                "its data, or from states that it gave in this process."
            )
        key, move = _tapes[key]
        moves.append(move)
    return key, tuple(reversed(moves))


def remember(actions_of: Actions, states: Tensor, actions: Tensor) -> None:
    """The tapes of rows (N, S) and actions (N, A) of episodes, one after another; the last of an episode is NaN."""
    keys = _keys(states)
    for parent, key, action in zip(keys, keys[1:], actions.numpy(), strict=False):
        if np.isfinite(action).all() and key != parent:
            _tapes[key] = parent, actions_of.snap(action).astype(np.float32).tobytes()


@functools.lru_cache(maxsize=4)
def spare(world: Any) -> Simulator:
    """One environment of this process for what needs no life of its own: draws, pictures, branches."""
    return Simulator(world, None)
