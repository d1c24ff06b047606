"""Arguments from the command line: one sentence for what is wrong, and short help with the defaults in force."""

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from lpwm.core.errors import UserError

T = TypeVar("T")


def parse_args(cls: type[T], argv: list[str], prog: str, default: T | None = None) -> T:
    """The dataclass from its options. What tyro prints in a box becomes a UserError of one sentence."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            defaults: Any = {} if default is None else {"default": default}
            args: T = tyro.cli(cls, args=argv, prog=prog, add_help=False, **defaults)
        check_numbers(args)
        return args
    except SystemExit:
        told = box.getvalue()
    _, *lines = [line.strip("╭╮╰╯│| ") for line in told.splitlines()]  # without borders where stdout is ASCII
    body = itertools.dropwhile(lambda line: not line.strip("─-"), lines)
    said = " ".join(itertools.takewhile(lambda line: line.strip("─-"), body)).rstrip(".")  # up to a ruler
    config = re.fullmatch(r"Error parsing [\w.]+: (.*)", said)  # a config's own sentence
    if config:
        raise UserError(f"{config[1]}.")
    after = lines[lines.index("Perhaps you meant:") + 1 :] if "Perhaps you meant:" in lines else []
    meant = f" (did you mean {after[0].split()[0].rstrip(',')}?)" if after else ""
    raise UserError(f"{said.removeprefix('Error parsing ')}{meant}: see {prog} --help.")


def check_numbers(args: Any, prefix: str | None = None) -> None:
    """Every number that was given is finite and fits into 64 bits. Configs inside `args` itself have no name there."""
    for f in dataclasses.fields(args):
        value = getattr(args, f.name)
        if dataclasses.is_dataclass(value):
            check_numbers(value, "" if prefix is None else f"{prefix}{f.name}.")
        for one in value if isinstance(value, tuple | list) else [value]:
            if isinstance(one, int | float) and not abs(one) < 2**63:  # NaN neither
                raise UserError(f"--{prefix or ''}{f.name} {one}: give a finite number below 2^63.")


def commands(helps: dict[str, str], prog: str, description: str) -> str:
    rows = "\n".join(_row(name, text, max(map(len, helps)) + 2) for name, text in helps.items())
    usage = f"usage: {prog} {{{','.join(helps)}}} …   ({prog} {next(iter(helps))} --help)"
    return f"{usage}\n\n{description.rstrip('.')}.\n\n{rows}"


def _row(option: str, text: str, wide: int) -> str:
    """An option, and what it says, from column `wide` on; below it where the option is longer."""
    first = option if len(option) <= wide - 2 else ""
    told = textwrap.wrap(text, 78 - wide, break_on_hyphens=False) or [""]
    lines = [f"  {first if k == 0 else '':<{wide}}{line}".rstrip() for k, line in enumerate(told)]
    return "\n".join(lines if first else [f"  {option}", *lines])


def show(default: Any, common: tuple[str, ...], prog: str, description: str) -> str:
    """Help within 80 columns. default: an `Args` or its class, or the classes of several commands by name; common: the
    options to show, dots for nested ones, or all."""
    if isinstance(default, dict):
        return commands({name: inspect.getdoc(cls) or "" for name, cls in default.items()}, prog, description)
    own = inspect.getdoc(default) or ""
    description = description if own.startswith("Args(") else own
    rows, places = [], []
    for path in common or options(default):
        owner, _, name = path.rpartition(".")
        config = _nested(default, owner, name)
        cls = config if isinstance(config, type) else type(config)
        hint, value = get_type_hints(cls, include_extras=True)[name], _value(config, name)
        text, kind = _names(path) or field_docs(cls).get(name, ""), _kind(hint)
        if value is dataclasses.MISSING:
            text += " (required)"
        elif not isinstance(value, bool) and value not in (None, "", ()):
            text += f" (default: {' '.join(map(str, value)) if isinstance(value, tuple) else value})"
        if "Positional" in repr(getattr(hint, "__metadata__", "")):
            option = f"{name.upper().removesuffix('S')} …" if "…" in kind else name.upper()
            places.append(f"[{option}]" if value in (None, "") else option)
        else:
            name = f"no-{name}" if value is True else name
            option = f"--{f'{owner}.{name}'.strip('.').replace('_', '-')} {kind}".rstrip()
        rows.append((option, text.strip()))
    wide = min(max(len(option) for option, _ in rows) + 2, 24)
    lines = [f"usage: {prog} {' '.join([*places, '[options]'])}", "", f"{description.rstrip('.')}.", ""]
    lines += [_row(option, text, wide) for option, text in rows]
    every = ["", f"Every option: {prog.split(' RECIPE')[0]} --help-all"] if common else []
    return "\n".join([*lines, *every])


def options(config: Any, prefix: str = "") -> Iterator[str]:
    """Every option of a config, dots for nested ones."""
    hints = get_type_hints(config if isinstance(config, type) else type(config), include_extras=True)
    for f in dataclasses.fields(config):
        marks, value = getattr(hints[f.name], "__metadata__", ()), _value(config, f.name)
        if dataclasses.is_dataclass(value):
            nameless = any(getattr(mark, "name", None) == "" for mark in marks)
            yield from options(value, "" if nameless else f"{prefix}{f.name}.")
        elif "Suppress" not in repr(marks):
            yield prefix + f.name


def _value(config: Any, name: str) -> Any:
    if not isinstance(config, type):
        return getattr(config, name)
    field = next(f for f in dataclasses.fields(config) if f.name == name)
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _kind(hint: Any) -> str:
    """INT, PATH …, a|b: what an option takes; nothing for a switch."""
    if get_origin(hint) is Annotated:
        return _kind(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return _kind(next(h for h in get_args(hint) if h is not type(None)))
    if get_origin(hint) is Literal:
        return "|".join(str(choice) for choice in get_args(hint) if choice is not None)
    if get_origin(hint) is tuple:
        several = [_kind(h) for h in get_args(hint)]
        return f"{several[0]} …" if Ellipsis in get_args(hint) else " ".join(several)
    return {bool: "", Path: "PATH", str: "TEXT"}.get(hint, getattr(hint, "__name__", "").upper())


def _names(path: str) -> str:
    """The registered names that an option takes."""
    from lpwm.losses import REGULARIZERS
    from lpwm.model import LINKS, PREDICTORS
    from lpwm.worlds import WORLDS

    if path == "grid":
        from lpwm.sweep.grid import GRIDS

        return f"a .toml or .json file (docs/clusters.md), or {'; '.join(f'{k}: {v}' for k, v in GRIDS.items())}"
    networks = {"model.predictor.rung": PREDICTORS, "model.link": LINKS, "objective.regularizer": REGULARIZERS}
    return ", ".join({"data.world": WORLDS, **networks}.get(path, ()))


def _nested(config: Any, owner: str, name: str) -> Any:
    """The config that holds a field; fields of a config without a name of its own stand at the top."""
    parts = [*filter(None, owner.split(".")), name]
    if not isinstance(config, type) and not hasattr(config, parts[0]):
        inner = [getattr(config, f.name) for f in dataclasses.fields(config)]
        config = next(c for c in inner if dataclasses.is_dataclass(c) and hasattr(c, parts[0]))
    for part in parts[:-1]:
        config = getattr(config, part)
    return config


def field_docs(cls: type) -> dict[str, str]:
    """What a dataclass says about its fields: the string below each, the comment next to it, or the one above."""
    source = textwrap.dedent(inspect.getsource(cls))
    body, lines = ast.parse(source).body[0].body, source.splitlines()  # type: ignore[attr-defined]
    docs = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        below = after.value if isinstance(after, ast.Expr) else None
        if isinstance(below, ast.Constant) and isinstance(below.value, str):
            text = below.value
        else:
            text = lines[(node.end_lineno or 1) - 1].partition("  # ")[2]
            above = itertools.takewhile(lambda line: line.strip().startswith("# "), lines[node.lineno - 2 :: -1])
            text = text or " ".join(line.strip()[2:] for line in reversed([*above]))
        docs[node.target.id] = re.sub(r"\s+", " ", text).strip()
    return docs
