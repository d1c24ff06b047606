"""Studies side by side: sparse next to dense, over training seeds where there are several."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lpwm.core.errors import UserError
from lpwm.core.json import fields_json
from lpwm.evaluate.table import columns
from lpwm.interpret.config import ProbeConfig
from lpwm.interpret.probes import accuracy, bootstrap, r_squared, share
from lpwm.interpret.results import Estimate, Floats, Score, Study, clipped
from lpwm.stats import Interval, t_interval

LABEL = {True: "sparse", False: "dense (sign pattern)"}


@dataclass(frozen=True)
class Measure:
    """One number of a study. `rescore` makes a probe's from the sums of any set of trajectories."""

    title: str
    get: Callable[[Study], Interval | float]
    percent: bool = False
    rescore: Callable[[Floats], Floats] | None = None
    least: float = 0.0  # it lies in [least, 1]

    def of(self, study: Study) -> Estimate:
        value = self.get(study)
        return Estimate.of(value) if isinstance(value, Interval) else Estimate(value)


def _zone(title: str, feature: str) -> Measure:
    return Measure(title, lambda s: s.probes.zone[feature], True, accuracy)


def _position(title: str, feature: str) -> Measure:
    return Measure(title, lambda s: s.probes.position[feature], False, r_squared, -np.inf)


# In the order of the table.
MEASURES: dict[str, Measure] = {
    "sharpness": Measure("sharpness (within − across)", lambda s: s.sharpness.sharpness, least=-1.0),
    "sharpness_translated": Measure("  with borders moved", lambda s: s.sharpness.translated.mean, least=-1.0),
    "matched": Measure("  at equal displacement", lambda s: s.sharpness.matched, least=-1.0),
    "matched_translated": Measure("    with borders moved", lambda s: s.sharpness.matched_translated.mean, least=-1.0),
    "zone_code": _zone("zone from code", "code"),
    "zone_support": _zone("zone from support", "support"),
    "zone_magnitudes": _zone("zone from magnitudes", "magnitudes"),
    "zone_shuffled": Measure("  labels shuffled", lambda s: s.probes.shuffled("zone"), True),
    "zone_position": replace(_zone("  from the true position", "position"), rescore=None),
    "position_code": _position("position R² from code", "code"),
    "position_support": _position("position R² from support", "support"),
    "position_magnitudes": _position("position R² from magnitudes", "magnitudes"),
    "position_given_support": Measure(
        "  of what the support leaves", lambda s: s.probes.position_given_support, False, share, -np.inf
    ),
    "position_shuffled": Measure("  labels shuffled", lambda s: s.probes.shuffled("position"), least=-np.inf),
    "active_fraction": Measure("active fraction", lambda s: s.supports.active_fraction),
    "instability": Measure("support instability per block", lambda s: s.supports.instability),
}


@dataclass(frozen=True)
class Summary(Estimate):
    values: tuple[float, ...] = ()  # one per run


@dataclass(frozen=True)
class Method:
    """Runs that differ in their training seed alone."""

    method: str
    sparse: bool
    seeds: tuple[int, ...]
    runs: tuple[str, ...]  # hashes
    measures: dict[str, Summary]


@dataclass(frozen=True)
class Gap(Estimate):
    """Sparse − dense."""

    measure: str = ""
    a: str = ""
    b: str = ""


@dataclass(frozen=True)
class Comparison:
    methods: tuple[Method, ...]
    differences: tuple[Gap, ...]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "lpwm interpretation comparison", **fields_json(self)}


def compare(studies: Sequence[Study]) -> Comparison:
    """Methods (runs that differ in their training seed alone), each measure with an interval, and sparse − dense.

    Several seeds: a t interval over checkpoints. One: the study's own, over trajectories or units of that checkpoint.
    A difference is paired: over the seeds both have, or for one checkpoint each over the trajectories both were
    probed on, which speaks of these two checkpoints and not of their methods. Otherwise it has no interval.
    """
    check_comparable(studies)
    groups: dict[str, list[Study]] = {}
    for study in sorted(studies, key=lambda s: not s.run.sparse):  # sparse first
        groups.setdefault(study.run.method, []).append(study)
    methods = tuple(
        Method(
            name,
            group[0].run.sparse,
            tuple(s.run.seed for s in group),
            tuple(s.run.hash for s in group),
            {key: _summary(measure, group) for key, measure in MEASURES.items()},
        )
        for name, group in groups.items()
    )
    pairs = [(a, b) for a in groups.values() for b in groups.values() if a[0].run.sparse > b[0].run.sparse]
    return Comparison(methods, tuple(_difference(key, m, a, b) for a, b in pairs for key, m in MEASURES.items()))


def check_comparable(studies: Sequence[Study]) -> None:
    if not studies:
        raise UserError("there is nothing to compare: give at least one study.")
    first, seen = studies[0], set()
    for study in studies:
        for what in ("g", "scale", "visible"):
            a, b = first.world.options[what], study.world.options[what]
            if a != b:
                more = ", or draw the zones alike with --visible or --hidden" if what == "visible" else ""
                raise UserError(
                    f"{first.run.name} and {study.run.name} were inspected in worlds with {what} = {a} and {b}: "
                    f"compare the runs of one world{more}."
                )
        if study.run.hash in seen:
            raise UserError(f"the run {study.run.name} is given twice: name each once.")
        seen.add(study.run.hash)


