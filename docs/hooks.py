"""Pages that mkdocs builds from elsewhere: changelog, results, notebooks, every module and every config field."""

import base64
import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from lpwm.cli.help import field_docs

ROOT = Path(__file__).parents[1]
COPIED = {"CHANGELOG.md": "changelog.md", "results/README.md": "results.md"}


def on_files(files: Files, config: Any) -> Files:
    for source, name in COPIED.items():
        files.append(
            File.generated(config, name, content=outside_links((ROOT / source).read_text(), Path(source).parent))
        )
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / source).read_text()):
            files.append(File.generated(config, picture, content=(ROOT / source).parent.joinpath(picture).read_bytes()))
    files.append(File.generated(config, "config.md", content=config_page()))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text, pictures = notebook_page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, data in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
    return files


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """An executed notebook as a page, and its pictures by name."""
    out: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        out.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            if "text" in output:
                out.append(f"```text\n{''.join(output['text'])}```")
            else:
                name = f"{path.stem}-{len(pictures)}.png"
                pictures[name] = base64.b64decode(output["data"]["image/png"])
                out.append(f"![]({name})")
    return "\n\n".join(out), pictures


def outside_links(text: str, folder: Path) -> str:
    """Links to files that are no pages of the site become their path in the repository."""

    def plain(match: re.Match[str]) -> str:
        words, target = match.groups()
        if target.startswith(("http", "#")):
            return match[0]
        page = (folder / target.split("#")[0]).as_posix()
        if page.startswith("../docs/"):
            return f"[{words}]({target.removeprefix('../docs/')})"
        return f"[{words}]({target.removeprefix('docs/')})" if page.startswith("docs/") else f"{words} (`{page}`)"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)]+)\)", plain, text)


def config_page() -> str:
    """A table for each dataclass below RunConfig and for each solver, with the comments of the source."""
    from lpwm.evaluate.config import EvalConfig
    from lpwm.plan.config import SOLVERS, MPCConfig
    from lpwm.train import RunConfig

    text = [
        "# Every field",
        "Set a field of a run with `lpwm train RECIPE --model.latent 384`, or in Python with "
        '`lpwm.train(recipe, overrides={"model.latent": 384})`.',
    ]
    for title, kind in walk(RunConfig, ""):
        text += section(f"`{title}`" if title else "A run", kind)
    for title, kind in {"lpwm eval": EvalConfig, "Receding-horizon control": MPCConfig, **SOLVERS}.items():
        text += section(title, kind)
    return "\n\n".join(text)


def walk(kind: Any, path: str) -> list[tuple[str, Any]]:
    out = [(path, kind)]
    for f in dataclasses.fields(kind):
        made = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        if dataclasses.is_dataclass(made):
            out += walk(type(made), f"{path}.{f.name}".strip("."))
    return out


def type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else re.sub(r"\w+(\.\w+)*\.(\w)", r"\2", str(kind))


def section(title: str, kind: Any) -> list[str]:
    made = [c for c in reversed(kind.__mro__) if dataclasses.is_dataclass(c)]  # a field may come from a base
    comments = {name: text for c in made for name, text in field_docs(c).items() if text}
    rows = ["| field | type | default | what it is |", "|---|---|---|---|"]
    for f in dataclasses.fields(kind):
        default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        if dataclasses.is_dataclass(default):
            shown = "see its own table"
        else:
            shown = "required" if default is dataclasses.MISSING else f"`{default!r}`"
        cells = [f"`{f.name}`", f"`{type_name(f.type)}`", shown, comments.get(f.name, "")]
        rows.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    first = (inspect.getdoc(kind) or "").split("\n\n")[0]
    return [f"## {title}", "" if first.startswith(f"{kind.__name__}(") else first, "\n".join(rows)]


def on_post_build(config: Any) -> None:
    """Nothing is loaded from a network: the theme's stand-in for workers on file: is ours, from every folder."""
    site = Path(config["site_dir"])
    for path in site.rglob("*.html"):
        up = "../" * (len(path.relative_to(site).parts) - 1)
        path.write_text(path.read_text().replace("https://unpkg.com/iframe-worker/shim", f"{up}assets/worker.js"))
