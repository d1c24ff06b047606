"""Short help: the common options of a verb, with the defaults in force; --help-all shows the rest."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from typing import Annotated, Any, get_type_hints

import tyro


def show(default: Any, common: tuple[str, ...], prog: str, description: str) -> None:
    """Print tyro's help of these fields alone. `common` names fields of `default`, dots for nested ones."""
    fields: list[Any] = []
    for path in common:
        owner, _, name = path.rpartition(".")
        config = _nested(default, owner)
        hint = get_type_hints(type(config), include_extras=True)[name]
        value = getattr(config, name)
        text = _names(path) or field_docs(type(config)).get(name, "")
        if owner:
            hint = Annotated[hint, tyro.conf.arg(name=path.replace("_", "-"), help=text)]
        else:
            hint = Annotated[hint, tyro.conf.arg(help=text)]
        fields.append((path.replace(".", "__"), hint, dataclasses.field(default=value)))
    short = dataclasses.make_dataclass("Args", fields, frozen=True)
    verb = prog.split(" RECIPE")[0]
    tyro.cli(short, args=["--help"], prog=prog, description=f"{description}.\n\nEvery option: {verb} --help-all")


def _names(path: str) -> str:
    """The registered names that an option takes."""
    from lpwm.model import LINKS, PREDICTORS
    from lpwm.worlds import WORLDS

    registries = {"data.world": WORLDS, "model.predictor.rung": PREDICTORS, "model.link": LINKS}
    return ", ".join(registries.get(path, ()))


def _nested(config: Any, owner: str) -> Any:
    for part in filter(None, owner.split(".")):
        inner = getattr(config, part, None)
        config = inner if inner is not None else getattr(config.run, part)  # a run's fields stand at the top
    return config


def field_docs(cls: type) -> dict[str, str]:
    """What a dataclass says about its fields: the string below each, or the comment next to it."""
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
        docs[node.target.id] = re.sub(r"\s+", " ", text).strip()
    return docs
