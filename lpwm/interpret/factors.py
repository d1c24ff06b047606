"""Linear probes of any factor, kept with the run: what a code tells of the state, and goals as wanted values of it.

A factor is an entry of the recorded state, or what the run's world makes of it (`world.factors`). Its probe is a ridge
regression on the code, fitted on training trajectories and scored on held-out ones; an angle is probed as sin and cos.

Legend: N frames, D latent width, Y targets (one per factor, two per angle).
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from lpwm.core.errors import UserError, choose
from lpwm.core.files import read_bytes, write_whole
from lpwm.core.json import MAX_BYTES, dump_json, from_json, parse_json
from lpwm.data import EpisodeData
from lpwm.interpret.config import FactorConfig, ProbeConfig
from lpwm.interpret.probes import bootstrap, r_squared, shuffle_trajectories, sum_by
from lpwm.interpret.results import FactorScore, FactorStudy, Floats, WorldInfo
from lpwm.interpret.study import made
from lpwm.interpret.supports import Episode, held_out_episodes
from lpwm.interpret.units import atlas
from lpwm.train import Loaded, load

FILE = "factors.safetensors"  # in the run's folder
VERSION = 1
PENALTIES = tuple(10.0**k for k in range(6))  # of the ridge, summed loss on standardized codes
SHUFFLES = 8  # of the labels among training trajectories; the control is their mean
ANGLES = ("angle", "theta", "yaw", "roll", "pitch", "heading")


@dataclass(frozen=True, eq=False)
class Factors:
    """Probes of one model: `predict` values from codes, `cost` for wanted values. weight_DY and bias_Y map a code to
    the targets, in the factors' own units; `scores` says how well, held out."""

    scores: tuple[FactorScore, ...]
    weight_DY: Tensor
    bias_Y: Tensor
    step: int  # of the model they were fitted to

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(score.name for score in self.scores)

    def _targets(self, z: Tensor) -> dict[str, Tensor]:
        """(…, D) -> for each factor (…, 1), or (…, 2) for an angle."""
        if z.shape[-1] != len(self.weight_DY):
            raise UserError(
                f"these codes have {z.shape[-1]} entries and the probes were fitted to {len(self.weight_DY)}: fit the "
                "factors of this very run."
            )
        y = z.float() @ self.weight_DY.to(z.device) + self.bias_Y.to(z.device)
        parts = y.split([2 if score.angle else 1 for score in self.scores], -1)
        return dict(zip(self.names, parts, strict=True))

    def predict(self, z: Tensor) -> dict[str, Tensor]:
        """Codes (…, D) -> the value of each factor (…); angles in (−π, π]."""
        parts = self._targets(z)
        return {n: torch.atan2(*y.unbind(-1)) if y.shape[-1] == 2 else y[..., 0] for n, y in parts.items()}

    def cost(self, wanted: Mapping[str, float]) -> Callable[[Tensor], Tensor]:
        """Codes (…, D) -> (…): the mean over the wanted factors of ((value − wanted)/spread)². An angle counts by the
        distance of (sin, cos) in their own spread."""
        if not wanted:
            raise UserError(f"no factor is wanted: give values for some of {', '.join(self.names)}.")
        table, goals = {score.name: score for score in self.scores}, {}
        for name, value in wanted.items():
            score = choose("factor", name, table)
            if isinstance(value, str | None) or not math.isfinite(value):
                raise UserError(f"{name} = {value} cannot be wanted: give a finite number.")
            if not score.r2 > 0:
                raise UserError(
                    f"the codes do not tell {name} (held-out R² {score.r2:.2f}): want another factor, or a picture."
                )
            goals[name] = [math.sin(value), math.cos(value)] if score.angle else [float(value)]

        def cost(z: Tensor) -> Tensor:
            parts = self._targets(z)
            terms = [(parts[n] - z.new_tensor(g)).square().sum(-1) / table[n].spread ** 2 for n, g in goals.items()]
            return torch.stack(terms).mean(0)

        return cost

    def save(self, folder: str | Path) -> Path:
        path = Path(folder) / FILE
        about = dump_json({"version": VERSION, "step": self.step, "scores": self.scores})
        tensors = {"weight": self.weight_DY.contiguous(), "bias": self.bias_Y.contiguous()}
        write_whole(path, safetensors.save(tensors, metadata={"lpwm": about}))
        return path


