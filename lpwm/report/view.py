"""What was gathered, as the page and the figures show it: names, colors, the cells to show first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lpwm.evaluate.results import Cell, EvalConfig, Evaluation, Rate, Row
from lpwm.interpret.results import Result, Study
from lpwm.report import palette
from lpwm.report.data import Gathered, RunFile
from lpwm.stats import Interval


def method_key(name: str) -> str:
    """A recipe's name as it stands in folders and in evaluations."""
    return name.replace("/", "-")


def family(name: str) -> str:
    """`piecewise-2x2/` of `piecewise-2x2/lpwm`; "" where there is no slash."""
    return name[: name.rfind("/") + 1]


Named = Any  # has `name` and `control`: a row of an evaluation, or a group of episodes


@dataclass(frozen=True)
class RunView:
    file: RunFile
    title: str  # of its method
    label: str  # with the seed where several runs share the method
    full: str  # with the family of its recipe
    color: int


@dataclass(frozen=True)
class CellView:
    """A cell of an evaluation, with what a table of it needs."""

    evaluation: int  # counted from 0
    cell: Cell
    settings: EvalConfig

    @property
    def place(self) -> tuple[str, int, int]:
        return self.cell.goals, self.cell.horizon, self.cell.receding

    @property
    def sweep(self) -> bool:
        return len(self.settings.horizons) > 2

    @property
    def warm(self) -> bool:
        return self.settings.warm and self.cell.receding < self.cell.horizon

    @property
    def sentences(self) -> Sequence[str]:
        """Methods against one another on terminal success at the largest budget; controls left out."""
        names = {row.name for row in self.cell.methods}
        compared = self.cell.compared("terminal", self.cell.budgets[-1])
        if len(names) < 2:
            return ()
        if compared.refused:
            return (compared.refused,)
        return [text for d, text in zip(compared.differences, compared.text, strict=True) if {d.a, d.b} <= names]


@dataclass(frozen=True)
class Report:
    """Recipes of one family (`piecewise-2x2/…`) are called by their last word."""

    given: Gathered

    @cached_property
    def runs(self) -> list[RunView]:
        files = self.given.runs
        shared = len({family(r.name) for r in files}) == 1
        colors = palette.assign((r.key, r.sparse) for r in files)
        out = []
        for run in files:
            name = run.name.removeprefix(family(run.name)) if shared else run.name
            alike = len({r.key for r in files if r.name == run.name}) == 1
            title = name if alike else f"{name} {run.key[-4:]}"
            label = _label(title, run, files)
            out.append(RunView(run, title, label, family(run.name) + label if shared else label, colors[run.key]))
        return out

    def by_hash(self, run_hash: str) -> RunView | None:
        return next((r for r in self.runs if r.file.hash == run_hash), None)

    def run_of(self, method: str, evaluation: int | None = None) -> RunView | None:
        """The first run of a method as an evaluation (counted from 0; any if None) names it."""
        every = self.given.evaluations
        for one in every if evaluation is None else [every[evaluation]]:
            for entry in one.runs:
                if entry.method == method and entry.vote is None:
                    run = self.by_hash(entry.run_hash)
                    if run is not None:
                        return run
        return next((r for r in self.runs if method_key(r.file.name) == method_key(method)), None)

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

    def plain(self, text: str) -> str:
        """A sentence of an evaluation with the methods called as everywhere else here."""
        every = [r for e in self.given.evaluations for r in e.runs if r.vote is None]
        for entry in sorted(every, key=lambda r: -len(r.method)):
            run = self.by_hash(entry.run_hash)
            if run is not None:
                for end in (" ", ":"):
                    text = text.replace(f"{entry.method}{end}", f"{run.title}{end}")
        return text.replace(" = ", "\u00a0=\u00a0")

    def color(self, result: Result) -> int:
        run = self.by_hash(result.run.hash)
        return -1 if run is None else run.color

    def name(self, result: Result) -> str:
        run = self.by_hash(result.run.hash)
        return result.run.name if run is None else run.full

    def study_label(self, study: Study) -> str:
        run = self.by_hash(study.run.hash)
        name = run.label if run else study.run.name
        several = sum(s.run.hash == study.run.hash for s in self.given.studies) > 1
        zones = f", zones {'visible' if study.settings.visible else 'invisible'}" if several else ""
        return f"{name} ({palette.LABEL[study.run.sparse]}{zones})"

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


# Success ----------------------------------------------------------------------------------------------------


def cells(evaluations: Sequence[Evaluation]) -> list[CellView]:
    """Every cell of every evaluation, image goals left out (no state to test)."""
    return [
        CellView(number, cell, evaluation.settings)
        for number, evaluation in enumerate(evaluations)
        for cell in evaluation.cells
        if cell.goals != "image"
    ]


def headline(every: Sequence[CellView]) -> list[CellView]:
    """The cells to show at once: of a sweep over horizons only the one nearest to the paper's 5, R = 1 and R = H."""
    shown = [c for c in every if not c.sweep]
    swept = [c for c in every if c.sweep]
    near = min((c.cell.horizon for c in swept), key=lambda h: abs(h - 5), default=0)
    for one in swept:
        if one.cell.horizon == near and one.place not in {c.place for c in shown}:
            shown.append(one)
    return sorted(shown, key=lambda c: (c.cell.goals != "random", c.evaluation))  # random goals judge (§5)


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
    return f"{100 * value.rate:.1f} [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def short(value: float | None, digits: int = 3) -> str:
    """A number for a table; an en dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    if value and not 1e-3 <= abs(value) < 1e4:
        return f"{value:.1e}"
    return f"{value:.{digits}g}"


def fixed(value: float | None) -> str:
    """Three decimals with a real minus sign."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.3f}"
    return "0.000" if text == "-0.000" else text.replace("-", "−")


def interval(value: Interval) -> str:
    """`0.400 [0.300, 0.500]`, without brackets where the bounds are not known."""
    bounds = "" if value.low is None else f" [{fixed(value.low)}, {fixed(value.high)}]"
    return fixed(value.estimate) + bounds
