"""An evaluation for people to read, 80 columns wide."""

import io
import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lpwm.evaluate.results import MEASURES, Cell, Curve, Evaluation, Rate, Row

WIDTH = 80
TITLES = {"latched": "reached", "terminal": "at the end"}


def table(evaluation: Evaluation) -> str:
    """One block per cell and budget: success in % with its 95 % interval, methods first, then controls."""
    c, name = evaluation.settings, evaluation.world.name
    when = "after every raw step" if c.test == "step" else "after each executed plan"
    about = (
        f"{name}: {c.episodes} episodes, planner seeds: {c.planner_seeds}, {c.solver}; success in % with 95 % intervals"
        f", tested {when}; reached: at any test up to the budget, at the end: at the last; steps: median to get there"
    )
    parts = [_wrapped(about), *(_cell(evaluation, cell) for cell in evaluation.cells)]
    if evaluation.curves:
        parts.append(_curves(evaluation.curves))
    return "\n\n".join(parts)


def _curves(curves: Mapping[str, Curve]) -> str:
    """One row per run. All of them are measured on the same states."""
    _, *ends, _ = next(iter(curves.values())).edges
    heads = [*(f"<{end:.3g}" for end in ends), f"{ends[-1]:.3g}+", "rank"]
    rows = [[name, *(f"{v:.2f}".replace("nan", "–") for v in (*c.relative, c.spearman))] for name, c in curves.items()]
    about = f"latent distance by the distance of states ({heads[-2]} is 1), and the rank correlation of both"
    same = [_wrapped(f"{name}: all frames have the same code") for name, c in curves.items() if math.isnan(c.far)]
    return "\n".join([columns(["", *heads], rows, title=about, widths=[None, *(max(5, len(h)) for h in heads)]), *same])


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def _cell(evaluation: Evaluation, cell: Cell) -> str:
    c = evaluation.settings
    start = "warm" if c.warm and cell.receding < cell.horizon else "cold"
    path = f", path discount {c.path_discount:g}" if c.path_discount else ""
    path += ", arriving at the end" if c.arrive else ""
    lines = [f"{cell.goals} goals, horizon {cell.horizon}, executes {cell.receding} ({start}{path})"]
    for budget in cell.budgets:
        rows = {row.name: {m: row.at(budget).rate(m) for m in MEASURES} for row in cell.rows}
        lines.append(_rates(f"{budget} steps", rows, {row.name: _more(row, budget) for row in cell.rows}))
    lines += _oracle(cell)
    for name, group in cell.groups.items():
        lines.append(f"  only {name}: {group.episodes} episodes")
        for budget in cell.budgets if group.rates else ():
            lines.append(_rates(f"{budget} steps", {row: by[str(budget)] for row, by in group.rates.items()}))
    return "\n".join(lines + _compared(cell))


def _rates(
    title: str, rows: Mapping[str, Mapping[str, Rate]], more: Mapping[str, tuple[str, str]] | None = None
) -> str:
    heads = ["seeds", *TITLES.values(), "steps"] if more else [*TITLES.values()]
    cells = []
    for name, rates in rows.items():
        values = [rates[m].interval.text().replace(" %", "") for m in MEASURES]
        cells.append([name, more[name][0], *values, more[name][1]] if more else [name, *values])
    widths = [19 if head in TITLES.values() else 5 for head in heads]  # 100.0 [92.9, 100.0]
    return columns([title, *heads], cells, widths=[None, *widths])


def columns(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int = WIDTH,
    title: str = "",
    widths: Sequence[int | None] = (),
) -> str:
    """Rows under heads as text, no line longer than `width`; `widths` of the columns, where they are fixed."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for i, head in enumerate(heads):
        if widths:
            made.add_column(head, overflow="fold", width=widths[i])
        else:
            made.add_column(head, no_wrap=i == 0)
    for row in rows:
        made.add_row(*map(escape, row))  # what is missing at the end stays empty
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(made)
    lines = [textwrap.fill(line, width) for line in title.splitlines()]
    return "\n".join(lines + [line.rstrip() for line in capture.get().splitlines()])


def _more(row: Row, budget: int) -> tuple[str, str]:
    """How many training seeds, and the median of the raw steps to the first success, where there was one."""
    steps = [s for line in row.at(budget).steps_to_success for run in line for s in run if s > 0]
    return "" if row.control else str(len(row.seeds)), str(statistics.median_high(steps)) if steps else "–"


def _oracle(cell: Cell) -> list[str]:
    """How the oracle planned, where that is not how the methods plan."""
    planners = [row.planner.get("options") for row in cell.methods]
    lines = []
    for row in cell.rows:
        options = row.planner.get("options")
        if row.control and options and options not in planners:
            text = f"{row.planner.get('solver')} {', '.join(f'{k}={v}' for k, v in options.items())}"
            lines.append(_wrapped(f"{row.name}: another budget than the methods', {text}", "  "))
    return lines


def _compared(cell: Cell) -> list[str]:
    """Methods against one another on the primary measure: at the goal at the end of the largest budget."""
    names = {row.name for row in cell.methods}
    if len(names) < 2:
        return []
    compared = cell.compared("terminal", cell.budgets[-1])
    lines = [compared.refused] if compared.refused else []
    pairs = zip(compared.differences, compared.text, strict=True)
    lines += [text for row, text in pairs if {row.a, row.b} <= names]
    return [f"  at the end, after {cell.budgets[-1]} steps:", *(_wrapped(line, "    ") for line in lines)]