def load_factors(folder: str | Path, step: int | None = None) -> Factors:
    """The probes that `fit_factors` kept in a run's folder, or in that of one of its checkpoints. step: of the model
    they are meant for; probes of another step are refused."""
    folder = Path(folder)
    path = next((p / FILE for p in (folder, *folder.parents[:2]) if (p / FILE).exists()), None)
    if path is None:
        raise UserError(f"{folder} has no factors yet: run lpwm interpret --what factors {folder}.")
    data = read_bytes(path, MAX_BYTES)
    try:
        tensors = safetensors.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        about = parse_json(header.get("__metadata__", {}).get("lpwm", "{}"), str(path))
        kept = from_json(_Kept, about, str(path))
        factors = Factors(kept.scores, tensors["weight"], tensors["bias"], kept.step)
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): run lpwm interpret --what factors again.") from None
    if kept.version > VERSION:
        raise UserError(f"{path} is of version {kept.version}, and this lpwm reads up to {VERSION}: update lpwm.")
    if step is not None and step != factors.step:
        raise UserError(
            f"{path} was fitted to step {factors.step} and the model is of step {step}: run lpwm interpret --what "
            "factors again."
        )
    return factors


@dataclass(frozen=True)
class _Kept:
    version: int
    step: int
    scores: tuple[FactorScore, ...]


def fit_factors(
    run: Loaded | str | Path, config: FactorConfig | None = None, data: EpisodeData | None = None, *, save: bool = True
) -> Factors:
    """Fit the probes of a run on its training trajectories, score them on held-out ones, and keep them with the run."""
    loaded = load(run) if isinstance(run, str | Path) else run
    config = config or FactorConfig()
    data = loaded.episodes() if data is None else data
    train, held = (held_out_episodes(loaded, data, config.frames, config.seed, 1, s) for s in ("training", "held-out"))
    values = [values_of(loaded, data, episodes) for episodes in (train, held)]
    names = [n for n, x in values[0].items() if n in values[1] and _varies(x)]
    if config.factors:
        for name in config.factors:
            choose("factor", name, dict.fromkeys(names))
        names = list(config.factors)
    if not names:
        raise UserError(f"{loaded.path} has no state that varies, so there is nothing to probe: record some.")
    angles = {n for n in names if n in config.angles or (not config.angles and _is_angle(n, values[0][n], train))}
    kinds = {n: n in angles for n in names}
    y_train, y_held = (targets_of(loaded, data, episodes, kinds) for episodes in (train, held))
    factors = _fit(names, angles, (train, y_train), (held, y_held), config.seed, loaded.step)
    if save:
        factors.save(loaded.path)
    return factors


def factor_study(loaded: Loaded, config: FactorConfig | None = None, data: EpisodeData | None = None) -> FactorStudy:
    """`fit_factors`, as a result."""
    config = config or FactorConfig()
    data = loaded.episodes() if data is None else data
    scores = fit_factors(loaded, config, data).scores
    held = held_out_episodes(loaded, data, config.frames, config.seed, 1)
    z_ND, plane = np.concatenate([e.z_TD for e in held]).astype(np.float64), [s.name for s in scores[:2]]
    units = atlas(z_ND, values_of(loaded, data, held), plane[0], plane[1]) if len(plane) == 2 else None
    world = WorldInfo(loaded.spec.name, dict(loaded.spec.options))
    return FactorStudy(**made(loaded), world=world, settings=config, scores=scores, units=units)


def values_of(loaded: Loaded, data: EpisodeData, episodes: list[Episode]) -> dict[str, Floats]:
    """The value of every factor at every frame: entries of the state, then what the world tells of it."""
    states = np.concatenate([e.states_LS[:: e.frameskip] for e in episodes])
    known = () if data.spec is None else data.spec.state_names
    names = known or tuple(f"state_{i}" for i in range(states.shape[1]))
    values = dict(zip(names, states.T.astype(np.float64), strict=True))
    told = loaded.world.factors(torch.from_numpy(states)) if loaded.world is not None else {}
    for name, x in told.items():
        # A number of a zone is no quantity; whether something touches is.
        if name not in values and (x.is_floating_point() or len(x.unique()) <= 2):
            values[name] = x.double().cpu().numpy()
    return values


def targets_of(loaded: Loaded, data: EpisodeData, episodes: list[Episode], angles: Mapping[str, bool]) -> Floats:
    """The factors `angles` names at every frame, (N, Y): an angle as sin and cos."""
    values = values_of(loaded, data, episodes)
    return np.hstack([_columns(values[name], angle) for name, angle in angles.items()])


