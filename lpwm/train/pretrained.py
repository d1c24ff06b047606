"""Models to use and to share: a folder, a run, the Hugging Face Hub, and the runs shipped with the package.

`huggingface_hub` is imported when it is called for, so a machine without it can train and plan.

A shipped run is a run folder of five small files (results/pack_pretrained.py makes them). Its data set is collected
anew, and its digest compared with the run's.
"""

import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from lpwm.core.config import from_dict
from lpwm.core.errors import UserError, choose, need
from lpwm.core.files import disk_errors, scratch, sync
from lpwm.core.json import Reader
from lpwm.core.provenance import LOG, SESSIONS
from lpwm.model.world_model import ModelConfig, WorldModel
from lpwm.train.checkpoint import CHECKPOINTS, CHOICES, STATE, root_of, sweep, verify
from lpwm.train.run_config import RUN, pick_device, read_record
from lpwm.train.weights import (
    CONFIG,
    WEIGHTS,
    check_file,
    check_shapes,
    read_config,
    read_shapes,
    read_tensors,
    write_model,
)

FILES = (RUN, SESSIONS, LOG, WEIGHTS, CONFIG)  # of a shipped run
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
        for name in (WEIGHTS, CONFIG):  # a kill in between leaves weights that the config refuses, never a mixture
            sync(temporary / name)
            os.replace(temporary / name, folder / name)
        sync(folder)
    return folder


def locate(path: str | os.PathLike[str], checkpoint: str = "latest") -> Path | None:
    """The folder with config.json that `path` means, verified where it can be; None when only a hub could know it."""
    choose_one = choose("checkpoint", checkpoint, CHOICES)
    folder = Path(path).expanduser()
    if folder.is_dir():
        if (folder / STATE).exists():
            return verify(folder).folder
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


def build(config: Reader) -> WorldModel:
    """The model that config.json describes, untrained; torch's own generator is left as it was."""
    model, sizes = config.get("model", dict[str, Any]), (config.get("action_dim", int), config.get("proprio_dim", int))
    try:
        with torch.random.fork_rng(devices=[]):
            return WorldModel(from_dict(ModelConfig, model), *sizes)
    except UserError as error:
        raise UserError(f"{config.where}: {error}") from None
    except (TypeError, ArithmeticError, RuntimeError) as error:  # of torch, for sizes beyond all bounds
        raise UserError(f"{config.where}: no model can be built with these sizes ({type(error).__name__}).") from None


def load(
    path: str | os.PathLike[str], device: str | torch.device, revision: str | None, checkpoint: str, token: str | None
) -> WorldModel:
    """See `WorldModel.from_pretrained`."""
    target = pick_device(device)
    folder = locate(path, checkpoint) or download(str(path), revision, token)
    config = read_config(folder)
    for name, wanted in config.get("files", dict[str, Any], {}).items():
        check_file(folder, name, wanted)
    shapes = read_shapes(folder / WEIGHTS)
    with torch.device("meta"):  # compare before anything is allocated
        check_shapes(folder / WEIGHTS, shapes, build(config))
    model = build(config)
    model.load_state_dict(read_tensors(folder / WEIGHTS))
    model.meta = config.record
    return model.eval().to(target)


def _library() -> Any:
    return need("huggingface_hub", "the hub needs huggingface_hub: pip install huggingface_hub.")


# Class of the library's error -> why. By name, since the classes moved between versions; the first that fits.
_WHY = {
    "GatedRepoError": "its owner must grant you access: ask for it on its page, then `hf auth login`",
    "RepositoryNotFoundError": "there is no such model, or it is private: check the name, or log in with "
    "`hf auth login`",
    "RevisionNotFoundError": "it has no such revision: give a branch, tag or commit of it",
    "LocalTokenNotFoundError": "you are not logged in: run `hf auth login` or pass token=",
    "HFValidationError": "this is no valid name: give owner/name",
}


