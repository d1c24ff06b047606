"""What a report is made of, as the page and the figures ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpwm.report import palette
from lpwm.report.tables import describe, label, method_key


@dataclass(frozen=True)
class Found:
    """What a report is made of; `runs` are `tables.describe`d, with `label` and the whole `record`."""

    runs: list[dict[str, Any]]
    evaluations: list[Mapping[str, Any]]
    studies: list[Mapping[str, Any]]
    episodes: list[Mapping[str, Any]]

    def colour(self, key: str) -> int:
        """Index into the palette; grey for what is no method of these runs."""
        return palette.colours(self.runs).get(key, -1)

    def colour_of(self, name: str) -> int:
        """The same of a method as an evaluation names it."""
        return self.colour(method_key(name))

    def rank(self, name: str) -> int:
        """Methods in the order of their runs, others behind."""
        keys = [r["key"] for r in self.runs]
        return keys.index(method_key(name)) if method_key(name) in keys else len(keys)

    def name(self, name: str) -> str:
        """A method as its runs call it: folders cannot hold the slash of a recipe."""
        return next((str(r["name"]) for r in self.runs if r["key"] == method_key(name)), name)

    def by_hash(self, run_hash: str) -> dict[str, Any] | None:
        return next((r for r in self.runs if r["hash"] == run_hash), None)


def found_of(
    runs: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]],
    studies: Sequence[Mapping[str, Any]],
    episodes: Sequence[Mapping[str, Any]],
) -> Found:
    described = [{**describe(r), "label": label(r, runs), "record": r} for r in runs]
    return Found(described, list(evaluations), list(studies), list(episodes))


def study_label(found: Found, study: Mapping[str, Any]) -> str:
    run = found.by_hash(study["run"]["hash"])
    name = run["label"] if run else study["run"]["name"]
    shown = [s["settings"]["visible"] for s in found.studies if s["run"]["hash"] == study["run"]["hash"]]
    zones = f", zones {'visible' if study['settings']['visible'] else 'invisible'}" if len(shown) > 1 else ""
    return f"{name}{zones} ({'sparse' if study['run']['sparse'] else 'dense'})"
