"""Settings of interpretation, without torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from lpwm.core.errors import UserError


@dataclass(frozen=True)
class ProbeConfig:
    folds: int = 5
    resamples: int = 2000  # of trajectories, for the intervals
    shuffles: int = 1  # independent shuffled-label controls, pooled
    level: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.folds < 2 or self.resamples < 100 or self.shuffles < 1:
            raise UserError("probes need at least 2 folds, 100 resamples and 1 shuffle.")


@dataclass(frozen=True)
class StudyConfig:
    resolution: int = 20
    visible: bool | None = None  # zones drawn or not; None: as in the run's own world
    cells: tuple[tuple[int, int], ...] = ()  # reference cells (row, col); none: the middle of every zone
    frames: int = 3000  # at most, from held-out trajectories, one action block apart
    resamples: int = 200  # of units and of zone labels, for the sharpness
    probes: ProbeConfig = field(default_factory=ProbeConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.frames < 1 or self.resamples < 20:
            raise UserError("a study needs at least 1 frame and 20 resamples.")


@dataclass(frozen=True)
class ContactConfig:
    frames: int = 20_000  # held-out frames, at most
    resamples: int = 2000  # of episodes
    level: float = 0.95
    seed: int = 0

    def probe(self) -> ProbeConfig:
        return ProbeConfig(resamples=self.resamples, level=self.level, seed=self.seed)
