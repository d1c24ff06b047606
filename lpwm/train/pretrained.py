"""Models to use and to share: a folder, a run, the Hugging Face Hub, and the runs shipped with the package.

`huggingface_hub` is imported when it is called for, so a machine without it can train and plan. The card states what
config.json says and nothing else.

A shipped run is a run folder of five small files, which `lpwm eval`, `lpwm interpret` and `lpwm report` read like any
(results/pack_pretrained.py makes them). Its data set is collected anew, and its digest compared with the run's.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from lpwm.core.config import from_dict
from lpwm.core.errors import UserError, choose
from lpwm.core.files import disk_errors, scratch, sync
from lpwm.core.provenance import LOG, SESSIONS
from lpwm.model.predictors import title_of
from lpwm.model.world_model import ModelConfig, WorldModel
from lpwm.train.checkpoint import CHECKPOINTS, CHOICES, STATE, root_of, sweep, verify
from lpwm.train.weights import (
    CONFIG,
    WEIGHTS,
    check_file,
    check_shapes,
    read_config,
    read_json,
    read_shapes,
    read_tensors,
    write_model,
)

FILES = ("run.json", SESSIONS, LOG, WEIGHTS, CONFIG)  # of a shipped run
_PATTERNS = ["*.safetensors", "*.json", "*.md"]  # downloaded
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def save_pretrained(model: WorldModel, folder: str | os.PathLike[str], meta: Mapping[str, Any] | None = None) -> Path:
    """Write the model into `folder`; `meta` (what it was loaded with, unless given) joins config.json."""
    folder = Path(folder)
    if (folder / STATE).exists():
        raise UserError(f"{folder} is a checkpoint of a run, which is never overwritten: choose another folder.")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give the name of a folder.")
    sweep(folder)
    with scratch(folder, "model") as temporary:
        write_model(temporary, model, model.meta if meta is None else meta)
        for name in (WEIGHTS, CONFIG):
            sync(temporary / name)
        for name in (WEIGHTS, CONFIG):  # a kill in between leaves weights that the config refuses, never a mixture
            os.replace(temporary / name, folder / name)
        sync(folder)
    return folder


def locate(path: str | os.PathLike[str], checkpoint: str = "latest") -> Path | None:
    """The folder with config.json that `path` means, verified where it can be; None when only a hub could know it."""
    choose_one = choose("checkpoint", checkpoint, CHOICES)
    folder = Path(path).expanduser()
    if folder.is_dir():
        if (folder / STATE).exists():
            verify(folder)
            return folder
        if (folder / CONFIG).exists():
            return folder
        if root_of(folder).is_dir():
            chosen = choose_one(folder)
            for sentence in chosen.refused:
                warnings.warn(f"{sentence[:-1]}; {chosen.folder.name} is used.", stacklevel=4)
            return chosen.folder
        raise UserError(f"{folder} holds no model: neither {CONFIG} nor {CHECKPOINTS}/ is in it.")
    if folder.exists():
        raise UserError(f"{folder} is a file: give the folder that holds {CONFIG} and {WEIGHTS}.")
    if isinstance(path, str) and _HUB_NAME.fullmatch(path):
        return None
    raise UserError(f"there is no folder {folder}: give a model's folder, a run's folder or a hub name owner/name.")


def device_of(device: str | torch.device) -> torch.device:
    try:
        made = torch.device(device)
    except RuntimeError:
        raise UserError(f"unknown device {device!r}: give cpu, cuda or cuda:N.") from None
    if made.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!s} was asked for, but torch sees no GPU: use device='cpu'.")
    return made


def build(config: dict[str, Any], where: Path) -> WorldModel:
    """The model that config.json describes, untrained; torch's own generator is left as it was."""
    try:
        made = from_dict(ModelConfig, config["model"])
        with torch.random.fork_rng(devices=[]):
            return WorldModel(made, config["action_dim"], config["proprio_dim"])
    except UserError as error:
        raise UserError(f"{where / CONFIG}: {error}") from None


def load(
    path: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    revision: str | None = None,
    checkpoint: str = "latest",
    token: str | None = None,
) -> WorldModel:
    """See `WorldModel.from_pretrained`."""
    target = device_of(device)
    folder = locate(path, checkpoint)
    if folder is None:
        folder = download(str(path), revision, token)
    config = read_config(folder)
    files = config.get("files")
    if isinstance(files, dict) and WEIGHTS in files:
        check_file(folder, WEIGHTS, files[WEIGHTS])
    shapes = read_shapes(folder / WEIGHTS)
    with torch.device("meta"):  # compare before anything is allocated
        check_shapes(folder / WEIGHTS, shapes, build(config, folder))
    model = build(config, folder)
    model.load_state_dict(read_tensors(folder / WEIGHTS))
    model.meta = config
    return model.eval().to(target)


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UserError("the hub needs huggingface_hub: pip install huggingface_hub.") from None
    return huggingface_hub


# Class of the library's error -> why. By name, since the classes moved between versions; the first that fits.
_WHY = {
    "GatedRepoError": "its owner must grant you access: ask for it on its page, then `hf auth login`",
    "RepositoryNotFoundError": "there is no such model, or it is private: check the name, or log in with "
    "`hf auth login`",
    "RevisionNotFoundError": "it has no such revision: give a branch, tag or commit of it",
    "LocalTokenNotFoundError": "you are not logged in: run `hf auth login` or pass token=",
    "HFValidationError": "this is no valid name: give owner/name",
}


def _sentence(name: str, what: str, error: Exception) -> str:
    """Why the hub did not do it."""
    kinds = {cls.__name__ for cls in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", None)
    why = next((why for kind, why in _WHY.items() if kind in kinds), "")
    if status in (401, 403) and not kinds & {"GatedRepoError", "RepositoryNotFoundError"}:
        why = "your token was refused: check it with `hf auth whoami` and that it may write here"
    elif not why and status is not None:
        why = f"the hub answered with status {status}: try again later"
    return f"{what} {name!r}: {why or f'the hub cannot be reached ({type(error).__name__}): check the network'}."


def download(name: str, revision: str | None = None, token: str | None = None) -> Path:
    """The local folder of a hub model; only safetensors, JSON and Markdown files are fetched."""
    library = _library()
    try:
        folder = library.snapshot_download(name, revision=revision, allow_patterns=_PATTERNS, token=token)
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


def shipped() -> Path:
    """The folder of packed runs inside the package."""
    return Path(str(resources.files("lpwm"))) / "assets" / "pretrained"


def available() -> list[str]:
    root = shipped()
    return sorted(p.name for p in root.iterdir() if (p / CONFIG).exists()) if root.is_dir() else []


def unpack(name: str, root: str | Path) -> Path:
    """A copy of a shipped run as ROOT/NAME-HASH, whole or absent; one that is there already is used."""
    source = shipped() / name
    if not (source / CONFIG).exists():
        are = f"are {', '.join(available())}" if available() else "is none"
        raise UserError(f"no pretrained {name!r} is installed here (there {are}): train one with lpwm demo.")
    run = read_json(source / "run.json")
    target = Path(root) / f"{name}-{run['hash']}"
    if not target.exists():
        with disk_errors(target), scratch(Path(root), name) as temporary:
            for file in FILES:
                shutil.copyfile(source / file, temporary / file)
            temporary.rename(target)
    return target