def _summary(measure: Measure, group: list[Study]) -> Summary:
    each = [measure.of(s) for s in group]
    values = tuple(e.estimate for e in each)
    whole = each[0] if len(each) == 1 else Estimate.of(clipped(t_interval(values), measure.least))
    return Summary(**vars(whole), values=values)


def _difference(key: str, measure: Measure, a: list[Study], b: list[Study]) -> Gap:
    by_seed_a, by_seed_b = ({s.run.seed: measure.of(s).estimate for s in group} for group in (a, b))
    shared = sorted(by_seed_a.keys() & by_seed_b.keys())
    gap: Interval | Estimate | None = None
    if len(shared) > 1:
        gaps = [by_seed_a[s] - by_seed_b[s] for s in shared]
        gap = clipped(t_interval(gaps), measure.least - 1, 1 - measure.least)
    elif len(a) == len(b) == 1 and measure.rescore is not None:
        gap = _paired(key, measure, a[0], b[0])
    if gap is None:
        gap = Estimate(float(np.mean([*by_seed_a.values()]) - np.mean([*by_seed_b.values()])))
    return Gap(**vars(Estimate.of(gap)), measure=key, a=a[0].run.method, b=b[0].run.method)


def _paired(key: str, measure: Measure, a: Study, b: Study) -> Interval | None:
    """The difference of two probes over the trajectories that both were scored on, drawn with replacement."""
    if a.probes.trajectories != b.probes.trajectories:
        return None
    scores, rescore = [measure.get(s) for s in (a, b)], measure.rescore
    tallies = [np.asarray(s.tally, dtype=np.float64) for s in scores if isinstance(s, Score)]
    columns = tallies[0].shape[1]
    assert rescore is not None

    def gap(sums: Floats) -> Floats:
        return rescore(sums[..., :columns]) - rescore(sums[..., columns:])

    target, _, feature = key.partition("_")
    draw = (key,) if feature == "given_support" else (target, feature)
    interval = bootstrap(np.hstack(tallies), gap, ProbeConfig(), ("compare", "probes", *draw))
    return replace(interval, unit="trajectories, of these two checkpoints")


# As text: one column a method, sparse before dense -----------------------------------------------------------------


def number(value: Estimate, percent: bool = False, signed: bool = False) -> str:
    """`98.4 % [97.9, 99.0]` or `0.331 [0.284, 0.379]`; without brackets where nothing is known of the spread."""
    scale, digits, sign = (100, 1, " %") if percent else (1, 3, "")

    def one(x: float) -> str:
        return f"{round(scale * x, digits) + 0.0:{'+' if signed else ''}.{digits}f}"

    bounds = "" if value.low is None or value.high is None else f" [{one(value.low)}, {one(value.high)}]"
    return one(value.estimate) + sign + bounds


def table(compared: Comparison, studies: Sequence[Study], width: int = 80) -> str:
    methods = compared.methods
    heads = [f"{m.method}, {LABEL[m.sparse]}{f', {len(m.seeds)} seeds' if len(m.seeds) > 1 else ''}" for m in methods]
    body = [[m.title, *(number(row.measures[key], m.percent) for row in methods)] for key, m in MEASURES.items()]
    groups = [[s for h in m.runs for s in studies if s.run.hash == h] for m in methods]  # counts have no interval
    dead = [", ".join(f"{s.supports.dead_units} of {s.run.latent}" for s in group) for group in groups]
    distinct = [", ".join(f"{s.supports.distinct} in {s.supports.frames}" for s in group) for group in groups]
    body += [["dead units", *dead], ["distinct supports", *distinct]]
    gaps = compared.differences
    if len({(d.a, d.b) for d in gaps}) == 1:  # one sparse method next to one dense one
        heads.append("sparse − dense")
        for line, d in zip(body, gaps, strict=False):
            line.append(number(d, MEASURES[d.measure].percent, signed=True))
    return columns(["", *heads], body, width)


def heading(first: Study) -> str:
    world, probes = first.world, first.probes
    g, visible = world.options.get("g"), first.settings.visible
    zones = "visible" if visible else "hidden"
    if visible != world.trained_visible:
        zones += " (not as in training)"
    return (
        f"piecewise {g}×{g}, zones {zones}; {first.grid.resolution}² cells;\n{probes.frames} held-out frames of "
        f"{len(probes.trajectories)} trajectories; commonest zone {100 * probes.majority:.1f} %"
    )


def cell_lines(studies: Sequence[Study], cell: tuple[int, int]) -> str:
    """The mean Jaccard index of one reference cell with the cells of every zone."""
    lines = [f"mean Jaccard index of cell {cell[0]} {cell[1]} with the cells of zone"]
    for one in studies:
        values, zones = one.jaccard_map(*cell), one.zones_nn
        own = zones[cell]
        means = [
            f"{k}{' (its own)' if k == own else ''} {values[zones == k].mean():.2f}" for k in sorted(set(zones.flat))
        ]
        lines += [f"  {one.run.name}:", f"    {', '.join(means)}"]
    return "\n".join(lines)
