"""A grid: a recipe, axes over its fields, seeds, and how every cell is evaluated, as a small TOML or JSON file.

    recipe = "wall/{rung}/{method}"        # braces are filled from axes of that name
    seeds = [0, 1, 2]

    [axes]
    rung = ["lti1", "deep-adaln"]
    method = ["lpwm", "lewm"]
    "model.latent" = [384, 768]            # any field of a run
    "objective.lam, optim.lr" = [[0.5, 1e-4], [0.1, 5e-4]]   # fields that vary together

    [fixed]
    "train.steps" = 1000

    [eval.closed]                          # as many as wanted; fields of an evaluation on top of a preset
    preset = "ladder"

A cell is one point of the product with one seed; its hash names it. Everything is checked before anything starts, and
what is wrong is said with the line of the file.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from lpwm.core.config import digest, from_dict, to_dict
from lpwm.core.errors import UserError, nearest
from lpwm.core.json import parse_json
from lpwm.evaluate.config import EvalConfig, preset
from lpwm.train.run_config import RunConfig, override

# Name -> what it is. Each is grids/NAME.toml in this folder.
GRIDS = {
    "cpu-mini": "tiny Piecewise models, 2 methods × 3 rungs × 2 widths × 2 seeds: minutes on two cores",
    "piecewise-table": "the paper's Piecewise table: 2×2 and 3×3, LpWM with and without TJ, LeWM",
    "wall-ladder": "the paper's Wall figure: LTI(1) and Deep-AdaLN, LeWM and LpWM at three μ, five widths",
    "wall-transfer": "learning rates across widths on Wall, under μP and under the plain parametrization",
    "pusht-ladder": "the paper's PushT ladder: six rungs, five widths, λ × η",
    "pusht-vicreg": "VICReg on PushT: three rungs, five widths, λ × η",
    "cube-temporal-jaccard": "OGBench-Cube at five weights of temporal Jaccard",
}
TOP = ("recipe", "seeds", "select_seeds", "measure", "goals", "axes", "fixed", "eval")
Measure = Literal["terminal", "latched"]
Recipe = Callable[[str], RunConfig]


@dataclass(frozen=True)
class Axis:
    fields: tuple[str, ...]  # several vary together
    values: tuple[tuple[Any, ...], ...]  # one tuple per point, as long as `fields`

    @property
    def key(self) -> str:
        return ", ".join(self.fields)


@dataclass(frozen=True, eq=False)
class Grid:
    name: str
    recipe: str
    axes: tuple[Axis, ...]
    fixed: Mapping[str, Any]
    seeds: tuple[int, ...]
    evals: Mapping[str, EvalConfig]
    select_seeds: tuple[int, ...] = ()  # on which the best cells are chosen; the others report them
    measure: Measure = "terminal"
    goals: str = ""  # by which cells are judged; "": random where there are any
    source: str = ""  # the file's name, for sentences
    text: str = ""  # its contents, for lines

    def refuse(self, section: str, key: str, sentence: str) -> NoReturn:
        """One sentence that starts with the line it is about."""
        line = line_of(self.text, section, key)
        where = f"{self.source}, line {line}" if line else self.source or self.name
        raise UserError(f"{where}: {sentence}")


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of the grid with its evaluations: all that its result depends on, and its place in the grid."""

    hash: str
    name: str  # the recipe's
    config: RunConfig
    evals: dict[str, EvalConfig]
    where: dict[str, Any]  # axis -> value

    @property
    def label(self) -> str:
        at = ", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in self.where.items())
        return f"{self.name} ({at}{', ' if at else ''}seed {self.config.train.seed})"


def cell_hash(config: RunConfig, evals: Mapping[str, EvalConfig]) -> str:
    return digest({"config": config, "evals": evals})


# Reading -----------------------------------------------------------------------------------------------------


def read_grid(name: str | Path) -> Grid:
    """A grid by its name in GRIDS, or from a .toml or .json file."""
    path = Path(name)
    if str(name) in GRIDS:
        text = (resources.files("lpwm.sweep") / "grids" / f"{name}.toml").read_text()
        return parse_grid(text, str(name), f"grid {name}")
    if path.suffix not in (".toml", ".json"):
        raise UserError(f"unknown grid {str(name)!r}: {nearest(str(name), GRIDS)}; or give a .toml or .json file.")
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise UserError(f"there is no grid file {path}.") from None
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{path} cannot be read as text: give a grid in TOML or JSON.") from None
    return parse_grid(text, path.stem, str(path), is_json=path.suffix == ".json")


