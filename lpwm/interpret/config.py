"""Settings of interpretation, without torch."""

from dataclasses import dataclass, field

from lpwm.core.errors import UserError, at_least


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
class FactorConfig:
    frames: int = 5000  # of training trajectories, and of held-out ones, at most
    factors: tuple[str, ...] = ()  # those to probe; none: all that vary
    angles: tuple[str, ...] = ()  # those that are angles; none: by their names, or because they jump by a turn
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(1, self, "factors", "frames")


@dataclass(frozen=True)
class DecoderConfig:
    side: int = 64  # frames are decoded at most this large
    frames: int = 4096  # training frames
    components: int = 256  # principal components of the frames that the network predicts
    hidden: int = 256
    steps: int = 700
    batch: int = 128
    lr: float = 1e-2
    depths: int = 8
    clips: int = 256  # held-out clips
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(1, self, "decoder", "side", "frames", "components", "hidden", "steps", "batch", "depths", "clips")
