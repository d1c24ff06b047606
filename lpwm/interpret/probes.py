"""Linear probes: what a code, its support, and its magnitudes given the support tell.

Every number is of frames whose trajectory the probe has not seen (GroupKFold by trajectory): frames of one
trajectory resemble one another, so a split by frame would score memory.

Legend: N frames, E trajectories, D latent width, F features, S position entries, R resamples.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from lpwm.core import rng
from lpwm.core.errors import UserError
from lpwm.interpret.config import ProbeConfig
from lpwm.interpret.results import FEATURES, MAGNITUDES, SUPPORT, Bools, Floats, Ints, Probes, Score, rounded
from lpwm.interpret.supports import support
from lpwm.stats import Interval

ALPHA = 1.0  # ridge penalty on standardized features, summed loss: weak against thousands of frames
C = 1.0  # its counterpart for the logistic probe
POSITION = "position"  # the true one, as a probe's input

Key = tuple[int | str, ...]
Rescore = Callable[[Floats], Floats]  # sums over trajectories (…, columns) -> scores (…)


@dataclass(frozen=True, eq=False)
class Frames:
    """Held-out frames: their codes and what probes predict. Trajectories are contiguous, in time order."""

    z_ND: Floats
    zone_N: Ints
    position_NS: Floats
    trajectory_N: Ints
    sparse: bool

    @property
    def active_ND(self) -> Bools:
        return support(self.z_ND, self.sparse)


@threadpool_limits.wrap(limits=1)
def probe(frames: Frames, config: ProbeConfig | None = None) -> Probes:
    """Zone (multinomial logistic, accuracy) and position (ridge, R² over both coordinates) from

    code         z
    support      s = 1[z > 0]; of a dense code its sign pattern
    magnitudes   m = z − Ê[z | s], Ê the least-squares regression on (1, s) fitted on the training folds: linearly, m
                 says nothing that the support says

    and zone from the true position; position given the support, 1 − SSE(s, m)/SSE(s), since m alone cannot say in
    which zone it is; and each probe again with labels shuffled by whole trajectories.
    """
    config = config or ProbeConfig()
    _check(frames, config)
    from sklearn.model_selection import GroupKFold  # slow to import; only probes need it

    splits = list(GroupKFold(config.folds).split(frames.z_ND, groups=frames.trajectory_N))
    seen = features(frames, splits)
    zone, position = {}, {}
    for name in FEATURES:
        zone[name] = _zone_score(seen[name], frames, config, name)
        position[name] = _position_score(seen[name], frames, config, name)
    zone[POSITION] = _zone_score(seen[POSITION], frames, config, POSITION)
    _, counts = np.unique(frames.zone_N, return_counts=True)
    return Probes(
        zone=zone,
        position=position,
        position_given_support=_partial(seen, frames, config),
        majority=float(counts.max() / counts.sum()),
        frames=len(frames.zone_N),
        trajectories=tuple(int(t) for t in _unique(frames.trajectory_N)),
    )


def _check(frames: Frames, config: ProbeConfig) -> None:
    if not len(frames.z_ND) == len(frames.zone_N) == len(frames.position_NS) == len(frames.trajectory_N):
        raise UserError("probes need one zone, one position and one trajectory for every code.")
    if not np.isfinite(frames.z_ND).all():
        raise UserError("the codes are not finite: the run has diverged, so there is nothing to inspect in it.")
    groups = len(_unique(frames.trajectory_N))
    if groups < config.folds:
        raise UserError(
            f"probes are cross-validated by trajectory in {config.folds} folds, and only {groups} held-out "
            f"trajector{'y is' if groups == 1 else 'ies are'} there: hold out more (data.holdout, data.episodes), or "
            "use fewer folds."
        )
    if len(np.unique(frames.zone_N)) < 2:
        raise UserError("all held-out frames lie in one zone: there is nothing to tell apart; use more episodes.")


def _unique(trajectory_N: Ints) -> Ints:
    """Trajectories in the order in which they come."""
    _, first = np.unique(trajectory_N, return_index=True)
    return trajectory_N[np.sort(first)]


@dataclass(frozen=True, eq=False)
class Fold:
    """What a probe sees in one fold: the features of all N rows, made with what the training rows know."""

    train: Ints
    test: Ints
    x_NF: Floats


def features(frames: Frames, splits: list[tuple[Any, Any]]) -> dict[str, list[Fold]]:
    """The folds of every feature set."""
    z, s = frames.z_ND.astype(np.float64), frames.active_ND.astype(np.float64)
    seen: dict[str, list[Fold]] = {name: [] for name in (*FEATURES, POSITION)}
    for train, test in splits:
        left = z - regressed(z, s, train)
        for name, x in zip(seen, (z, s, left, frames.position_NS.astype(np.float64)), strict=True):
            # Magnitudes are measured in the code's own scale: a unit that is on in one training frame leaves nothing
            # there, and dividing by that nothing would blow it up in the others.
            scale = z[train].std(0) if name == MAGNITUDES else x[train].std(0)
            seen[name].append(Fold(train, test, _standardized(x, scale, train)))
    return seen


def regressed(z_ND: Floats, s_ND: Floats, train: Ints) -> Floats:
    """Ê[z | s] for all rows: least squares of z on (1, s) over the training rows, of least norm and without a penalty,
    so that what is left is uncorrelated with the support to the last digits."""
    s, z = s_ND[train].mean(0), z_ND[train].mean(0)
    weights, *_ = np.linalg.lstsq(s_ND[train] - s, z_ND[train] - z, rcond=1e-6)
    return z + (s_ND - s) @ weights


def _standardized(x_NF: Floats, scale_F: Floats, train: Ints) -> Floats:
    """Centered on the training rows and divided by `scale_F`; a feature that does not vary there is 0 everywhere."""
    vary = x_NF[train].std(0) > 1e-6 * max(float(scale_F.max()), 1e-12)
    return np.where(vary, (x_NF - x_NF[train].mean(0)) / np.where(vary, scale_F, 1.0), 0.0)


def _regress(seen: list[Fold], y_NS: Floats) -> Floats:
    """Held-out ridge predictions, (N, S)."""
    from sklearn.linear_model import Ridge

    out = np.empty(y_NS.shape)
    for fold in seen:
        fitted = Ridge(alpha=ALPHA).fit(fold.x_NF[fold.train], y_NS[fold.train])
        # scikit-learn drops the axis of a single target
        out[fold.test] = fitted.predict(fold.x_NF[fold.test]).reshape(len(fold.test), -1)
    return out


def _classify(seen: list[Fold], label_N: Ints) -> tuple[Ints, bool]:
    """Held-out predictions of the multinomial logistic probe, and whether every fit converged."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    out, converged = np.empty_like(label_N), True
    for fold in seen:
        label = label_N[fold.train]
        if len(np.unique(label)) < 2:
            out[fold.test] = label[0]
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            x_NF = fold.x_NF.astype(np.float32)  # as the codes are; half the time
            fitted = LogisticRegression(C=C, max_iter=300, tol=1e-3).fit(x_NF[fold.train], label)
        converged &= not any(issubclass(w.category, ConvergenceWarning) for w in caught)
        out[fold.test] = fitted.predict(x_NF[fold.test])
    return out, converged


