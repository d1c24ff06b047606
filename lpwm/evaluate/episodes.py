"""The one episode loop, through which planners, the oracle, random actions and doing nothing all act; and its store.

The loop always runs to the last budget and records success after every raw step; actors are not told of it.
Success counts at every raw step, or only at the ends of executed plans: latched at any of them, terminal at the last.

B episodes next to one another on one device, T raw steps, K blocks, A raw action size, S state entries.
"""

import hashlib
import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpwm.core.config import to_dict
from lpwm.core.errors import UserError, require
from lpwm.core.files import make_folder, read_npz, write_whole
from lpwm.core.version import __version__
from lpwm.evaluate.goals import EpisodeSet

MOST = 2**30  # bytes of a stored record, unpacked
SCHEME = 1  # part of every stored key: raise it when the loop or a control changes its meaning
ARRAYS = ("states_BTS", "actions_BTA", "success_BT", "distance_BT")  # of a record


class Actor:
    """Chooses raw actions. It sees states; rendering and encoding them is its own affair."""

    def begin(self, episodes: EpisodeSet, state_BS: Tensor) -> None:
        raise NotImplementedError

    def act(self) -> Tensor:
        """The raw actions to execute next, (B, n·frameskip, A)."""
        raise NotImplementedError

    def observe(self, state_BS: Tensor) -> None:
        """A whole block of frameskip raw steps was executed."""

    def traces(self) -> Mapping[str, Tensor]:
        """What it recorded, (B, …) each."""
        return {}


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
        if not self.tested <= budget <= self.steps:
            raise UserError(
                f"a budget of {budget} raw steps: the episodes were run for {self.steps} and first tested after "
                f"{self.tested}, give a number between."
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
        return {
            **{name: getattr(self, name) for name in ARRAYS},
            **{f"trace_{name}": values for name, values in self.traces.items()},
            "ids": np.array(self.ids),
            "numbers": np.array([self.frameskip, self.tested, self.wall_s]),
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Record":
        frameskip, tested, wall_s = arrays["numbers"].tolist()
        traces = {n.removeprefix("trace_"): x for n, x in arrays.items() if n.startswith("trace_")}
        own: dict[str, Any] = {name: arrays[name] for name in ARRAYS}
        own |= {"frameskip": int(frameskip), "tested": int(tested), "traces": traces, "wall_s": wall_s}
        return cls(ids=tuple(arrays["ids"].tolist()), **own)


class _Pure:
    """Live environments of a world without hidden state."""

    def __init__(self, world: Any, state_BS: Tensor) -> None:
        self.world, self.states = world, state_BS

    def step(self, action_BA: Tensor) -> None:
        self.states = self.world.step(self.states, action_BA)

    def close(self) -> None:
        pass


def is_live(world: Any) -> bool:
    """Whether it steps through live simulators, because its state is not all there is."""
    return hasattr(world, "open")


def open_world(world: Any, state_BS: Tensor, actor: Any = None, workers: int | None = 1) -> Any:
    """A handle that steps: the world's own simulators where it has hidden state, else its pure step function.
    Simulators start from bare states, which is approximate where something was in motion or in touch. An actor that
    looks ahead with them (`attach`) is given them."""
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
    """Every episode, all at once, for `steps` raw steps; success never changes what happens. workers: processes for
    live simulators, None for one per core; outcomes do not depend on it."""
    require("steps", steps, 1)
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


def read_record(path: Path) -> Record | None:
    """A stored record; None where the file is absent, damaged, or under another name than its key gives it."""
    try:
        arrays = read_npz(path, MOST)
        return Record.of_arrays(arrays) if _name(str(arrays["key"])) == path.stem else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:24]


class Store:
    """Records, one file each, that carry the key they belong to. Without a folder nothing is stored."""

    def __init__(self, folder: str | Path | None, fresh: bool = False) -> None:
        self.folder, self.fresh = None if folder is None else Path(folder), fresh

    @staticmethod
    def key(depends: Mapping[str, Any]) -> str:
        about = {"scheme": SCHEME, "lpwm": __version__, "torch": torch.__version__, **to_dict(dict(depends))}
        return json.dumps(about, sort_keys=True)

    @classmethod
    def name(cls, depends: Mapping[str, Any]) -> str:
        return _name(cls.key(depends))

    def _path(self, depends: Mapping[str, Any]) -> Path:
        assert self.folder is not None
        return self.folder / f"{self.name(depends)}.npz"

    def has(self, depends: Mapping[str, Any]) -> bool:
        return self.folder is not None and not self.fresh and self._path(depends).exists()

    def load(self, depends: Mapping[str, Any]) -> Record | None:
        return read_record(self._path(depends)) if self.has(depends) else None

    def record(self, depends: Mapping[str, Any], make: Callable[[], Record]) -> tuple[Record, bool]:
        """The stored record and True, or a new one (stored) and False."""
        stored = self.load(depends)
        if stored is not None:
            return stored, True
        record = make()
        if self.folder is not None:
            make_folder(self.folder)
            packed = io.BytesIO()
            np.savez_compressed(packed, key=np.array(self.key(depends)), **record.arrays())  # type: ignore[arg-type]
            write_whole(self._path(depends), packed.getvalue())
        return record, False
