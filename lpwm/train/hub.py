"""Models on the Hugging Face Hub: download, upload, and the card that goes with them.

`huggingface_hub` is imported when it is called for, so a machine without it can train and plan. The card states what
config.json says and nothing else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lpwm.core.errors import UserError
from lpwm.model.predictors import title_of
from lpwm.model.world_model import WorldModel
from lpwm.train.folders import CONFIG, WEIGHTS
from lpwm.train.pretrained import read_config, write_model

PATTERNS = ["*.safetensors", "*.json", "*.md"]


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UserError("the hub needs huggingface_hub: pip install huggingface_hub.") from None
    return huggingface_hub


def _sentence(name: str, what: str, error: Exception) -> str:
    """Why the hub did not do it. Told by the names of classes: they moved between versions of the library."""
    kinds = {cls.__name__ for cls in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", None)
    if "GatedRepoError" in kinds:
        why = "its owner must grant you access: ask for it on its page, then `hf auth login`"
    elif status in (401, 403) and "RepositoryNotFoundError" not in kinds:
        why = "your token was refused: check it with `hf auth whoami` and that it may write here"
    elif "RepositoryNotFoundError" in kinds:
        why = "there is no such model, or it is private: check the name, or log in with `hf auth login`"
    elif "RevisionNotFoundError" in kinds:
        why = "it has no such revision: give a branch, tag or commit of it"
    elif "LocalTokenNotFoundError" in kinds:
        why = "you are not logged in: run `hf auth login` or pass token="
    elif "HFValidationError" in kinds:
        why = "this is no valid name: give owner/name"
    elif status is not None:
        why = f"the hub answered with status {status}: try again later"
    else:
        why = f"the hub cannot be reached ({type(error).__name__}): check the network"
    return f"{what} {name!r}: {why}."


def download(name: str, revision: str | None = None, token: str | None = None) -> Path:
    """The local folder of a hub model; only safetensors, JSON and Markdown files are fetched."""
    library = _library()
    try:
        folder = library.snapshot_download(name, revision=revision, allow_patterns=PATTERNS, token=token)
    except Exception as error:  # of the network, the hub or the disk: none of them ours
        raise UserError(
            _sentence(name, "there is no folder of this name here, and the hub does not give", error)
        ) from error
    return Path(folder)


def push(
    model: WorldModel,
    name: str,
    meta: Mapping[str, Any] | None = None,
    private: bool = False,
    token: str | None = None,
    commit_message: str = "Upload an LpWM world model",
    license: str = "mit",
) -> str:
    """Upload model.safetensors, config.json and README.md (the card); the address of the model."""
    library = _library()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(folder, model, model.meta if meta is None else meta)
        (folder / "README.md").write_text(card(name, model, read_config(folder), license), encoding="utf-8")
        try:
            url = library.create_repo(name, private=private, token=token, repo_type="model", exist_ok=True)
            library.upload_folder(
                repo_id=name,
                folder_path=folder,
                commit_message=commit_message,
                token=token,
                repo_type="model",
                allow_patterns=[WEIGHTS, CONFIG, "README.md"],
            )
        except Exception as error:
            raise UserError(_sentence(name, "cannot upload", error)) from error
    return str(url)


def _cell(value: Any) -> str:
    return " ".join(str(value).replace("|", "\\|").split())


def card(name: str, model: WorldModel, config: Mapping[str, Any], license: str = "mit") -> str:
    """The model card: front matter, what it is, a table of its configuration, how to load it."""
    c, world = model.config, config.get("world")
    rung, vit = c.predictor.rung, c.encoder
    world_name = world.get("name") if isinstance(world, dict) else None
    tags = ["world-model", "jepa", "planning", *(["sparse"] if c.sparse else []), f"lpwm-{rung}"]
    norm = config.get("normalization")
    norms = f"mean {norm.get('mean')}, std {norm.get('std')}" if isinstance(norm, dict) else None
    rows = {
        "world": world_name,
        "world options": world.get("options") if isinstance(world, dict) else None,
        "parameters": f"{sum(p.numel() for p in model.parameters()):,}",
        "latent width": c.latent,
        "link": c.link,
        "predictor": title_of(rung),
        "history (frames)": model.history,
        "encoder": f"ViT, {vit.depth} layers, width {vit.width}, patch {vit.patch}, pixels '{vit.pixels}'",
        "image": f"{config.get('image_size')} × {config.get('image_size')} pixels",
        "projector": f"hidden {c.projector.hidden}, {c.projector.norm} norm",
        "action block (entries)": model.action_dim,
        "frameskip": config.get("frameskip"),
        "action normalization": norms,
        "proprioception (entries)": model.proprio_dim or None,
        "run": config.get("run_hash"),
        "versions": ", ".join(f"{k} {v}" for k, v in config.get("versions", {}).items()),
    }
    table = "\n".join(f"| {key} | {_cell(value)} |" for key, value in rows.items() if value not in (None, {}, ""))
    kind = "sparse (non-negative codes with exact zeros)" if c.sparse else "dense"
    of_world = f" of the world `{_cell(world_name)}`" if world_name else ""
    return f"""---
license: {_cell(license)}
library_name: lpwm
pipeline_tag: robotics
tags:
{chr(10).join(f"- {tag}" for tag in tags)}
---

# {name.rpartition("/")[2]}

A {kind} latent world model{of_world}, trained with LpWM. It encodes frames as codes and predicts the code that follows
an action, for planning in latent space.

| | |
|---|---|
{table}

## Use

```python
from lpwm.model import WorldModel

model = WorldModel.from_pretrained("{name}")
codes = model.encode(frames)  # uint8 (…, 3, {vit.image_size}, {vit.image_size}) -> (…, {c.latent})
model.meta  # what is in config.json: the world, the action normalization, the frameskip
```

Actions are given to the model in blocks of {model.action_dim} entries{", z-scored as above" if norms else ""}.
This card lists what is stored with the weights; no results of evaluations are stored with them.
"""