def _zone_score(seen: list[Fold], frames: Frames, config: ProbeConfig, name: str) -> Score:
    predicted, converged = _classify(seen, frames.zone_N)
    tally = sum_by(frames.trajectory_N, np.ones(len(predicted)), predicted == frames.zone_N)
    control = np.zeros_like(tally)
    for k in range(config.shuffles):
        label = shuffle_trajectories(frames.zone_N, frames.trajectory_N, (config.seed, "zone", k))
        control += sum_by(frames.trajectory_N, np.ones(len(label)), _classify(seen, label)[0] == label)
    return _score(tally, control, accuracy, config, ("zone", name), converged)


def _position_score(seen: list[Fold], frames: Frames, config: ProbeConfig, name: str) -> Score:
    def tally(y_NS: Floats, predicted_NS: Floats) -> Floats:
        error_N = np.square(y_NS - predicted_NS).sum(1)
        return sum_by(frames.trajectory_N, np.ones(len(y_NS)), error_N, np.square(y_NS).sum(1), *y_NS.T)

    y_NS = frames.position_NS.astype(np.float64)
    keys = [(config.seed, "position", k) for k in range(config.shuffles)]
    every = [y_NS, *(shuffle_trajectories(y_NS, frames.trajectory_N, key) for key in keys)]
    # The targets of one regression are independent, so true and shuffled ones share its factorization.
    predicted = np.hsplit(_regress(seen, np.hstack(every)), len(every))
    own, *control = (tally(y, p) for y, p in zip(every, predicted, strict=True))
    return _score(own, sum(control), r_squared, config, ("position", name))


