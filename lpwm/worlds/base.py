"""What a world is.

A TensorWorld is pure mathematics: batched functions of tensors on any device. A SimWorld has live simulators behind it.
N is the number of environments, S the state's size, A the size of one raw action.

Row i of a random sequence depends on (key, i) alone, never on how many rows are drawn together; `start` says where in
the sequence a draw begins, so that a worker can make rows 1000…1999 of the sequence another worker began.
"""

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from lpwm.core import rng
from lpwm.core.errors import require
from lpwm.worlds.pool import Live

Key = tuple[int | str, ...]
Renderer = Callable[[Tensor], Tensor]  # (N, S) -> uint8 (N, 3, size, size)


@dataclass(frozen=True)
class WorldSpec:
    """All that the rest of the package must know of a world; stored next to the weights it trained."""

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
    policy: str = "random"  # the policy that makes this world's data, unless told otherwise
    state_low: tuple[float, ...] = ()  # where states can be, starts and goals included
    state_high: tuple[float, ...] = ()
    success_within: float = 0.0  # `success` is distance < success_within

    @property
    def state_dim(self) -> int:
        return len(self.state_names)

    @property
    def action_dim(self) -> int:
        return len(self.action_names)

    @property
    def discrete(self) -> bool:
        """Whether an action is a choice, one-hot: the largest entry counts."""
        return self.name.startswith("gym:") and self.action_names[0].startswith("choice ")


class _AnyWorld(Protocol):
    """What all worlds share: what is seen is a pure function of the state, so states are enough to store."""

    @property
    def spec(self) -> WorldSpec: ...

    def sample_state(self, n: int, key: Key, start: int = 0) -> Tensor:
        """Rows start…start+n−1 of the start states of `key`: (n, S) float32 on the CPU."""

    def sample_goal(self, n: int, key: Key, start: int = 0) -> Tensor:
        """Rows start…start+n−1 of the goal states of `key`, anywhere in the arena: (n, S)."""

    def render(self, state: Tensor, size: int | None = None) -> Tensor:
        """(N, S) -> uint8 (N, 3, size, size) on the device of `state`; the native size when not told."""

    def renderer(self, size: int | None = None, device: torch.device | str = "cpu") -> Renderer:
        """`render` with its constants built beforehand: what `torch.compile` should be given."""

    def success(self, state: Tensor, goal: Tensor) -> Tensor:
        """(…, S), (…, S) -> bool (…)."""

    def distance(self, state: Tensor, goal: Tensor) -> Tensor:
        """How far apart two states are, in the world's own unit: (…, S), (…, S) -> (…)."""

    def factors(self, state: Tensor) -> dict[str, Tensor]:
        """What the analysis asks about: zone, contact, … one (N,) tensor each."""


@runtime_checkable
class TensorWorld(_AnyWorld, Protocol):
    def step(self, state: Tensor, action: Tensor) -> Tensor:
        """(N, S), (N, A) -> (N, S), on the device of its arguments. Leading shapes may be any (…, S)."""


@runtime_checkable
class SimWorld(_AnyWorld, Protocol):
    """A world that steps through live simulators, because its state is not all there is (contact caches)."""

    def open(self, states: Any, workers: int | None = 1) -> Live:
        """Simulators started at these states (N, S), which is approximate, or at a snapshot, which is exact. workers:
        processes; 1 is this one, None as many as there are cores. The results do not depend on it."""


World = TensorWorld | SimWorld


class Planar:
    """What the worlds of one dot in the plane share: the state is its position, distance is Euclidean."""

    name: ClassVar[str]
    where: ClassVar[str]  # its own factor, next to x and y
    side: ClassVar[int]  # of a native frame
    bounds: ClassVar[tuple[float, float]]  # of either coordinate
    largest: ClassVar[float] = 1.0  # of either entry of an action
    within: ClassVar[float]
    episode: ClassVar[int]
    policy: ClassVar[str] = "random"

    @functools.cached_property
    def spec(self) -> WorldSpec:
        return WorldSpec(
            name=self.name,
            options=asdict(self),  # type: ignore[call-overload]
            state_names=("x", "y"),
            action_names=("dx", "dy"),
            frame=self.side,
            episode=self.episode,
            policy=self.policy,
            proprio=(0, 1),
            factors=(self.where, "x", "y"),
            action_low=(-self.largest,) * 2,
            action_high=(self.largest,) * 2,
            state_low=self.bounds[:1] * 2,
            state_high=self.bounds[1:] * 2,
            success_within=self.within,
        )

    def _anywhere(self, keys: Tensor) -> Tensor:
        """A position per key, (n,) -> (n, 2)."""
        raise NotImplementedError

    def _draw(self, size: int, device: torch.device) -> Renderer:
        raise NotImplementedError

    def sample_state(self, n: int, key: Key, start: int = 0) -> Tensor:
        return self._anywhere(row_keys((*key, "state"), n, start))

    def sample_goal(self, n: int, key: Key, start: int = 0) -> Tensor:
        return self._anywhere(row_keys((*key, "goal"), n, start))

    def renderer(self, size: int | None = None, device: torch.device | str = "cpu") -> Renderer:
        return _planar_renderer(self, self.spec.frame if size is None else size, torch.device(device))

    def render(self, state: Tensor, size: int | None = None) -> Tensor:
        return self.renderer(size, state.device)(state)

    def success(self, state: Tensor, goal: Tensor) -> Tensor:
        return self.distance(state, goal) < self.spec.success_within

    def distance(self, state: Tensor, goal: Tensor) -> Tensor:
        return torch.linalg.vector_norm(state - goal, dim=-1)


@functools.cache
def _planar_renderer(world: Planar, size: int, device: torch.device) -> Renderer:
    return world._draw(require("a frame's side", size, 1), device)


def key_at(keys: Tensor, t: int) -> Tensor:
    """The rows' keys at step t."""
    return rng.fold(keys, torch.full_like(keys, t))


def on_host(x: Tensor) -> bool:
    """On a CPU, and not traced by a compiler: drawn in parts, in place."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def row_keys(key: Key, n: int, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """The 64-bit keys of rows start…start+n−1, (n,) int64: row i's is a function of (key, i)."""
    rows = torch.arange(start, start + n, dtype=torch.int64, device=device)
    return rng.fold(rng.seed_of(*key), rows)


def uniform_at(keys: Tensor, n: int) -> Tensor:
    """n uniforms in [0, 1) per key, multiples of 2⁻²⁴ and so exact in float32 on every device: (…, n)."""
    word = rng.bits_at(keys, n)
    return ((word >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24