def parse_grid(text: str, name: str, source: str = "", *, is_json: bool = False) -> Grid:
    try:
        data = parse_json(text, source or name, of=object) if is_json else tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source or name}: not valid TOML: {error}.") from None
    grid = Grid(name, "", (), {}, (), {}, source=source or name, text=text)
    if not isinstance(data, dict):
        raise UserError(f"{grid.source}: a grid is a table of fields, see docs/clusters.md.")
    for key in data:
        if key not in TOP:
            grid.refuse("", key, f"unknown field {key!r} of a grid: {nearest(key, TOP)}.")
    recipe = data.get("recipe", "")
    if not recipe or not isinstance(recipe, str):
        grid.refuse("", "recipe", 'a grid needs a recipe, for instance recipe = "tiny/{method}".')
    for section in ("axes", "fixed", "eval"):
        if not isinstance(data.get(section, {}), dict):
            grid.refuse("", section, f"{section} must be a table of fields.")
    measure, goals = data.get("measure", "terminal"), data.get("goals", "")
    if measure not in get_args(Measure):
        grid.refuse("", "measure", f"measure = {measure!r}: {nearest(str(measure), get_args(Measure))}.")
    grid = replace(grid, recipe=recipe, measure=measure, goals=goals)
    grid = replace(
        grid,
        seeds=_seeds(grid, "seeds", data.get("seeds", [0])),
        select_seeds=_seeds(grid, "select_seeds", data.get("select_seeds", []), empty=True),
        axes=tuple(_axis(grid, key, values) for key, values in _flat(data.get("axes", {}))),
        fixed=dict(_flat(data.get("fixed", {}))),
        evals=_evals(grid, data.get("eval", {})),
    )
    _check(grid)
    return grid


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """TOML reads a bare model.latent as nested tables; fields are dotted names here."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _seeds(grid: Grid, key: str, values: Any, empty: bool = False) -> tuple[int, ...]:
    good = isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)
    if not good or (not values and not empty) or len(set(values)) != len(values):
        grid.refuse("", key, f"{key} = {values!r}: give a list of different numbers from 0 on.")
    return tuple(values)


def _axis(grid: Grid, key: str, values: Any) -> Axis:
    names = tuple(part.strip() for part in key.split(","))
    if not isinstance(values, list):
        grid.refuse("axes", key, f"axis {key!r} = {values!r} must be a list; one value for all belongs in [fixed].")
    if not values:
        grid.refuse("axes", key, f"axis {key!r} is empty: give at least one value, or leave the axis out.")
    points = [tuple(v) if len(names) > 1 and isinstance(v, list) else (v,) for v in values]
    for point in points:
        if len(point) != len(names):
            grid.refuse(
                "axes", key, f"axis {key!r} varies {len(names)} fields together: {list(point)} has {len(point)} values."
            )
    seen: list[Any] = []
    for point in points:
        if point in seen:
            shown = point[0] if len(point) == 1 else list(point)
            grid.refuse("axes", key, f"axis {key!r} has {shown!r} twice, which makes two cells with the same hash.")
        seen.append(point)
    return Axis(names, tuple(points))


def _evals(grid: Grid, table: Mapping[str, Any]) -> dict[str, EvalConfig]:
    """[eval.NAME] tables; a bare [eval] is one called "eval"."""
    if table and not all(isinstance(v, dict) for v in table.values()):
        table = {"eval": table}
    out = {}
    for name, given in table.items():
        section = f"eval.{name}" if name != "eval" else "eval"
        given = dict(given)
        named = given.pop("preset", "paper")
        try:
            base = to_dict(preset(str(named)))
        except UserError as error:
            grid.refuse(section, "preset", str(error))
        for key in given:
            if key not in base:
                names = [f.name for f in fields(EvalConfig)]
                grid.refuse(section, key, f"unknown field {key!r} of an evaluation: {nearest(key, names)}.")
        try:
            out[name] = from_dict(EvalConfig, {**base, **given})
        except UserError as error:
            grid.refuse(section, next(iter(given), "preset"), str(error))
    return out


def _check(grid: Grid) -> None:
    """What can be said without the recipe."""
    braces = set(re.findall(r"{([^{}]*)}", grid.recipe))
    names = [f for axis in grid.axes for f in axis.fields]
    for axis in grid.axes:
        for name in axis.fields:
            if names.count(name) > 1:
                grid.refuse("axes", axis.key, f"{name!r} is on two axes: give it once.")
            if name in grid.fixed:
                grid.refuse("fixed", name, f"{name!r} is fixed and also an axis: choose one.")
            if "." not in name and name not in braces:
                grid.refuse(
                    "axes",
                    axis.key,
                    f"axis {name!r} is no field (those have a dot, like model.latent) and "
                    f"{{{name}}} does not stand in the recipe.",
                )
    for name in braces - set(names):
        grid.refuse("", "recipe", f"the recipe names {{{name}}}, but there is no axis {name!r}.")
    for section, key in (*(("axes", n) for n in names), *(("fixed", n) for n in grid.fixed)):
        if key == "train.seed":
            grid.refuse(section, key, "seeds go into seeds = […], not into train.seed.")
    for seed in grid.select_seeds:
        if seed not in grid.seeds:
            grid.refuse("", "select_seeds", f"seed {seed} chooses but is not among the seeds.")
    if grid.select_seeds and set(grid.select_seeds) == set(grid.seeds):
        grid.refuse("", "select_seeds", "every seed chooses and none is left to report: leave out at least one.")
    wanted = {g for e in grid.evals.values() for g in e.goals}
    if grid.goals and wanted and grid.goals not in wanted:
        grid.refuse("", "goals", f"goals = {grid.goals!r} are not evaluated: {nearest(grid.goals, wanted)}.")


def line_of(text: str, section: str, key: str) -> int:
    """The line (from 1) where `key` of `section` is set; of the section where the key has none; 0 if neither."""
    section_line, current = 0, ""
    depth_key = key.rpartition(".")[2]
    for number, line in enumerate(text.splitlines(), start=1):
        head = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+\s*(#.*)?$", line) or re.match(r'\s*"(axes|fixed|eval)"\s*:', line)
        if head:
            current = head[1].replace('"', "")
            if current == section or (current.startswith("eval") and section.startswith("eval")):
                section_line = number
        name = re.search(r'(?:^|[{,])\s*"?([^"={}\[\]:]+?)"?\s*[=:]', line)
        if name is None:
            continue
        same = current == section or (section and current.startswith(f"{section}.")) or (not section and not head)
        if same and name[1].strip() in (key, depth_key):
            return number
        if same and f'"{key}"' in line:  # JSON on one line
            return number
    return section_line


# Expanding ---------------------------------------------------------------------------------------------------


def expand(grid: Grid, recipe: Recipe) -> list[Cell]:
    """Every cell, in the order of the axes, seeds last. `recipe` finds a run by its name."""
    cells: dict[str, Cell] = {}
    for point in itertools.product(*(axis.values for axis in grid.axes)):
        where = {f: v for axis, at in zip(grid.axes, point, strict=True) for f, v in zip(axis.fields, at, strict=True)}
        name = re.sub(r"{([^{}]*)}", lambda m, at=where: str(at[m[1]]), grid.recipe)  # type: ignore[misc]
        base = _base(grid, name, recipe)
        overrides = {**grid.fixed, **{k: v for k, v in where.items() if "." in k}}
        config = _configure(grid, base, overrides)
        for seed in grid.seeds:
            seeded = replace(config, train=replace(config.train, seed=seed))
            cell = Cell(cell_hash(seeded, grid.evals), name, seeded, dict(grid.evals), where)
            if cell.hash in cells:
                _refuse_twins(grid, cells[cell.hash], cell)
            cells[cell.hash] = cell
    return list(cells.values())


def _base(grid: Grid, name: str, recipe: Recipe) -> RunConfig:
    try:
        return recipe(name)
    except UserError:
        grid.refuse(
            "",
            "recipe",
            f"it needs the recipe {name!r}, which this lpwm does not have: lpwm recipes lists those it has.",
        )


def _configure(grid: Grid, base: RunConfig, overrides: Mapping[str, Any]) -> RunConfig:
    try:
        return override(base, overrides)
    except UserError as error:
        for key, value in overrides.items():  # alone it may be innocent
            try:
                override(base, {key: value})
            except UserError as alone:
                grid.refuse(*_place(grid, key), f"{alone}")
        *_, last = overrides
        grid.refuse(*_place(grid, last), f"these fields do not go together ({overrides}): {error}")


def _place(grid: Grid, key: str) -> tuple[str, str]:
    if key in grid.fixed:
        return "fixed", key
    return "axes", next((a.key for a in grid.axes if key in a.fields), key)


def _refuse_twins(grid: Grid, one: Cell, two: Cell) -> NoReturn:
    differ = [a.key for a in grid.axes if any(one.where[f] != two.where[f] for f in a.fields)]
    key = differ[0] if differ else ""
    grid.refuse("axes", key, f"{one.label} and {two.label} are the same run (hash {one.hash}): remove one.")