def _partial(seen: dict[str, list[Fold]], frames: Frames, config: ProbeConfig) -> Score:
    """1 − SSE(s, m)/SSE(s). Its control gives every trajectory the magnitudes of another."""
    y_NS = frames.position_NS.astype(np.float64)
    alone_N = np.square(y_NS - _regress(seen[SUPPORT], y_NS)).sum(1)

    def tally(rows_N: Ints) -> Floats:
        pairs = zip(seen[SUPPORT], seen[MAGNITUDES], strict=True)
        both = [Fold(s.train, s.test, np.hstack((s.x_NF, m.x_NF[rows_N]))) for s, m in pairs]
        error_N = np.square(y_NS - _regress(both, y_NS)).sum(1)
        return sum_by(frames.trajectory_N, np.ones(len(y_NS)), error_N, alone_N)

    own = np.arange(len(y_NS))
    keys = [(config.seed, "magnitudes", k) for k in range(config.shuffles)]
    control = sum(tally(shuffle_trajectories(own, frames.trajectory_N, key)) for key in keys)
    return _score(tally(own), control, share, config, ("partial",))


def _score(
    tally_E: Floats, control_E: Any, rescore: Rescore, config: ProbeConfig, key: Key, converged: bool = True
) -> Score:
    interval = bootstrap(tally_E, rescore, config, key)
    shuffled = bootstrap(control_E, rescore, config, (*key, "shuffled"))
    return Score(**vars(interval), shuffled=shuffled, converged=converged, tally=rounded(tally_E, 3))


def shuffle_trajectories(values_N: Any, trajectory_N: Ints, key: Key) -> Any:
    """Every trajectory gets the values of another, in their order (cyclically, where it is longer): only their tie to
    the frames is cut."""
    draw = np.random.default_rng(rng.seed_of("shuffle trajectories", *key))
    ring = draw.permutation(_unique(trajectory_N))  # each gives to the next, so that none keeps its own
    rows = {t: np.flatnonzero(trajectory_N == t) for t in ring}
    out = np.empty_like(values_N)
    for t, donor in zip(ring, np.roll(ring, 1), strict=True):
        out[rows[t]] = values_N[np.resize(rows[donor], len(rows[t]))]
    return out


def sum_by(trajectory_N: Ints, *columns: Any) -> Floats:
    """Sums over the frames of each trajectory, in the order in which they come: (E, columns)."""
    _, first, label = np.unique(trajectory_N, return_index=True, return_inverse=True)
    sums: Floats = np.stack([np.bincount(label, np.asarray(c, dtype=np.float64)) for c in columns], -1)
    return sums[np.argsort(first)]


def accuracy(sums: Floats) -> Floats:
    """(…, [n, correct]) -> (…)."""
    return sums[..., 1] / sums[..., 0]


def r_squared(sums: Floats) -> Floats:
    """(…, [n, squared error, Σ‖y‖², Σy …]) -> 1 − Σ‖y − ŷ‖² / Σ‖y − ȳ‖², ȳ the mean of the very frames scored."""
    n, error, square, first = sums[..., 0], sums[..., 1], sums[..., 2], sums[..., 3:]
    return 1 - error / np.maximum(square - np.square(first).sum(-1) / n, 1e-12)


def share(sums: Floats) -> Floats:
    """(…, [n, squared error with, squared error without]) -> 1 − with/without."""
    return 1 - sums[..., 1] / np.maximum(sums[..., 2], 1e-12)


def bootstrap(tally_E: Floats, rescore: Rescore, config: ProbeConfig, key: Key = ()) -> Interval:
    """The score of all trajectories, and its percentile interval when they are drawn with replacement. The probes are
    not fitted again: the interval is about which trajectories were held out for scoring."""
    draw = np.random.default_rng(rng.seed_of("probe bootstrap", config.seed, *key))
    E = len(tally_E)
    weight_RE = draw.multinomial(E, np.full(E, 1 / E), size=config.resamples)
    values = rescore(weight_RE @ tally_E)
    low, high = np.quantile(values, [(1 - config.level) / 2, (1 + config.level) / 2]).tolist()
    return Interval(float(rescore(tally_E.sum(0))), low, high, config.level, "trajectories of one checkpoint")
