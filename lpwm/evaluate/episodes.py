"""The one episode loop. Planners, the oracle, random actions and doing nothing all act through it.

B episodes side by side on one device, T raw steps, K blocks, A raw action size, S state entries.

The loop always runs to the last budget and records success after every raw step; actors are not told of it.
A protocol says where in the record success counts:
  test every raw step (support pipeline)      latched: any step up to the budget; terminal: the step at it
  test after executed plans (ladder)          the same, at the ends of plans only
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lpwm.core.errors import UserError
from lpwm.evaluate.goals import EpisodeSet


class Actor(Protocol):
    """Chooses raw actions. It sees states; rendering and encoding them is its own affair."""

    def begin(self, episodes: EpisodeSet, state_BS: Tensor) -> None: ...

    def act(self) -> Tensor:
        """The raw actions to execute next, (B, n·frameskip, A)."""
        ...

    def observe(self, state_BS: Tensor) -> None:
        """A whole block of frameskip raw steps was executed."""
        ...

    def traces(self) -> Mapping[str, Tensor]:
        """What it recorded, (B, …) each."""
        ...


@dataclass(frozen=True, eq=False)
class Record:
    """All that happened. NumPy arrays, so that it can be stored and read anywhere."""

    ids: tuple[str, ...]
    states_BTS: np.ndarray  # (B, T + 1, S)
    actions_BTA: np.ndarray  # (B, T, A), as sent: the world clips
    success_BT: np.ndarray  # bool, after each raw step
    distance_BT: np.ndarray  # (B, T + 1), in the world's unit
    frameskip: int
    tested: int = 1  # success counts at every `tested`-th raw step
    traces: Mapping[str, np.ndarray] = field(default_factory=dict)
    wall_s: float = 0.0

    @property
    def steps(self) -> int:
        return self.success_BT.shape[1]

    def _tests(self, budget: int | None) -> np.ndarray:
        """The success at each test up to the budget, (B, tests)."""
        budget = self.steps if budget is None else budget
        if not 0 < budget <= self.steps:
            raise UserError(f"a budget of {budget} steps: the episodes were run for {self.steps}, give 1 to that.")
        if budget < self.tested:
            raise UserError(
                f"a budget of {budget} raw steps ends before the first plan of {self.tested} is executed: give at "
                f"least {self.tested}."
            )
        return self.success_BT[:, :budget][:, self.tested - 1 :: self.tested]

    def latched(self, budget: int | None = None) -> np.ndarray:
        """Success at any test up to the budget, (B,) bool."""
        return np.asarray(self._tests(budget).any(1))

    def terminal(self, budget: int | None = None) -> np.ndarray:
        """Success at the last test of the budget, (B,) bool."""
        return self._tests(budget)[:, -1]

    def steps_to_success(self, budget: int | None = None) -> np.ndarray:
        """Raw steps until the first test that succeeds, (B,) int64; −1 for never."""
        tests = self._tests(budget)
        return np.where(tests.any(1), (tests.argmax(1) + 1) * self.tested, -1)

    def final_distance(self, budget: int | None = None) -> np.ndarray:
        return self.distance_BT[:, self.steps if budget is None else budget]

    def arrays(self) -> dict[str, np.ndarray]:
        """For np.savez; `Record.of_arrays` reads it back."""
        out = {f"trace_{name}": values for name, values in self.traces.items()}
        for name in ("states_BTS", "actions_BTA", "success_BT", "distance_BT"):
            out[name] = getattr(self, name)
        out["ids"] = np.array(self.ids)
        out["numbers"] = np.array([self.frameskip, self.tested, self.wall_s])
        return out

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Record:
        frameskip, tested, wall_s = arrays["numbers"].tolist()
        return cls(
            ids=tuple(arrays["ids"].tolist()),
            states_BTS=arrays["states_BTS"],
            actions_BTA=arrays["actions_BTA"],
            success_BT=arrays["success_BT"],
            distance_BT=arrays["distance_BT"],
            frameskip=int(frameskip),
            tested=int(tested),
            traces={n.removeprefix("trace_"): arrays[n] for n in arrays if n.startswith("trace_")},
            wall_s=wall_s,
        )


class _Pure:
    """Live environments of a world without hidden state."""

    def __init__(self, world: Any, state_BS: Tensor) -> None:
        self.world, self.states = world, state_BS

    def step(self, action_BA: Tensor) -> Tensor:
        self.states = self.world.step(self.states, action_BA)
        return self.states

    def close(self) -> None:
        pass


def is_live(world: Any) -> bool:
    """Whether it steps through live simulators, because its state is not all there is."""
    return hasattr(world, "open")


def open_world(world: Any, state_BS: Tensor, actor: Any = None, workers: int | None = 1) -> Any:
    """A handle that steps: the world's own simulators where it has hidden state, else its pure step function.

    Simulators start from bare states, which is approximate where something was in motion or in touch. An actor that
    looks ahead with them (`attach`) is given them.
    """
    if not is_live(world):
        return _Pure(world, state_BS)
    live = world.open(state_BS.cpu(), workers)
    if hasattr(actor, "attach"):
        actor.attach(live)
    return live


@torch.no_grad()
def run_episodes(
    world: Any,
    episodes: EpisodeSet,
    actor: Actor,
    *,
    steps: int,
    frameskip: int,
    device: torch.device | str = "cpu",
    workers: int | None = 1,
) -> Record:
    """Every episode, all at once, for `steps` raw steps; success never changes what happens.

    workers: processes for live simulators, None for one per core; outcomes do not depend on it.
    """
    if steps < 1:
        raise UserError(f"episodes of {steps} raw steps: give at least 1.")
    began = time.perf_counter()
    start_BS, goal_BS = episodes.start_BS.to(device), episodes.goal_BS.to(device)
    live = open_world(world, start_BS, actor, workers)
    states: list[Tensor] = [live.states]  # of live simulators on the host
    actions: list[Tensor] = []
    try:
        actor.begin(episodes, states[0].to(device))
        while len(actions) < steps:
            raw_BTA = actor.act()
            B, T, A = raw_BTA.shape
            assert T > 0 and T % frameskip == 0 and (len(episodes), world.spec.action_dim) == (B, A), raw_BTA.shape
            raw_BTA = raw_BTA[:, : steps - len(actions)]
            if is_live(world):  # one trip a plan, not one a step: each waits for the device, and for who shares it
                raw_BTA = raw_BTA.cpu()
            for t, action_BA in enumerate(raw_BTA.unbind(1), start=1):
                actions.append(action_BA)
                live.step(action_BA)
                states.append(live.states)
                if t % frameskip == 0:
                    actor.observe(states[-1].to(device))
    finally:
        live.close()
    states_BTS = torch.stack(states, 1).to(device)
    goal_BTS = goal_BS[:, None].expand_as(states_BTS)
    return Record(
        ids=episodes.ids,
        states_BTS=states_BTS.cpu().numpy(),
        actions_BTA=torch.stack(actions, 1).cpu().numpy(),
        success_BT=world.success(states_BTS[:, 1:], goal_BTS[:, 1:]).cpu().numpy(),
        distance_BT=world.distance(states_BTS, goal_BTS).cpu().numpy(),
        frameskip=frameskip,
        traces={name: t.cpu().numpy() for name, t in actor.traces().items()},
        wall_s=time.perf_counter() - began,
    )
