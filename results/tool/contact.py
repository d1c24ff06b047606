"""What changes a support: the effector, the cube, or their contact (the paper's Figure 3):
`python -m results.tool contact RUN…`.

    u_t = 1 − J(s_t, s_{t+1}),   s_t the support of frame t, frames one action block apart
    effector, cube: ‖Δposition‖ over the same block;  contact: the share of the block's raw frames with contact

Pearson correlations of u with each, pooled over the blocks of all held-out episodes, with percentile intervals when
whole episodes are drawn with replacement. As the three go together on real episodes, the partial correlation given the
other two comes with each, and as a control the correlation when every episode gets the factors of another.

The world must name its factors: effector_x, effector_y, effector_z, cube_x, cube_y, cube_z, contact.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch

from lpwm.core.errors import UserError
from lpwm.data import EpisodeData
from lpwm.evaluate.table import columns
from lpwm.interpret.config import ProbeConfig
from lpwm.interpret.probes import bootstrap, shuffle_trajectories
from lpwm.interpret.results import Bools, Floats, Ints, Packed, Result, WorldInfo, rounded
from lpwm.interpret.study import made
from lpwm.interpret.supports import held_out, held_out_episodes, instability, need_support
from lpwm.stats import Interval
from lpwm.train import Loaded

FACTORS = ("effector", "cube", "contact")
NAMES = {
    "effector": ("effector_x", "effector_y", "effector_z"),
    "cube": ("cube_x", "cube_y", "cube_z"),
    "contact": ("contact",),
}
LEAST = 8  # episodes: an interval over fewer says nothing
PAIRS = [(i, j) for i in range(4) for j in range(i, 4)]  # of (instability, effector, cube, contact)


@dataclass(frozen=True)
class ContactConfig:
    frames: int = 20_000  # held-out frames, at most
    resamples: int = 2000  # of episodes
    level: float = 0.95
    seed: int = 0

    def probe(self) -> ProbeConfig:
        return ProbeConfig(resamples=self.resamples, level=self.level, seed=self.seed)


@dataclass(frozen=True)
class Correlation(Interval):
    partial: Interval  # given the other two factors
    shuffled: Interval  # with the factors of another episode


@dataclass(frozen=True)
class Example:
    """One episode, block by block."""

    episode: int
    frameskip: int
    instability: tuple[float, ...]
    effector: tuple[float, ...]
    cube: tuple[float, ...]
    contact: tuple[float, ...]
    windows: tuple[tuple[float, ...], ...]  # (begin, end) of contact, in blocks
    correlations: dict[str, float | None]
    supports: Packed
    unit_order: tuple[int, ...]  # units that prefer contact first


@dataclass(frozen=True)
class ContactNumbers:
    episodes: int
    blocks: int
    instability: float
    active_fraction: float
    correlations: dict[str, Correlation | None]  # by factor; None where one never varies
    example: Example


@dataclass(frozen=True, kw_only=True)
class Contact(ContactNumbers, Result):
    """What changes the supports of one sparse run."""

    KIND: ClassVar[str] = "lpwm contact"

    tj_weight: float
    settings: ContactConfig = field(default_factory=ContactConfig)


@dataclass(frozen=True, eq=False)
class Track:
    """One episode: the support of each of T frames, and where things were at each of L raw frames."""

    number: int
    active_TD: Bools
    effector_L3: Floats
    cube_L3: Floats
    contact_L: Bools
    frameskip: int

    def blocks(self) -> Floats:
        """(T − 1, 4): instability, effector motion, cube motion, share of contact."""
        k = self.frameskip
        rows = np.arange(len(self.active_TD)) * k
        effector, cube = (
            np.linalg.norm(np.diff(path[rows], axis=0), axis=1) for path in (self.effector_L3, self.cube_L3)
        )
        contact = np.array([float(self.contact_L[a : a + k + 1].mean()) for a in rows[:-1]])
        return np.stack((instability(self.active_TD), effector, cube, contact), axis=1)


def contact_study(loaded: Loaded, config: ContactConfig | None = None, data: EpisodeData | None = None) -> Contact:
    """Correlations, an example episode and its raster of one sparse run."""
    config = config or ContactConfig()
    factors = check_run(loaded)
    data = loaded.episodes() if data is None else data
    check_episodes(len(held_out(loaded, data)), str(loaded.path))
    tracks = []
    for e in held_out_episodes(loaded, data, config.frames, config.seed):
        values = factors(torch.from_numpy(e.states_LS))
        effector, cube, contact = (
            torch.stack([values[n].double() for n in names], -1).cpu().numpy() for names in NAMES.values()
        )
        tracks.append(Track(e.number, e.active_TD(), effector, cube, contact[:, 0] > 0, e.frameskip))
    return Contact(
        **made(loaded),
        world=WorldInfo(loaded.spec.name, dict(loaded.spec.options)),
        tj_weight=loaded.config.objective.tj_weight,
        settings=config,
        **vars(inspect_tracks(tracks, config, str(loaded.path))),
    )


def inspect_tracks(
    tracks: Sequence[Track], config: ContactConfig | None = None, name: str = "these codes"
) -> ContactNumbers:
    """The part of a study that needs no run: codes and episodes from anywhere."""
    check_episodes(len(tracks), name)
    return ContactNumbers(
        episodes=len(tracks),
        blocks=sum(len(t.active_TD) - 1 for t in tracks),
        instability=float(np.concatenate([t.blocks()[:, 0] for t in tracks]).mean()),
        active_fraction=float(np.mean([t.active_TD.mean() for t in tracks])),
        correlations=correlations(tracks, config or ContactConfig()),
        example=example(tracks),
    )


def check_episodes(count: int, name: str) -> None:
    if count < LEAST:
        raise UserError(
            f"{name} has {count} held-out episode{'s' if count != 1 else ''}, too few for an interval: hold out at "
            f"least {LEAST} (data.holdout, data.episodes), or allow more frames."
        )


def check_run(loaded: Loaded) -> Callable[[torch.Tensor], dict[str, torch.Tensor]]:
    """The world's own factors; one sentence where it has no effector, cube and contact, or the run no support."""
    need_support(loaded)
    missing = [n for names in NAMES.values() for n in names if n not in loaded.spec.factors]
    if missing or loaded.world is None:
        raise UserError(
            f"{loaded.path} was trained in {loaded.spec.name}, which does not tell {', '.join(missing) or 'anything'}: "
            "the contact analysis is for runs of cube."
        )
    return loaded.world.factors