def _refusal(what: str, error: Exception) -> UserError:
    """`what` the hub did not do, and why."""
    kinds = {cls.__name__ for cls in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", None)
    why = next((why for kind, why in _WHY.items() if kind in kinds), "")
    if status in (401, 403) and not kinds & {"GatedRepoError", "RepositoryNotFoundError"}:
        why = "your token was refused: check it with `hf auth whoami` and that it may write here"
    elif not why and status is not None:
        why = f"the hub answered with status {status}: try again later"
    return UserError(f"{what}: {why or f'the hub cannot be reached ({type(error).__name__}): check the network'}.")


def download(name: str, revision: str | None, token: str | None) -> Path:
    """The local folder of a hub model; only safetensors, JSON and Markdown files are fetched."""
    library = _library()
    try:
        return Path(library.snapshot_download(name, revision=revision, allow_patterns=_PATTERNS, token=token))
    except Exception as error:  # of the network, the hub or the disk: none of them ours
        raise _refusal(f"there is no folder of this name here, and the hub does not give {name!r}", error) from error


def push(
    model: WorldModel, name: str, meta: Mapping[str, Any], private: bool, token: str | None, note: str, license: str
) -> str:
    """See `WorldModel.push_to_hub`: model.safetensors, config.json and README.md (the card)."""
    library, common = _library(), {"token": token, "repo_type": "model"}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(folder, model, meta)
        (folder / "README.md").write_text(card(name, model, read_config(folder).record, license), encoding="utf-8")
        try:
            url = library.create_repo(name, private=private, exist_ok=True, **common)
            library.upload_folder(repo_id=name, folder_path=folder, commit_message=note, **common)
        except Exception as error:
            raise _refusal(f"cannot upload {name!r}", error) from error
    return str(url)


def _rows(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _rows(value, f"{prefix}{key}.")
        elif value not in (None, "", []):
            cell = " ".join(str(value).replace("|", "\\|").split())
            yield f"| {prefix}{key} | {cell} |"


def card(name: str, model: WorldModel, config: Mapping[str, Any], license: str) -> str:
    """The model card: front matter, what it is, a table of its configuration, how to load it."""
    c = model.config
    tags = ["world-model", "jepa", "planning", *(["sparse"] if c.sparse else []), f"lpwm-{c.predictor.rung}"]
    table = [f"| parameters | {sum(p.numel() for p in model.parameters()):,} |", *_rows(config)]
    kind = "sparse (non-negative codes with exact zeros)" if c.sparse else "dense"
    values = {
        "name": name,
        "title": name.rpartition("/")[2],
        "license": license,
        "kind": kind,
        "table": "\n".join(table),
    }
    sizes = {"image_size": c.encoder.image_size, "latent": c.latent, "action_dim": model.action_dim}
    text = (resources.files("lpwm") / "assets" / "card.md").read_text(encoding="utf-8")
    return text.format(tags="\n".join(f"- {tag}" for tag in tags), **values, **sizes)


def shipped() -> Path:
    """The folder of packed runs inside the package."""
    return Path(str(resources.files("lpwm"))) / "assets" / "pretrained"


def available() -> list[str]:
    return sorted(path.parent.name for path in shipped().glob(f"*/{CONFIG}"))


def unpack(name: str, root: str | Path) -> Path:
    """A copy of a shipped run as ROOT/NAME-HASH, whole or absent; one that is there already is used."""
    source = shipped() / name
    if not (source / CONFIG).exists():
        are = f"are {', '.join(available())}" if available() else "is none"
        raise UserError(f"no pretrained {name!r} is installed here (there {are}): train one with lpwm demo.")
    target = Path(root) / f"{name}-{read_record(source).hash}"
    if not target.exists():
        with disk_errors(target), scratch(Path(root), name) as temporary:
            for file in FILES:
                shutil.copyfile(source / file, temporary / file)
            temporary.rename(target)
    return target
