"""What a world is.

A TensorWorld is pure mathematics: batched functions of tensors on any device, with no hidden state.
N is the number of environments, S the state's size, A the size of one raw action.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

Key = tuple[int | str, ...]


@dataclass(frozen=True)
class WorldSpec:
    """All that the rest of the house must know of a world; stored beside the weights it trained."""

    name: str
    options: dict[str, Any]  # `worlds.make(name, **options)` builds the same world again
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    frame: int  # the native side of a frame, in pixels
    episode: int  # raw steps of an episode, unless told otherwise
    proprio: tuple[int, ...] = ()  # which entries of the state a robot would feel
    factors: tuple[str, ...] = field(default=())  # names that `factors` returns

    @property
    def state_dim(self) -> int:
        return len(self.state_names)

    @property
    def action_dim(self) -> int:
        return len(self.action_names)


@runtime_checkable
class TensorWorld(Protocol):
    @property
    def spec(self) -> WorldSpec: ...

    def sample_state(self, n: int, key: Key) -> Tensor:
        """n start states, (n, S) float32 on the CPU; row i depends on (key, i) alone."""
        ...

    def sample_goal(self, n: int, key: Key) -> Tensor:
        """n goal states anywhere in the arena, (n, S)."""
        ...

    def step(self, state: Tensor, action: Tensor) -> Tensor:
        """(N, S), (N, A) -> (N, S), on the device of its arguments. Leading shapes may be any (…, S)."""
        ...

    def render(self, state: Tensor, size: int | None = None) -> Tensor:
        """(N, S) -> uint8 (N, 3, size, size) on the device of `state`."""
        ...

    def success(self, state: Tensor, goal: Tensor) -> Tensor:
        """(…, S), (…, S) -> bool (…)."""
        ...

    def distance(self, state: Tensor, goal: Tensor) -> Tensor:
        """How far apart two states are, in the world's own unit: (…, S), (…, S) -> (…)."""
        ...

    def factors(self, state: Tensor) -> dict[str, Tensor]:
        """What the analysis asks about: zone, contact, … one (N,) tensor each."""
        ...