def correlations(tracks: Sequence[Track], config: ContactConfig) -> dict[str, Correlation | None]:
    blocks = [t.blocks() for t in tracks]
    label: Ints = np.repeat(np.arange(len(blocks)), [len(b) for b in blocks])
    together = np.concatenate(blocks)
    mixed = together.copy()
    mixed[:, 1:] = shuffle_trajectories(together[:, 1:], label, (config.seed, "contact"))
    still = together.std(0) < 1e-12

    def interval(blocks_N4: Floats, score: Callable[[Floats], Floats], name: str) -> Interval:
        resampled = bootstrap(tally(blocks_N4, label), score, config.probe(), (name,))
        return replace(resampled, unit="episodes of one checkpoint")

    out: dict[str, Correlation | None] = {}
    for k, name in enumerate(FACTORS, start=1):
        if still[k] or still[0]:
            out[name] = None
            continue
        # A partial correlation given a constant would divide by nothing: condition on what varies.
        given = [j for j in (1, 2, 3) if j != k and not still[j]]
        out[name] = Correlation(
            **vars(interval(together, pearson(k), name)),
            partial=interval(together, partial(k, given), f"{name} partial"),
            shuffled=interval(mixed, pearson(k), f"{name} shuffled"),
        )
    return out


def tally(blocks_N4: Floats, label_N: Ints) -> Floats:
    """Each episode's n, sums and sums of products, about the pooled mean so that nothing cancels: (E, 1 + 4 + 10)."""
    x = blocks_N4 - blocks_N4.mean(0)
    columns = [np.ones(len(x)), *x.T, *(x[:, i] * x[:, j] for i, j in PAIRS)]
    return np.stack([np.bincount(label_N, c) for c in columns], -1)


def covariance(sums: Floats) -> Floats:
    """(…, 15) -> (…, 4, 4)."""
    n, first = sums[..., 0], sums[..., 1:5]
    mean = first / n[..., None]
    C = np.empty((*sums.shape[:-1], 4, 4))
    for column, (i, j) in enumerate(PAIRS, start=5):
        C[..., i, j] = C[..., j, i] = sums[..., column] / n - mean[..., i] * mean[..., j]
    return C


