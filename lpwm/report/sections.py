"""The sections of the page: tables and notes as HTML, places for what the browser draws, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from lpwm.report.found import Found
from lpwm.report.markup import bar, figures_of, legend, section, swatch, table
from lpwm.report.plots import plots
from lpwm.report.reading import arena, probes, raster
from lpwm.report.readings import sections as readings
from lpwm.report.scene import title as world_title
from lpwm.report.tables import cells, headline, percent, short

DISTANCE = (
    "<p>The planner follows the latent distance to its goal, so that distance must keep growing with the true one. "
    "Where the curve is flat, all goals look equally far. "
    "The bands are one standard deviation between pairs of states.</p>"
)
HORIZON = "<p>How far ahead plans may look before the model's errors cost more than the foresight is worth.</p>"


@dataclass(frozen=True)
class Body:
    nav: str
    html: str


def body(found: Found) -> Body:
    """The sections that have data, and one line for each that has none."""
    drawn = plots(found)
    made: list[tuple[str, str, str | None, str]] = [
        ("results", "How well it plans", results(found), "how well it plans: lpwm eval RUN…"),
        ("training", "Training", training(found, drawn), "training curves: lpwm train writes log.jsonl"),
        ("arena", "Supports in the arena", arena(found), "supports in the arena: lpwm interpret RUN…"),
        ("probes", "What the code says", probes(found), "probes: lpwm interpret RUN…"),
        ("episodes", "Episodes", episodes(found), "episodes to replay: lpwm eval RUN… (keeps them beside the runs)"),
        (
            "distance",
            "Latent and state distance",
            figures_of(drawn, "distance", DISTANCE),
            "latent against state distance: lpwm eval RUN… (without --preset open)",
        ),
        (
            "horizon",
            "Success against horizon",
            figures_of(drawn, "horizon", HORIZON),
            "success against horizon: lpwm eval RUN… --preset horizons",
        ),
        ("raster", "Support raster", raster(found), "the support raster: lpwm interpret RUN…"),
        *readings(found),
    ]
    there = [(name, title, html) for name, title, html, _ in made if html]
    nav = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title, _ in there)
    html = trained(found)
    for name, title, content in there:
        html += section(name, title, content)
    missing = [line for _, _, content, line in made if line and not content]
    if missing:
        items = "".join(f"<li>{_command(line)}</li>" for line in missing)
        intro = "<p>These were not measured yet; each line names the command that does.</p>"
        html += section("missing", "Not in this report", f'{intro}<ul class="plain">{items}</ul>')
    nav = f'<li><a href="#trained">What was trained</a></li>{nav}<li><a href="#provenance">Provenance</a></li>'
    return Body(nav, html)


def _command(line: str) -> str:
    what, _, command = line.partition(": ")
    return f"{escape(what.capitalize())}: <code>{escape(command)}</code>"


def lead(found: Found) -> str:
    """The sentence under the title."""
    where = dict.fromkeys(world_title(r["record"]["world"]) for r in found.runs)
    kinds = [sum(r["sparse"] for r in found.runs), sum(not r["sparse"] for r in found.runs)]
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    counted = [(n, kind) for n, kind in zip(kinds, ("sparse", "dense"), strict=True) if n]
    what = " and ".join(f"{words[n] if n < len(words) else n} {kind}" for n, kind in counted)
    models = "world models" if counted[-1][0] > 1 else "world model"
    return escape(f"{what.capitalize()} {models} of {'; '.join(where)}, trained from pixels.")


def trained(found: Found) -> str:
    heads = ["Run", "Code", "Predictor", "Step", "Seed", "Held-out error (copying)", "Active", "Eff. dimension"]
    rows = []
    for r in found.runs:
        error = f"{short(r['error'])} <span class='muted'>({short(r['copy'])})</span>"
        rows.append(
            (
                "",
                [
                    f"{swatch(found.color(r))}{escape(r['full'])}",
                    f"{'sparse' if r['sparse'] else 'dense'}, D = {r['latent']}",
                    f"{escape(r['predictor'])}, k = {r['history']}",
                    f"{r['step']:,}" + (f" of {r['of']:,}" if r["step"] != r["of"] else ""),
                    str(r["seed"]),
                    error,
                    short(r["active"]),
                    short(r["dimension"]),
                ],
            )
        )
    caption = (
        "Held-out error is relative, one block ahead; in brackets what copying the last frame scores. A model "
        "that does not beat copying has learned nothing of the motion."
    )
    return section("trained", "What was trained", table(caption, heads, rows) + warnings(found))


def warnings(found: Found) -> str:
    """Runs that their own log calls dead, and runs that do not beat copying."""
    lines = []
    for r in found.runs:
        for event in r["record"].get("events", []):
            if event.get("message"):
                lines.append(f"{r['label']}, step {event['step']}: {event['message']}")
        if r["error"] is not None and r["copy"] is not None and r["error"] >= r["copy"]:
            lines.append(f"{r['label']} predicts no better than copying the last frame one block ahead.")
    return "".join(f'<p class="note warn">{escape(line)}</p>' for line in dict.fromkeys(lines))


def results(found: Found) -> str | None:
    shown = headline(cells(found.evaluations))
    if not shown:
        return None
    intro = (
        "<p>Every method beside the controls, on the same episodes: doing nothing and random actions say how much "
        "is free, the oracle (the same planner on the true simulator) how much is possible. <em>Terminal</em> counts "
        "episodes that stand at the goal when the budget ends, <em>latched</em> those that touched it on the way. "
        "Success in %, with 95 % intervals.</p>"
    )
    blocks = []
    for cell in shown:
        heads = ["Method"]
        heads += [f"{m} @{b}" for b in reversed(cell["budgets"]) for m in ("Terminal", "Latched")]
        heads.append("Median steps")
        ordered = found.ordered(cell["rows"], cell["evaluation"])
        rows = [("control" if r["control"] else "", _success_row(found, cell, r)) for r in ordered]
        start = "warm start" if cell["warm"] else "each plan from zero"
        start += f", path discount {cell['path_discount']:g}" if cell["path_discount"] else ""
        tested = "" if cell["test"] == "step" else ", success tested after each executed plan"
        caption = (
            f"<b>{escape(cell['goals'].capitalize())} goals</b>, horizon {cell['horizon']}, executes "
            f"{cell['receding']} ({start}); {cell['episodes']} episodes, {escape(cell['solver'].upper())}{tested}"
        )
        sentences = [found.plain(t).replace(" = ", "\u00a0=\u00a0") for t in cell["compared"]]
        text = "".join(f'<p class="note">Terminal @{cell["budgets"][-1]}: {escape(t)}</p>' for t in sentences)
        blocks.append(f'<div class="block">{table(caption, heads, rows)}{text}</div>')
    free = ""
    if any(c["goals"] == "dataset" for c in shown):
        free = (
            '<p class="note">Dataset goals lie a few steps ahead of the start and are nearly free: read them only '
            "against the controls. Random goals tell models apart.</p>"
        )
    return intro + "".join(blocks[:2]) + _folded(blocks[2:]) + free


def _folded(blocks: list[str]) -> str:
    """Beyond two tables the rest is folded, random goals first."""
    if not blocks:
        return ""
    return f"<details><summary>{len(blocks)} more: other goals and planners</summary>{''.join(blocks)}</details>"


def _success_row(found: Found, cell: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    title, color = found.look(row, cell["evaluation"])
    n = len(row["seeds"])
    seeds = "" if row["control"] else f" <span class='muted'>{n} seed{'s' if n > 1 else ''}</span>"
    out = [f"{swatch(color)}{escape(title)}{seeds}"]
    for budget in reversed(cell["budgets"]):
        for measure in ("terminal", "latched"):
            value = row["budgets"][str(budget)][measure]
            out.append(
                f'<span class="num">{percent(value)}</span>{bar(value["rate"], value["low"], value["high"], color)}'
            )
    steps = [
        s
        for line in row["budgets"][str(cell["budgets"][-1])]["steps_to_success"]
        for record in line
        for s in record
        if s > 0
    ]
    out.append(f'<span class="num">{sorted(steps)[len(steps) // 2] if steps else "–"}</span>')
    return out


def training(found: Found, drawn: Sequence[Mapping[str, Any]]) -> str | None:
    intro = "<p>Losses alone mislead, so every run also logs what tells a working code from a dead one.</p>" + legend(
        (found.color(r), r["label"]) for r in found.runs
    )
    return figures_of(drawn, "training", intro)


def episodes(found: Found) -> str | None:
    if not any(not e["control"] for e in found.episodes):
        return None
    return (
        "<p>Planned episodes, as they went, and controls on the same goals. The ring is the goal, the hollow dot the "
        "start; arrows show where a zone pushes. Below, the latent distance to the goal: as seen (line) and as the "
        "plan in force had forecast it (open marks).</p>"
        '<div class="controls"><label>Goals <select id="episode-cell"></select></label>'
        '<label>Episode <select id="episode-number"></select></label></div>'
        '<div class="controls"><button type="button" id="episode-play" aria-pressed="false">Play</button>'
        '<label class="wide">Step <input type="range" id="episode-step" min="0" max="1" value="0" step="1"></label>'
        '<output id="episode-now" for="episode-step"></output></div>'
        '<div class="quad" id="episode-panels"></div>'
    )
