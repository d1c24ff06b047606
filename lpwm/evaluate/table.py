"""An evaluation for people to read."""

from __future__ import annotations

from lpwm.evaluate.outcome import MEASURES, Cell, Evaluation


def table(found: Evaluation) -> str:
    """One block per cell: success in % with its 95 % interval, methods first, controls beside them."""
    c = found.config
    when = "after every raw step" if c.test == "step" else "after each executed plan"
    lines = [
        f"{found.world.spec.name}: {c.episodes} episodes, {c.planner_seeds} planner seeds, {c.solver}; success "
        f"tested {when}, 95 % intervals"
    ]
    for cell in found.cells:
        lines += ["", *_cell(found, cell)]
    if found.curves:
        lines.append("")
        lines += [f"{name}: {curve.text()}" for name, curve in found.curves.items()]
    return "\n".join(lines)


def _cell(found: Evaluation, cell: Cell) -> list[str]:
    c = found.config
    start = "warm" if c.warm and cell.receding < cell.horizon else "cold"
    path = f", path discount {c.path_discount:g}" if c.path_discount else ""
    title = f"{cell.goals} goals, horizon {cell.horizon}, executes {cell.receding} ({start}{path})"
    if cell.goals == "image":
        return [title, *_image(cell)]
    heads = [f"{measure} @{budget}" for budget in c.budgets for measure in MEASURES]
    names = [row.name for row in cell.rows]
    wide = max(map(len, names)) + 4
    lines = [title, " " * wide + "".join(f"{h:<22}" for h in heads) + "median steps"]
    for row in cell.rows:
        cells = [row.interval(m, b).text().replace(" %", "") for b in c.budgets for m in MEASURES]
        steps = [s for line in row.records for r in line for s in r.steps_to_success(c.budgets[-1]) if s > 0]
        median = f"{sorted(steps)[len(steps) // 2]}" if steps else "–"
        note = "" if row.control else f"  ({len(row.seeds)} seed{'s' if len(row.seeds) > 1 else ''})"
        lines.append(f"{row.name:<{wide}}" + "".join(f"{x:<22}" for x in cells) + median + note)
    lines += _oracle(cell)
    for name, only in found.groups.get(cell.goals, {}).items():
        lines.append(f"  only {name}: {int(only.sum())} episodes")
        if only.any():
            for row in cell.rows:
                cells = [row.interval(m, b, only).text().replace(" %", "") for b in c.budgets for m in MEASURES]
                lines.append(f"  {row.name:<{wide - 2}}" + "".join(f"{x:<22}" for x in cells))
    return lines + _compared(found, cell)


def _oracle(cell: Cell) -> list[str]:
    """How the ceiling was planned, where that is not how the methods plan."""
    planners = [row.planner.get("options") for row in cell.methods]
    lines = []
    for row in cell.rows:
        options = row.planner.get("options")
        if row.control and options and options not in planners:
            text = ", ".join(f"{k}={v}" for k, v in options.items())
            lines.append(f"  {row.name}: another budget than the methods', {row.planner['solver']} {text}")
    return lines


def _compared(found: Evaluation, cell: Cell) -> list[str]:
    """Methods against one another on the primary measure: terminal success at the largest budget."""
    if len(cell.methods) < 2:
        return []
    budget = max(found.config.budgets)
    names = {row.name for row in cell.methods}
    compared = cell.comparison("terminal", budget)
    lines = [f"  terminal @{budget}:"]
    if "refused" in compared:
        lines.append(f"    {compared['refused']}")
        for pair in compared["checkpoints"]:
            lines.append(
                f"    {pair['a']} − {pair['b']}: {100 * pair['rate']:+.1f} % [{100 * pair['low']:+.1f}, "
                f"{100 * pair['high']:+.1f}], McNemar p = {pair['p']:.3f}: these two checkpoints, not their methods"
            )
        return lines
    for row, text in zip(compared["differences"], compared["text"], strict=True):
        if row["a"] in names and row["b"] in names:
            lines.append(f"    {text}")
    return lines


def _image(cell: Cell) -> list[str]:
    """No state is known to test against: the latent distance to the picture, first and last."""
    lines = []
    for row in cell.rows:
        latent = [r.traces["latent"] for line in row.records for r in line]
        first = sum(float(x[:, 0].mean()) for x in latent) / len(latent)
        last = sum(float(x[:, -1].mean()) for x in latent) / len(latent)
        lines.append(f"  {row.name}: latent distance to the picture {first:.3f} at the start, {last:.3f} at the end")
    return lines
