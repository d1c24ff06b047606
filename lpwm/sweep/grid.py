"""A grid: a recipe, axes over its fields, seeds, and evaluations, as a small TOML or JSON file (docs/clusters.md).

A cell is one point of the product with one seed; its hash names it. Everything is checked before anything starts, and
what is wrong is said with the line of the file.
"""

import itertools
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from lpwm.core.config import digest, flat, from_dict, to_dict
from lpwm.core.errors import UserError, nearest
from lpwm.core.files import read_bytes
from lpwm.core.json import MAX_BYTES, parse_json
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


@dataclass(frozen=True)
class Source:
    """The file of a grid, for sentences about it."""

    name: str
    text: str

    def refuse(self, section: str, key: str, sentence: str) -> NoReturn:
        """One sentence that starts with the line it is about."""
        line = line_of(self.text, section, key)
        raise UserError(f"{self.name}, line {line}: {sentence}" if line else f"{self.name}: {sentence}")


@dataclass(frozen=True, eq=False)
class Grid:
    name: str
    recipe: str
    axes: tuple[Axis, ...]
    fixed: Mapping[str, Any]
    seeds: tuple[int, ...]
    evals: Mapping[str, EvalConfig]
    select_seeds: tuple[int, ...]  # on which a study chooses its best cells; the others report them
    measure: Measure
    goals: str  # by which cells are judged; "": random where there are any
    source: Source


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of the grid with its evaluations: all that its result depends on, and its place in the grid."""

    hash: str
    name: str  # the recipe's
    config: RunConfig
    evals: dict[str, EvalConfig]
    where: dict[str, Any]  # axis -> value

    @property
    def setting(self) -> str:
        """All but the seed."""
        at = ", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in self.where.items())
        return f"{self.name} ({at})" if at else self.name

    @property
    def label(self) -> str:
        return f"{self.setting}, seed {self.config.train.seed}"


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
        text = read_bytes(path, MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} cannot be read as text: give a grid in TOML or JSON.") from None
    return parse_grid(text, path.stem, str(path), is_json=path.suffix == ".json")


def parse_grid(text: str, name: str, file: str = "", *, is_json: bool = False) -> Grid:
    source = Source(file or name, text)
    try:
        data = parse_json(text, source.name, of=object) if is_json else tomllib.loads(text)
    except RecursionError:
        raise UserError(f"{source.name}: tables within tables, too many: it is no grid.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source.name}: not valid TOML: {error}.") from None
    if not isinstance(data, dict):
        raise UserError(f"{source.name}: a grid is a table of fields, see docs/clusters.md.")
    for key in data:
        if key not in TOP:
            source.refuse("", key, f"unknown field {key!r} of a grid: {nearest(key, TOP)}.")
    recipe, measure = data.get("recipe"), data.get("measure", "terminal")
    if not recipe or not isinstance(recipe, str):
        source.refuse("", "recipe", 'a grid needs a recipe, for instance recipe = "tiny/{method}".')
    if measure not in get_args(Measure):
        source.refuse("", "measure", f"measure = {measure!r}: {nearest(str(measure), get_args(Measure))}.")
    tables = {section: data.get(section, {}) for section in ("axes", "fixed", "eval")}
    for section, table in tables.items():
        if not isinstance(table, dict):
            source.refuse("", section, f"{section} must be a table of fields.")
    axes = tuple(_axis(source, key, values) for key, values in flat(tables["axes"]).items())
    seeds = _seeds(source, "seeds", data.get("seeds", [0]))
    choosing = _seeds(source, "select_seeds", data.get("select_seeds", []), empty=True)
    fixed, evals, goals = flat(tables["fixed"]), _evals(source, tables["eval"]), data.get("goals", "")
    grid = Grid(name, recipe, axes, fixed, seeds, evals, choosing, measure, goals, source)
    _check(grid)
    return grid


def _seeds(source: Source, key: str, values: Any, empty: bool = False) -> tuple[int, ...]:
    good = isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)
    if not good or (not values and not empty) or len(set(values)) != len(values):
        source.refuse("", key, f"{key} = {values!r}: give a list of different numbers from 0 on.")
    return tuple(values)


def _axis(source: Source, key: str, values: Any) -> Axis:
    def refuse(sentence: str) -> NoReturn:
        source.refuse("axes", key, f"axis {key!r} {sentence}")

    names = tuple(part.strip() for part in key.split(","))
    if not isinstance(values, list):
        refuse(f"= {values!r} must be a list; one value for all belongs in [fixed].")
    if not values:
        refuse("is empty: give at least one value, or leave the axis out.")
    points = [tuple(v) if len(names) > 1 and isinstance(v, list) else (v,) for v in values]
    for i, point in enumerate(points):
        if len(point) != len(names):
            refuse(f"varies {len(names)} fields together: {list(point)} has {len(point)} values.")
        if point in points[:i]:
            refuse(f"has {values[i]!r} twice, which makes two cells with the same hash.")
    return Axis(names, tuple(points))


def _evals(source: Source, table: Mapping[str, Any]) -> dict[str, EvalConfig]:
    """[eval.NAME] tables; a bare [eval] is one called "eval"."""
    if table and not all(isinstance(v, dict) for v in table.values()):
        table = {"eval": table}
    out = {}
    for name, given in table.items():
        section, key = "eval" if name == "eval" else f"eval.{name}", "preset"
        given = dict(given)
        try:
            base = to_dict(preset(str(given.pop("preset", "paper"))))
            for key in given:
                if key not in base:
                    raise UserError(f"unknown field {key!r} of an evaluation: {nearest(key, base)}.")
            key = next(iter(given), "preset")
            out[name] = from_dict(EvalConfig, {**base, **given})
        except UserError as error:
            source.refuse(section, key, str(error))
    return out


def _check(grid: Grid) -> None:
    """What can be said without the recipe."""
    refuse, braces = grid.source.refuse, set(re.findall(r"{([^{}]*)}", grid.recipe))
    places = [(axis.key, name) for axis in grid.axes for name in axis.fields]
    names = [name for _, name in places]
    for key, name in places:
        if names.count(name) > 1:
            refuse("axes", key, f"{name!r} is on two axes: give it once.")
        if name in grid.fixed:
            refuse("fixed", name, f"{name!r} is fixed and also an axis: choose one.")
        if "." not in name and name not in braces:
            why = f"is no field (those have a dot, like model.latent) and {{{name}}} does not stand in the recipe"
            refuse("axes", key, f"axis {name!r} {why}.")
    for name in braces - set(names):
        refuse("", "recipe", f"the recipe names {{{name}}}, but there is no axis {name!r}.")
    if "train.seed" in (*names, *grid.fixed):
        section = "axes" if "train.seed" in names else "fixed"
        refuse(section, "train.seed", "seeds go into seeds = […], not into train.seed.")
    for seed in set(grid.select_seeds) - set(grid.seeds):
        refuse("", "select_seeds", f"seed {seed} chooses but is not among the seeds.")
    if grid.select_seeds and set(grid.select_seeds) == set(grid.seeds):
        refuse("", "select_seeds", "every seed chooses and none is left to report: leave out at least one.")
    wanted = [g for e in grid.evals.values() for g in e.goals]
    if grid.goals and wanted and grid.goals not in wanted:
        refuse("", "goals", f"goals = {grid.goals!r} are not evaluated: {nearest(grid.goals, wanted)}.")


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
            cell = Cell(digest({"config": seeded, "evals": grid.evals}), name, seeded, dict(grid.evals), where)
            if cell.hash in cells:
                twin = cells[cell.hash]
                differ = [a.key for a in grid.axes if any(twin.where[f] != where[f] for f in a.fields)]
                same = f"{twin.label} and {cell.label} are the same run (hash {cell.hash}): remove one."
                grid.source.refuse("axes", differ[0] if differ else "", same)
            cells[cell.hash] = cell
    return list(cells.values())


def _base(grid: Grid, name: str, recipe: Recipe) -> RunConfig:
    try:
        return recipe(name)
    except UserError:
        why = f"it needs the recipe {name!r}, which this lpwm does not have: lpwm recipes lists those it has."
        grid.source.refuse("", "recipe", why)


def _configure(grid: Grid, base: RunConfig, overrides: Mapping[str, Any]) -> RunConfig:
    def refuse(key: str, sentence: str) -> NoReturn:
        axis = next((a.key for a in grid.axes if key in a.fields), key)
        grid.source.refuse(*(("fixed", key) if key in grid.fixed else ("axes", axis)), sentence)

    try:
        return override(base, overrides)
    except UserError as error:
        for key, value in overrides.items():  # alone it may be innocent
            try:
                override(base, {key: value})
            except UserError as alone:
                refuse(key, str(alone))
        refuse(list(overrides)[-1], f"these fields do not go together ({overrides}): {error}")
