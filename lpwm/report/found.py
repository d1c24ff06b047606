"""What a report is made of, as the page and the figures ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lpwm.report import palette
from lpwm.report.tables import describe, family, label, method_key


@dataclass(frozen=True)
class Found:
    """`runs` are `tables.describe`d, with `title` (of the method), `label`, `full` name and the whole `record`."""

    runs: list[dict[str, Any]]
    evaluations: list[Mapping[str, Any]]
    studies: list[Mapping[str, Any]]
    episodes: list[Mapping[str, Any]]
    readings: list[Mapping[str, Any]] = field(default_factory=list)  # `readings.pick`ed

    def by_hash(self, run_hash: str) -> dict[str, Any] | None:
        return next((r for r in self.runs if r["hash"] == run_hash), None)

    def run_of(self, method: str, evaluation: int | None = None) -> dict[str, Any] | None:
        """The first run of a method as an evaluation (counted from 0; any if None) names it."""
        asked = self.evaluations if evaluation is None else [self.evaluations[evaluation]]
        for one in asked:
            for entry in one["runs"]:
                if entry["method"] == method and entry.get("vote") is None:
                    run = self.by_hash(entry["run_hash"])
                    if run is not None:
                        return run
        return next((r for r in self.runs if method_key(r["name"]) == method_key(method)), None)

    def color(self, run: Mapping[str, Any] | None) -> int:
        """Index into the palette: runs that differ in their seed alone share one; gray for no run of these."""
        keys = list(dict.fromkeys(r["key"] for r in self.runs))
        return keys.index(run["key"]) % len(palette.LIGHT) if run is not None else -1

    def ordered(self, rows: Sequence[Mapping[str, Any]], evaluation: int | None = None) -> list[Mapping[str, Any]]:
        """Rows of methods in the order of their runs, then what is no run of these, controls last."""

        def rank(row: Mapping[str, Any]) -> tuple[bool, int]:
            run = None if row["control"] else self.run_of(row["name"], evaluation)
            return row["control"], self.runs.index(run) if run is not None else len(self.runs)

        return sorted(rows, key=rank)

    def look(self, row: Mapping[str, Any], evaluation: int | None = None) -> tuple[str, int]:
        """What a row of an evaluation (or a group of episodes) is called here, and its color."""
        run = None if row["control"] else self.run_of(row["name"], evaluation)
        return (str(run["title"]) if run is not None else str(row["name"])), self.color(run)

    def plain(self, text: str) -> str:
        """A sentence of an evaluation with the methods called as everywhere else here."""
        for entry in sorted((r for e in self.evaluations for r in e["runs"]), key=lambda r: -len(r["method"])):
            run = self.by_hash(entry["run_hash"])
            if run is not None and entry.get("vote") is None:
                text = text.replace(f"{entry['method']} ", f"{run['title']} ").replace(
                    f"{entry['method']}:", f"{run['title']}:"
                )
        return text


def found_of(
    runs: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]],
    studies: Sequence[Mapping[str, Any]],
    episodes: Sequence[Mapping[str, Any]],
    readings: Sequence[Mapping[str, Any]] = (),
) -> Found:
    """Recipes of one family (`piecewise-2x2/…`) are called by their last word."""
    described = []
    for run in runs:
        shared = len({family(r["name"]) for r in runs}) == 1
        same = [r for r in runs if r["name"] == run["name"]]
        one = describe(run)
        name = run["name"].removeprefix(family(run["name"])) if shared else run["name"]
        alike = len({describe(r)["key"] for r in same}) == 1
        title = name if alike else f"{name} {one['key'][-4:]}"
        short = label(title, run, runs)
        whole = family(run["name"]) + short if shared else short
        described.append({**one, "title": title, "label": short, "full": whole, "record": run})
    return Found(described, list(evaluations), list(studies), list(episodes), list(readings))


def study_label(found: Found, study: Mapping[str, Any]) -> str:
    run = found.by_hash(study["run"]["hash"])
    name = run["label"] if run else study["run"]["name"]
    shown = [s["settings"]["visible"] for s in found.studies if s["run"]["hash"] == study["run"]["hash"]]
    zones = f", zones {'visible' if study['settings']['visible'] else 'invisible'}" if len(shown) > 1 else ""
    return f"{name} ({'sparse' if study['run']['sparse'] else 'dense'}{zones})"