def _varies(x_N: Floats) -> bool:
    return bool(np.isfinite(x_N).all() and x_N.std() > 1e-9 * max(1.0, float(np.abs(x_N).max())))


def _is_angle(name: str, x_N: Floats, episodes: list[Episode]) -> bool:
    """By its name, or because it jumps by a turn within one: all values within 2π, a step of more than 3π/2."""
    if name.lower().rpartition("_")[2] in ANGLES or name.lower() in ANGLES:
        return True
    last = np.cumsum([len(e.z_TD) for e in episodes])[:-1]
    jumps = np.abs(np.delete(np.diff(x_N), last - 1))
    return bool(np.ptp(x_N) <= 2 * math.pi + 1e-3 and (jumps > 1.5 * math.pi).any())


def _columns(x_N: Floats, angle: bool) -> Floats:
    return np.stack((np.sin(x_N), np.cos(x_N)), 1) if angle else x_N[:, None]


def _fit(names: list[str], angles: set[str], train: Any, held: Any, seed: int, step: int) -> Factors:
    (episodes, y_NY), (others, y_held) = train, held
    x_ND, x_held = (np.concatenate([e.z_TD for e in part]).astype(np.float64) for part in (episodes, others))
    if not np.isfinite(x_ND).all():
        raise UserError("the codes are not finite: the run has diverged, so there is nothing to inspect in it.")
    label, of = (np.repeat(np.arange(len(part)), [len(e.z_TD) for e in part]) for part in (episodes, others))
    # The penalty that predicts every fifth training trajectory best.
    part = label % 5 != 0 if len(episodes) > 4 else np.arange(len(label)) % 5 != 0
    tried = [_errors(_ridge(x_ND[part], y_NY[part], a), x_ND[~part], y_NY[~part]) for a in PENALTIES]
    penalty = PENALTIES[int(np.argmin([(e.sum(0) / np.maximum(y_NY.var(0), 1e-300)).sum() for e in tried]))]
    weight, bias = fitted = _ridge(x_ND, y_NY, penalty)
    mixed = [shuffle_trajectories(y_NY, label, (seed, "factors", k)) for k in range(SHUFFLES)]
    controls = _errors(_ridge(x_ND, np.hstack(mixed), penalty), x_held, np.hstack([y_held] * SHUFFLES))
    own, control = _errors(fitted, x_held, y_held), np.stack(np.hsplit(controls, SHUFFLES)).mean(0)
    config, scores, at = ProbeConfig(seed=seed), [], 0
    for name in names:
        columns = slice(at, at + (2 if name in angles else 1))
        at, y = columns.stop, y_held[:, columns]

        def tally(errors_NY: Floats, y: Floats = y, columns: slice = columns) -> Floats:
            return sum_by(of, np.ones(len(y)), errors_NY[:, columns].sum(1), np.square(y).sum(1), *y.T)

        score = bootstrap(tally(own), r_squared, config, ("factor", name))
        shuffled = float(r_squared(tally(control).sum(0)))
        seen = y_NY[:, columns]
        low, high = (-math.pi, math.pi) if name in angles else (float(seen.min()), float(seen.max()))
        r2 = (score.estimate, score.low, score.high, shuffled)
        scores.append(FactorScore(name, name in angles, *r2, float(np.sqrt(seen.var(0).sum())), low, high, len(y)))
    return Factors(tuple(scores), torch.from_numpy(weight).float(), torch.from_numpy(bias).float(), step)


def _ridge(x_ND: Floats, y_NY: Floats, penalty: float) -> tuple[Floats, Floats]:
    """Weights (D, Y) and biases (Y,) of the ridge on standardized codes and targets, in their own units."""
    mean, scale = x_ND.mean(0), np.maximum(x_ND.std(0), 1e-6 * max(float(x_ND.std(0).max()), 1e-12))
    x = (x_ND - mean) / scale
    gram = x.T @ x + penalty * np.eye(x.shape[1])
    weight = np.linalg.solve(gram, x.T @ (y_NY - y_NY.mean(0))) / scale[:, None]
    return weight, y_NY.mean(0) - mean @ weight


def _errors(fitted: tuple[Floats, Floats], x_ND: Floats, y_NY: Floats) -> Floats:
    """Squared errors, (N, Y)."""
    return np.square(y_NY - x_ND @ fitted[0] - fitted[1])
