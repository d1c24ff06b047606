"""An evaluation for people to read, 80 columns wide."""

from __future__ import annotations

import io
import statistics
import textwrap
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from lpwm.evaluate.results import MEASURES, Cell, Evaluation, Rate, Row

WIDTH = 80


def table(evaluation: Evaluation) -> str:
    """One block per cell and budget: success in % with its 95 % interval, methods first, then controls."""
    c = evaluation.settings
    when = "after every raw step" if c.test == "step" else "after each executed plan"
    parts = [
        _wrapped(
            f"{evaluation.world.name}: {c.episodes} episodes, {c.planner_seeds} planner seeds, {c.solver}; success in "
            f"% with 95 % intervals, tested {when}; latched: at any test up to the budget, terminal: at the last; "
            "steps: median to the first success"
        )
    ]
    parts += [_cell(evaluation, cell) for cell in evaluation.cells]
    if evaluation.curves:
        parts.append("\n".join(_wrapped(f"{name}: {curve.text()}") for name, curve in evaluation.curves.items()))
    return "\n\n".join(parts)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def _cell(evaluation: Evaluation, cell: Cell) -> str:
    c = evaluation.settings
    start = "warm" if c.warm and cell.receding < cell.horizon else "cold"
    path = f", path discount {c.path_discount:g}" if c.path_discount else ""
    lines = [f"{cell.goals} goals, horizon {cell.horizon}, executes {cell.receding} ({start}{path})"]
    if cell.goals == "image":
        return "\n".join([*lines, *_image(cell)])
    for budget in cell.budgets:
        rows = {row.name: {m: row.at(budget).rate(m) for m in MEASURES} for row in cell.rows}
        lines.append(
            _rates(f"{budget} steps", rows, {row.name: (_seeds(row), _median(row, budget)) for row in cell.rows})
        )
    lines += _oracle(cell)
    for name, group in cell.groups.items():
        lines.append(f"  only {name}: {group.episodes} episodes")
        for budget in cell.budgets if group.rates else ():
            lines.append(_rates(f"{budget} steps", {row: by[str(budget)] for row, by in group.rates.items()}))
    return "\n".join(lines + _compared(cell))


def _rates(
    title: str, rows: Mapping[str, Mapping[str, Rate]], more: Mapping[str, tuple[str, str]] | None = None
) -> str:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    grid.add_column(title, overflow="fold")
    for head in ("seeds", *MEASURES, "steps") if more else MEASURES:
        grid.add_column(head, width=19 if head in MEASURES else 5)  # 100.0 [92.9, 100.0]
    for name, rates in rows.items():
        cells = [rates[m].interval.text().replace(" %", "") for m in MEASURES]
        seeds, median = (more or {}).get(name, ("", ""))
        grid.add_row(name, *((seeds, *cells, median) if more else cells))
    out = io.StringIO()
    Console(file=out, width=WIDTH, highlight=False, color_system=None).print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def _seeds(row: Row) -> str:
    return "" if row.control else str(len(row.seeds))


def _median(row: Row, budget: int) -> str:
    """Of the raw steps to the first success, where there was one."""
    steps = [s for line in row.at(budget).steps_to_success for run in line for s in run if s > 0]
    return str(statistics.median_high(steps)) if steps else "–"


def _oracle(cell: Cell) -> list[str]:
    """How the oracle planned, where that is not how the methods plan."""
    planners = [row.planner.get("options") for row in cell.methods]
    lines = []
    for row in cell.rows:
        options = row.planner.get("options")
        if row.control and options and options not in planners:
            text = ", ".join(f"{k}={v}" for k, v in options.items())
            lines.append(
                _wrapped(f"{row.name}: another budget than the methods', {row.planner.get('solver')} {text}", "  ")
            )
    return lines


def _compared(cell: Cell) -> list[str]:
    """Methods against one another on the primary measure: terminal success at the largest budget."""
    names = {row.name for row in cell.methods}
    if len(names) < 2:
        return []
    budget = cell.budgets[-1]
    compared = cell.compared("terminal", budget)
    lines = [compared.refused] if compared.refused else []
    for pair in compared.checkpoints:
        if pair.a.rpartition(", seed ")[0] == pair.b.rpartition(", seed ")[0]:
            continue
        lines.append(
            f"{pair.a} − {pair.b}: {100 * pair.rate:+.1f} % [{100 * pair.low:+.1f}, {100 * pair.high:+.1f}], McNemar "
            f"p = {pair.p:.3f}: these two checkpoints, not their methods"
        )
    for row, text in zip(compared.differences, compared.text, strict=True):
        if {row.a, row.b} <= names:
            lines.append(text)
    return [f"  terminal after {budget} steps:", *(_wrapped(line, "    ") for line in lines)]


def _image(cell: Cell) -> list[str]:
    """No state is known to test against: the latent distance to the picture, first and last."""
    lines = []
    for row in cell.rows:
        latent = [run for line in row.mean_latent_distance["latent"] for run in line]
        first, last = (statistics.fmean(x[at] for x in latent) for at in (0, -1))
        text = f"{row.name}: latent distance to the picture {first:.3f} at the start, {last:.3f} at the end"
        lines.append(_wrapped(text, "  "))
    return lines
