"""What was gathered, as the page and the figures show it: names, colors, the cells to show first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lpwm.evaluate.results import Rate, Row
from lpwm.interpret.results import FactorStudy, Result, Study, WorldInfo
from lpwm.report import palette
from lpwm.report.gather import CellView, Gathered, RunFile, cells, headline
from lpwm.stats import Interval

Named = Any  # has `name` and `control`: a row of an evaluation, or a group of episodes


def method_key(name: str) -> str:
    """A recipe's name as it stands in folders and in evaluations."""
    return name.replace("/", "-")


@dataclass(frozen=True)
class RunView:
    file: RunFile
    title: str  # of its method
    label: str  # with the seed where several runs share the method
    full: str  # with its recipe
    color: int


@dataclass(frozen=True)
class Report:
    """Recipes (`piecewise-2x2/lpwm`) are called by their last word where it tells them apart: `sparse LpWM`."""

    given: Gathered

    @cached_property
    def runs(self) -> list[RunView]:
        files = self.given.runs
        last = {r.name: r.name.rpartition("/")[2] for r in files}
        colors = palette.assign((r.key, r.sparse) for r in files)
        out = []
        for run in files:
            alone = list(last.values()).count(last[run.name]) == 1
            title = palette.called(last[run.name] if alone else run.name, run.sparse)
            if len({r.key for r in files if r.name == run.name}) > 1:
                title += f" {run.key[-4:]}"
            label = _label(title, run, files)
            out.append(RunView(run, title, label, f"{label}, {run.name}" if alone else label, colors[run.key]))
        return out

    def by_hash(self, run_hash: str) -> RunView | None:
        return next((r for r in self.runs if r.file.hash == run_hash), None)

    def world(self, run: RunFile) -> WorldInfo:
        """As results of the run name it, which have seen its data; else as its config does."""
        given = self.given
        results: tuple[Result, ...] = (*given.recorded, *given.factors, *given.imagination, *given.studies)
        return next((r.world for r in results if r.run.hash == run.hash), run.world)

    def run_of(self, method: str, evaluation: int | None = None) -> RunView | None:
        """The first run of a method as an evaluation (counted from 0; any if None) names it."""
        every = self.given.evaluations
        entries = [e for one in (every if evaluation is None else [every[evaluation]]) for e in one.runs]
        named = (self.by_hash(e.run_hash) for e in entries if e.method == method and e.vote is None)
        same = (r for r in self.runs if method_key(r.file.name) == method_key(method))
        return next(filter(None, named), None) or next(same, None)

    def ordered(self, rows: Sequence[Named], evaluation: int | None = None) -> list[Named]:
        """Rows of methods in the order of their runs, then what is no run of these, controls last."""

        def rank(row: Named) -> tuple[bool, int]:
            run = None if row.control else self.run_of(row.name, evaluation)
            return row.control, self.runs.index(run) if run is not None else len(self.runs)

        return sorted(rows, key=rank)

    def look(self, row: Named, evaluation: int | None = None) -> tuple[str, int]:
        """What a row of an evaluation (or a group of episodes) is called here, and its color."""
        run = None if row.control else self.run_of(row.name, evaluation)
        return (run.title, run.color) if run is not None else (row.name, -1)

    def color(self, result: Result) -> int:
        run = self.by_hash(result.run.hash)
        return -1 if run is None else run.color

    def name(self, result: Result) -> str:
        run = self.by_hash(result.run.hash)
        return result.run.name if run is None else run.full

    def label(self, result: Result) -> str:
        run = self.by_hash(result.run.hash)
        return run.label if run else result.run.name

    def study_label(self, study: Study) -> str:
        several = sum(s.run.hash == study.run.hash for s in self.given.studies) > 1
        zones = f", zones {'visible' if study.settings.visible else 'invisible'}" if several else ""
        return self.label(study) + zones

    @cached_property
    def units(self) -> list[Study | FactorStudy]:
        """The studies with an atlas of units, one of each run."""
        studies: list[Study | FactorStudy] = [*self.given.factors, *self.given.studies]
        return sorted({s.run.hash: s for s in studies if s.units}.values(), key=lambda s: not s.run.sparse)

    @cached_property
    def cells(self) -> list[CellView]:
        return cells(self.given.evaluations)

    @cached_property
    def headline(self) -> list[CellView]:
        return headline(self.cells)

    @cached_property
    def warnings(self) -> list[str]:
        """Runs that their own log calls dead, and runs that do not beat copying."""
        lines = []
        for r in self.runs:
            lines += [f"{r.label}, {message}" for message in r.file.log.messages()]
            error, copy = r.file.error, r.file.copy_error
            if error is not None and copy is not None and error >= copy:
                lines.append(f"{r.label} predicts no better than copying the last frame one block ahead.")
        return list(dict.fromkeys(lines))


def _label(title: str, run: RunFile, runs: Sequence[RunFile]) -> str:
    """The method's title, and the seed where several runs share it; the hash where even that is the same."""
    same = [r for r in runs if r.key == run.key]
    if len(same) == 1:
        return title
    seeds = [r.seed for r in same]
    return f"{title}, seed {run.seed}" if len(set(seeds)) == len(seeds) else f"{title} {run.hash[:6]}"


def median_steps(row: Row, budget: int) -> str:
    steps = sorted(s for line in row.at(budget).steps_to_success for record in line for s in record if s > 0)
    return str(steps[len(steps) // 2]) if steps else "–"


# Numbers as text --------------------------------------------------------------------------------------------


def percent(value: Rate) -> str:
    """`62.5 [30.6, 86.3]`."""
    if math.isnan(value.rate):
        return "–"
    if math.isnan(value.low) or math.isnan(value.high):
        return f"{100 * value.rate:.1f}"
    return f"{100 * value.rate:.1f} [{100 * max(value.low, 0.0):.1f}, {100 * min(value.high, 1.0):.1f}]"


def times(ratio: float) -> str:
    """`7 % of that`, `1,400 times that`."""
    return f"{100 * ratio:.0f} % of that" if ratio < 2 else f"{float(f'{ratio:.2g}'):,g} times that"


def short(value: float | None, digits: int = 3) -> str:
    """A number for a table; an en dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    if value and not 1e-4 <= abs(value) < 1e4:
        return f"{value:.1e}"
    return f"{value:.{digits}g}"


def fixed(value: float | None) -> str:
    """Three decimals with a real minus sign."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.3f}"
    return "0.000" if text == "-0.000" else text.replace("-", "−")


def interval(value: Interval, most: float = math.inf, least: float = -math.inf) -> str:
    """`0.400 [0.300, 0.500]`, without brackets where the bounds are not known; never beyond what can be."""
    bounds = "" if value.low is None else f" [{fixed(max(value.low, least))}, {fixed(min(value.high, most))}]"
    return fixed(value.estimate) + bounds
