"""What came out, in sentences computed from the results."""

from dataclasses import replace

from lpwm.evaluate.results import Row
from lpwm.interpret.results import WorldInfo
from lpwm.report import palette
from lpwm.report.gather import CellView
from lpwm.report.view import Report, RunView, short
from lpwm.stats import Difference

WORDS = dict(enumerate(("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")))
WORLDS = {
    "two_room": "TwoRoom",
    "wall": "Wall",
    "pusht": "PushT",
    "cube": "Cube",
    "recordings": "recordings without a world",
}
FREE = {"do nothing": "doing nothing", "random actions": "random actions"}  # controls that say how much is free


def opening(report: Report) -> str:
    """The sentence that a page begins with: success, or errors on recordings, or nothing yet."""
    if report.headline:
        return _success(report, report.headline[0])
    for what, values in (("held-out recordings", _recorded(report)), ("held-out frames", _logged(report))):
        if values:
            each = ", ".join(f"{name} {short(share, 2)}" for name, share in values)
            return f"Error on {what} as a share of copying the last frame's: {each}. Below 1, motion was learned."
    return "Nothing was measured yet."


def _recorded(report: Report) -> list[tuple[str, float]]:
    """At the greatest depth."""
    kept = [(report.by_hash(r.run.hash), r) for r in report.given.recorded if r.copy[-1] > 0]
    return [(called(report, run, "label"), r.depth[-1] / r.copy[-1]) for run, r in kept if run is not None]


def _logged(report: Report) -> list[tuple[str, float]]:
    """One block ahead."""
    kept = [(run, run.file.error, run.file.copy_error) for run in report.runs]
    return [(called(report, run, "label"), error / copy) for run, error, copy in kept if error is not None and copy]


def called(report: Report, run: RunView, of: str = "title") -> str:
    """`sparse` or `dense` where the page has one such method (title) or run (label); that title or label else."""
    several = len({getattr(r, of) for r in report.runs if r.file.sparse == run.file.sparse}) > 1
    return str(getattr(run, of)) if several else palette.LABEL[run.file.sparse]


def _success(report: Report, view: CellView) -> str:
    cell, episodes = view.cell, view.settings.episodes
    budget = cell.budgets[-1]

    def count(row: Row) -> str:
        rate = row.at(budget).latched.rate
        return f"{rate * episodes:.0f}" if len(row.seeds) * len(row.planner_seeds) == 1 else f"{100 * rate:.0f} %"

    methods = [row for row in report.ordered(cell.rows, view.evaluation) if not row.control]
    controls = [row for name in FREE for row in cell.rows if row.name == name][:1]
    if not methods:
        return "Only controls were run."
    names = [name_of(report, row, view.evaluation) for row in methods]
    told = [f"{name} {count(row)}" for name, row in zip(names[1:], methods[1:], strict=True)]
    told += [f"{FREE[row.name]} {count(row)}" for row in controls]
    goals = f"{episodes} {cell.goals} goals within {budget} steps"
    first = f"{names[0].capitalize()} reached {count(methods[0])} of {goals}"
    return f"{', '.join([first, *told])}{_verdict(report, view, methods)}."


def name_of(report: Report, row: Row, evaluation: int | None = None) -> str:
    run = report.run_of(row.name, evaluation)
    return row.name if run is None else called(report, run)


def _verdict(report: Report, view: CellView, methods: list[Row]) -> str:
    if len(methods) < 2:
        return ""
    if min(len(row.seeds) for row in methods) < 2:
        return "; one seed: not a difference" if len(methods) == 2 else "; one seed: not differences"
    names = {row.name: name_of(report, row, view.evaluation) for row in methods}
    settled = [d for d in differences(view, "latched") if d.low > 0 or d.high < 0]
    if not settled:
        return "; the difference is not settled" if len(methods) == 2 else "; no difference is settled"
    d = settled[0]
    ahead = names[d.a if d.difference > 0 else d.b]
    turned = replace(d, difference=-d.difference, low=-d.high, high=-d.low)
    return f"; {ahead} is ahead by {points(d if d.difference > 0 else turned)}"


def points(d: Difference) -> str:
    """`12.0 points [3.1, 20.9]`: percentage points, never beyond 100."""
    e, low, high = (round(100 * min(max(v, -1.0), 1.0), 1) + 0.0 for v in (d.difference, d.low, d.high))
    return f"{e:.1f} points [{low:.1f}, {high:.1f}]".replace("-", "−")


def differences(view: CellView, measure: str = "terminal") -> list[Difference]:
    """Methods against one another at the largest budget; controls left out."""
    names = {row.name for row in view.cell.methods}
    compared = view.cell.compared(measure, view.cell.budgets[-1])
    return [d for d in compared.differences if {d.a, d.b} <= names] if len(names) > 1 else []


def sentences(report: Report, view: CellView) -> list[str]:
    """Every difference with what it rests on; or why there is none to tell."""
    compared = view.cell.compared("terminal", view.cell.budgets[-1])
    if compared.refused:
        return [compared.refused] if len(view.cell.methods) > 1 else []
    looks = {row.name: report.look(row, view.evaluation)[0] for row in view.cell.rows}
    return [
        f"{looks[d.a]} − {looks[d.b]}: {points(d)}, p = {d.p_holm:.3f}, {d.seeds} seed{'s' * (d.seeds != 1)} × "
        f"{d.episodes} episodes; detectable with these: {_detectable(d)}; {d.verdict}."
        for d in differences(view)
    ]


def _detectable(d: Difference) -> str:
    return f"{100 * d.smallest_detectable:.0f} points" if d.smallest_detectable < 1 else "none"


def lead(report: Report) -> str:
    """What the runs are."""
    where = dict.fromkeys(world_title(report.world(r.file)) for r in report.runs)
    counts = [(sum(r.file.sparse == sparse for r in report.runs), name) for sparse, name in palette.LABEL.items()]
    what = " and ".join(f"{WORDS.get(n, n)} {kind}" for n, kind in counts if n)
    models = "world model" if [n for n, _ in counts if n][-1] == 1 else "world models"
    return f"{what.capitalize()} {models} of {'; '.join(where)}, trained from pixels."


def world_title(world: WorldInfo) -> str:
    """`Piecewise 2×2, zones invisible`; other worlds by their names."""
    if world.name == "piecewise":
        g, visible = world.options.get("g", 2), world.options.get("visible")
        return f"Piecewise {g}×{g}, zones {'visible' if visible else 'invisible'}"
    return WORLDS.get(world.name, world.name)