def pearson(k: int) -> Callable[[Floats], Floats]:
    def score(sums: Floats) -> Floats:
        C = covariance(sums)
        return C[..., 0, k] / np.sqrt(np.maximum(C[..., 0, 0] * C[..., k, k], 1e-300))

    return score


def partial(k: int, given: Sequence[int]) -> Callable[[Floats], Floats]:
    """Of u and factor k with the `given` factors regressed out: −P_uk/√(P_uu P_kk), P the inverse covariance."""
    rows = [0, k, *given]

    def score(sums: Floats) -> Floats:
        C = covariance(sums)[..., rows, :][..., :, rows]
        scale = np.sqrt(np.maximum(np.einsum("...ii->...i", C), 1e-300))
        P = np.linalg.pinv(C / scale[..., :, None] / scale[..., None, :], rcond=1e-10, hermitian=True)
        return -P[..., 0, 1] / np.sqrt(np.maximum(P[..., 0, 0] * P[..., 1, 1], 1e-300))

    return score


def example(tracks: Sequence[Track]) -> Example:
    """The episode to show: of those whose contact begins and ends, the one whose share of contact is the median."""
    share = np.array([t.contact_L.mean() for t in tracks])
    changes = np.array([np.abs(np.diff(t.contact_L.astype(int))).sum() for t in tracks])
    pool = np.flatnonzero(changes >= (2 if changes.max() >= 2 else 0))
    chosen = tracks[int(pool[np.argsort(share[pool], kind="stable")[(len(pool) - 1) // 2]])]
    blocks = chosen.blocks()
    varies = blocks.std(0) > 1e-12
    return Example(
        episode=chosen.number,
        frameskip=chosen.frameskip,
        **{name: rounded(blocks[:, k]) for k, name in enumerate(("instability", *FACTORS))},
        windows=windows(chosen.contact_L, chosen.frameskip),
        correlations={
            name: float(np.corrcoef(blocks[:, 0], blocks[:, k])[0, 1]) if varies[0] and varies[k] else None
            for k, name in enumerate(FACTORS, start=1)
        },
        supports=Packed.of(chosen.active_TD),
        unit_order=tuple(unit_order(chosen).tolist()),
    )


def windows(contact_L: Bools, frameskip: int) -> tuple[tuple[float, float], ...]:
    """Where contact begins and ends, in blocks: ((begin, end), …)."""
    edge = np.flatnonzero(np.diff(np.concatenate(([0], contact_L.astype(int), [0]))))
    return tuple((float(a / frameskip), float((b - 1) / frameskip)) for a, b in edge.reshape(-1, 2))


def unit_order(track: Track) -> Ints:
    """Units by how much more often they are on in contact than out of it, then by how often they are on."""
    contact = track.contact_L[np.arange(len(track.active_TD)) * track.frameskip]
    active = track.active_TD.astype(np.float64)
    rate = difference = active.mean(0)
    if contact.any() and not contact.all():
        difference = active[contact].mean(0) - active[~contact].mean(0)
    return np.lexsort((-rate, -difference))


def sweep(studies: Sequence[Contact]) -> list[Contact]:
    """Studies in the order of their temporal-Jaccard weight; runs of one weight are its training seeds."""
    if not studies:
        raise UserError("there is nothing to compare: give at least one run.")
    first = studies[0]
    for s in studies:
        if s.world != first.world:
            raise UserError(
                f"{first.run.name} and {s.run.name} were inspected in {first.world.title} and {s.world.title}: compare "
                "the runs of one world."
            )
    return sorted(studies, key=lambda s: (s.tj_weight, s.run.seed))


def table(studies: Sequence[Contact], width: int = 80) -> str:
    """The sweep as text; below each correlation the one given the other two factors."""
    rows = []
    for s in sweep(studies):
        each = [s.correlations[n] for n in FACTORS]
        rows.append([s.run.name, f"{s.tj_weight:g}", f"{s.instability:.3f}", *(_number(c) for c in each)])
        rows.append(["  given the other two", "", "", *("" if c is None else _number(c.partial) for c in each)])
    return columns(["run", "w_TJ", "1 − J", *FACTORS], rows, width)


def _number(value: Interval | None) -> str:
    return "never varies" if value is None else f"{value.estimate:+.2f} [{value.low:+.2f}, {value.high:+.2f}]"
