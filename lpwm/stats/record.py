"""What was measured: a success for every (training seed, planner seed, episode).

S training seeds (checkpoints), P planner seeds, E episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpwm.core.errors import UserError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def as_bools(values: Any, what: str) -> Bools:
    """Booleans, or numbers that are all 0 or 1."""
    array = np.asarray(values)
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
        raise UserError(f"{what} must hold only true and false (or 1 and 0): threshold it first.")
    return array.astype(np.bool_)


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise UserError(f"the confidence level is {level}: give a fraction between 0 and 1, such as 0.95.")


def _ids(given: Iterable[int | str] | None, size: int, what: str, name: str) -> tuple[int | str, ...]:
    ids = tuple(range(size)) if given is None else tuple(given)
    if len(ids) != size:
        raise UserError(f"result {name!r} has {size} {what}s but {len(ids)} {what} ids: give one id for each.")
    if len(set(ids)) != size:
        raise UserError(f"result {name!r} names a {what} twice: give every {what} its own id.")
    return ids


@dataclass(frozen=True, eq=False)
class Result:
    """The successes of one method.

    success_SPE  bool (S, P, E); rows are checkpoints
    episodes     E ids: two results can be compared only on the same ids
    seeds        S training-seed ids: comparisons are paired on them
    control      nothing was trained (do nothing, random actions, the true simulator): S = 1, and the one
                 row is paired with every seed of the method it is compared with
    """

    name: str
    success_SPE: Bools
    episodes: tuple[int | str, ...]
    seeds: tuple[int | str, ...]
    planner_seeds: tuple[int | str, ...]
    control: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        success_SPE: Any,
        *,
        episodes: Iterable[int | str],
        seeds: Iterable[int | str] | None = None,
        planner_seeds: Iterable[int | str] | None = None,
        control: bool = False,
    ) -> Result:
        """Checked and built; seeds are numbered from 0 unless given, episode ids must be given."""
        success = as_bools(success_SPE, f"the success array of {name!r}")
        if success.ndim != 3 or 0 in success.shape:
            raise UserError(
                f"the success array of {name!r} has shape {success.shape}: "
                "give (training seeds, planner seeds, episodes), none of them zero."
            )
        if control and len(success) != 1:
            raise UserError(
                f"control {name!r} has {len(success)} training seeds: a control is not trained, give it one row."
            )
        success = success.copy()
        success.flags.writeable = False
        return cls(
            name,
            success,
            _ids(episodes, success.shape[2], "episode", name),
            _ids(seeds, success.shape[0], "training seed", name),
            _ids(planner_seeds, success.shape[1], "planner seed", name),
            control,
        )

    @property
    def rate(self) -> float:
        return float(self.success_SPE.mean())

    @property
    def rates_S(self) -> Floats:
        """The success rate of each checkpoint: the unit of replication."""
        return self.success_SPE.mean(axis=(1, 2))

    @property
    def cells_SE(self) -> Floats:
        """The mean over planner seeds."""
        return self.success_SPE.mean(axis=1)

    def only(self, *, seeds: Sequence[int | str] | None = None, episodes: Sequence[int | str] | None = None) -> Result:
        """The same result on some training seeds or episodes, in the order given."""
        success, kept_seeds, kept_episodes = self.success_SPE, self.seeds, self.episodes
        if seeds is not None:
            success = success[_positions(self.seeds, seeds, "training seed", self.name)]
            kept_seeds = tuple(seeds)
        if episodes is not None:
            success = success[:, :, _positions(self.episodes, episodes, "episode", self.name)]
            kept_episodes = tuple(episodes)
        return Result.of(
            self.name,
            success,
            episodes=kept_episodes,
            seeds=kept_seeds,
            planner_seeds=self.planner_seeds,
            control=self.control,
        )


def _positions(have: Sequence[int | str], wanted: Sequence[int | str], what: str, name: str) -> list[int]:
    where = {item: i for i, item in enumerate(have)}
    missing = [item for item in wanted if item not in where]
    if missing:
        raise UserError(f"result {name!r} has no {what} {missing[0]!r}: it has {', '.join(map(str, have))}.")
    return [where[item] for item in wanted]


def same_episodes(a: Result, b: Result) -> Result:
    """b with its episodes in a's order; one sentence unless both ran the same ones."""
    if set(a.episodes) != set(b.episodes):
        shared = len(set(a.episodes) & set(b.episodes))
        raise UserError(
            f"{a.name!r} and {b.name!r} were not run on the same episodes ({len(a.episodes)} and "
            f"{len(b.episodes)}, {shared} shared): evaluate both on one episode set."
        )
    return b if a.episodes == b.episodes else b.only(episodes=a.episodes)
