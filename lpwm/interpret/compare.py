"""Studies side by side: sparse beside dense, over training seeds where there are several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpwm.core.errors import UserError
from lpwm.interpret.probes import ProbeConfig, accuracy, bootstrap, r_squared, share
from lpwm.interpret.supports import Floats
from lpwm.stats import Interval, t_interval

Study = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """Where a number lies in a study. `rescore` makes it from the sums of any set of trajectories."""

    title: str
    path: tuple[str, ...]
    percent: bool = False
    rescore: Callable[[Floats], Floats] | None = None

    def of(self, study: Study) -> Any:
        value: Any = study
        for key in self.path:
            value = value[key]
        return value

    def estimate(self, study: Study) -> float:
        value = self.of(study)
        return float(value["estimate"] if isinstance(value, dict) else value)


# In the order of the table.
MEASURES: dict[str, Measure] = {
    "sharpness": Measure("sharpness (within − across)", ("sharpness", "sharpness")),
    "sharpness_translated": Measure("  with borders moved", ("sharpness", "translated", "mean")),
    "matched": Measure("  at equal displacement", ("sharpness", "matched")),
    "matched_translated": Measure("    with borders moved", ("sharpness", "matched_translated", "mean")),
    "zone_code": Measure("zone from code", ("probes", "zone", "code"), True, accuracy),
    "zone_support": Measure("zone from support", ("probes", "zone", "support"), True, accuracy),
    "zone_magnitudes": Measure("zone from magnitudes", ("probes", "zone", "magnitudes"), True, accuracy),
    "zone_shuffled": Measure("  labels shuffled", ("probes", "zone", "code", "shuffled"), True),
    "zone_position": Measure("  from the true position", ("probes", "zone", "position"), True),
    "position_code": Measure("position R² from code", ("probes", "position", "code"), False, r_squared),
    "position_support": Measure("position R² from support", ("probes", "position", "support"), False, r_squared),
    "position_magnitudes": Measure(
        "position R² from magnitudes", ("probes", "position", "magnitudes"), False, r_squared
    ),
    "position_given_support": Measure(
        "  of what the support leaves", ("probes", "position_given_support"), False, share
    ),
    "position_shuffled": Measure("  labels shuffled", ("probes", "position", "code", "shuffled")),
    "active_fraction": Measure("active fraction", ("supports", "active_fraction")),
    "instability": Measure("support instability per block", ("supports", "instability")),
}


def compare(studies: Sequence[Study]) -> dict[str, Any]:
    """Methods (runs that differ in their training seed alone), each measure with an interval, and sparse − dense.

    Several seeds: a t interval over checkpoints. One: the study's own, over trajectories or units of that checkpoint.
    A difference is paired: over the seeds both have, or for one checkpoint each over the trajectories both were
    probed on, which speaks of these two checkpoints and not of their methods. Otherwise it has no interval.
    """
    check_comparable(studies)
    methods: dict[str, list[Study]] = {}
    for study in sorted(studies, key=lambda s: not s["run"]["sparse"]):  # sparse first
        methods.setdefault(study["run"]["method"], []).append(study)
    rows = [
        {
            "method": name,
            "sparse": group[0]["run"]["sparse"],
            "seeds": [s["run"]["seed"] for s in group],
            "runs": [s["run"]["hash"] for s in group],
            "measures": {key: _summary(measure, group) for key, measure in MEASURES.items()},
        }
        for name, group in methods.items()
    ]
    pairs = [
        (a, b) for a in methods.values() for b in methods.values() if a[0]["run"]["sparse"] > b[0]["run"]["sparse"]
    ]
    return {
        "kind": "lpwm interpretation comparison",
        "methods": rows,
        "differences": [_difference(key, m, a, b) for a, b in pairs for key, m in MEASURES.items()],
    }


def check_comparable(studies: Sequence[Study]) -> None:
    if not studies:
        raise UserError("there is nothing to compare: give at least one study.")
    first = studies[0]
    seen = set()
    for study in studies:
        for what in ("g", "scale", "visible"):
            a, b = first["world"]["options"][what], study["world"]["options"][what]
            if a != b:
                raise UserError(
                    f"{first['run']['name']} and {study['run']['name']} were read in worlds with {what} = {a} and {b}: "
                    "compare the runs of one world"
                    + (", or draw the zones alike with --visible or --hidden." if what == "visible" else ".")
                )
        if study["run"]["hash"] in seen:
            raise UserError(f"the run {study['run']['name']} is given twice: name each once.")
        seen.add(study["run"]["hash"])


def _summary(measure: Measure, group: list[Study]) -> dict[str, Any]:
    values = [measure.estimate(s) for s in group]
    if len(values) > 1:
        return dataclasses.asdict(t_interval(values)) | {"values": values}
    own = measure.of(group[0])
    bounds = {k: own[k] for k in ("low", "high", "level", "unit")} if isinstance(own, dict) else {}
    return {"estimate": values[0], **bounds, "values": values}


def _difference(key: str, measure: Measure, a: list[Study], b: list[Study]) -> dict[str, Any]:
    by_seed_a, by_seed_b = ({s["run"]["seed"]: s for s in group} for group in (a, b))
    shared = sorted(by_seed_a.keys() & by_seed_b.keys())
    out: dict[str, Any] = {"measure": key, "a": a[0]["run"]["method"], "b": b[0]["run"]["method"]}
    if len(shared) > 1:
        gaps = [measure.estimate(by_seed_a[s]) - measure.estimate(by_seed_b[s]) for s in shared]
        return out | dataclasses.asdict(t_interval(gaps))
    mean = float(np.mean([measure.estimate(s) for s in a]) - np.mean([measure.estimate(s) for s in b]))
    if len(a) == len(b) == 1 and measure.rescore is not None:
        paired = _paired(measure, a[0], b[0])
        if paired is not None:
            return out | dataclasses.asdict(paired)
    return out | {"estimate": mean}


def _paired(measure: Measure, a: Study, b: Study) -> Interval | None:
    """The difference of two probes over the trajectories that both were scored on, drawn with replacement."""
    if a["probes"]["trajectories"] != b["probes"]["trajectories"]:
        return None
    tallies = [np.asarray(measure.of(s)["tally"], dtype=np.float64) for s in (a, b)]
    columns, rescore = tallies[0].shape[1], measure.rescore
    assert rescore is not None

    def gap(sums: Floats) -> Floats:
        return rescore(sums[..., :columns]) - rescore(sums[..., columns:])

    found = bootstrap(np.hstack(tallies), gap, ProbeConfig(), ("compare", *measure.path))
    return dataclasses.replace(found, unit="trajectories, of these two checkpoints")
