"""A world model as a folder: `model.safetensors` (weights and buffers) and `config.json` (all else it needs).

A checkpoint is such a folder too. Nothing is ever unpickled: safetensors is a table of names, shapes and bytes.

config.json: format, model (its config), action_dim, proprio_dim, history, world (its spec or null), normalization
({"mean", "std"} of raw actions, or null), frameskip, image_size, run_hash, versions, files (the weights' fingerprint),
and whatever else the caller's `meta` holds.
"""

from __future__ import annotations

import json
import os
import platform
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lpwm.core.config import from_dict, renamed, to_dict
from lpwm.core.errors import UserError, choose
from lpwm.core.version import __version__
from lpwm.model.world_model import ModelConfig, WorldModel
from lpwm.train import folders
from lpwm.train.folders import CHOICES, CONFIG, FORMAT, STATE, WEIGHTS

_REQUIRED = {"model": dict, "action_dim": int, "proprio_dim": int}
_OPTIONAL = {"world": None, "normalization": None, "frameskip": None, "run_hash": None}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HALF = (torch.float16, torch.bfloat16)


def versions() -> dict[str, str]:
    return {"lpwm": __version__, "torch": torch.__version__, "python": platform.python_version()}


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile` and DistributedDataParallel, whose names carry no prefix."""
    for wrapper in ("_orig_mod", "module") * 2:  # either may be around the other
        inner = getattr(model, wrapper, None)
        model = inner if isinstance(inner, nn.Module) else model
    return model


def stored_dtype(tensor: Tensor) -> torch.dtype:
    """Half precisions are stored as float32, which holds them exactly; all others as they are."""
    return torch.float32 if tensor.dtype in _HALF else tensor.dtype


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Each tensor on its own, on the CPU, contiguous: safetensors refuses tensors that share memory."""
    seen: set[int] = set()
    plain = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().to("cpu").contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        plain[name] = tensor
    try:
        save_file(plain, path)
    except SafetensorError as error:  # it reports errors of the disk in its own words
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, in memory of its own; anything else is refused unread."""
    try:
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except FileNotFoundError:
        raise UserError(f"{path} is missing.") from None
    except (SafetensorError, OSError) as error:
        raise UserError(_no_safetensors(path, error)) from None


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes from the header alone."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"{path} is missing.") from None
    except (SafetensorError, OSError) as error:
        raise UserError(_no_safetensors(path, error)) from None


def _no_safetensors(path: Path, error: Exception) -> str:
    return (
        f"{path} is not a whole safetensors file ({str(error).rstrip('.')}): it was cut, altered or made by another "
        "program, and other formats are never opened because they can run code."
    )


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers under their names, half precisions as float32."""
    return {name: t.detach().to(stored_dtype(t)) for name, t in unwrap(model).state_dict().items()}


def check_shapes(where: Path, found: Mapping[str, tuple[int, ...]], model: nn.Module) -> None:
    """The names and shapes of a file are those of the model; otherwise the first difference, as a sentence."""
    wanted = {name: tuple(t.shape) for name, t in unwrap(model).state_dict().items()}
    for name, shape in wanted.items():
        if name not in found:
            raise UserError(f"{where} has no {name!r}, which the model has: they are of different configurations.")
        if found[name] != shape:
            raise UserError(
                f"{name!r} has shape {found[name]} in {where} but {shape} in the model: they are of different "
                "configurations."
            )
    for name in found:
        if name not in wanted:
            raise UserError(f"{where} has {name!r}, which the model lacks: they are of different configurations.")


def write_model(
    folder: Path, model: nn.Module, meta: Mapping[str, Any] | None = None, run_hash: str | None = None
) -> None:
    """Write model.safetensors, then config.json, which holds the fingerprint of the former."""
    inner = unwrap(model)
    assert isinstance(inner, WorldModel), type(inner)
    config = {
        **_OPTIONAL,
        "image_size": inner.config.encoder.image_size,
        **to_dict(dict(meta or {})),
        "format": FORMAT,
        "model": to_dict(inner.config),
        "action_dim": inner.action_dim,
        "proprio_dim": inner.proprio_dim,
        "history": inner.history,
        "versions": versions(),
    }
    if run_hash is not None:
        config["run_hash"] = run_hash
    try:
        json.dumps(config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"the model's meta cannot be written as JSON: {str(error).rstrip('.')}.") from None
    write_tensors(folder / WEIGHTS, weights_of(inner))
    config["files"] = {WEIGHTS: folders.fingerprint(folder / WEIGHTS)}
    (folder / CONFIG).write_bytes(folders.dump(config))


def read_config(folder: Path) -> dict[str, Any]:
    """config.json with its required fields tested and its optional ones filled with null."""
    path = folder / CONFIG
    config = folders.read_json(path)
    if "format" not in config:
        raise UserError(f"{path} is not of an LpWM world model: it has no 'format'.")
    if config["format"] != FORMAT:
        raise UserError(
            f"{path} is of format {config['format']!r}, and this lpwm ({__version__}) reads {FORMAT}: upgrade lpwm."
        )
    for name, kind in _REQUIRED.items():
        if name not in config:
            raise UserError(f"{path} lacks the field {name!r}: save the model again with save_pretrained.")
        if type(config[name]) is not kind or (kind is int and config[name] < 0):
            raise UserError(f"{path}: {name} = {config[name]!r} must be of type {kind.__name__}.")
    return {**_OPTIONAL, **renamed(config)}


def save_pretrained(model: WorldModel, folder: str | os.PathLike[str], meta: Mapping[str, Any] | None = None) -> Path:
    """Write the model into `folder`; `meta` (what it was loaded with, unless given) joins config.json."""
    folder = Path(folder)
    if (folder / STATE).exists():
        raise UserError(f"{folder} is a checkpoint of a run, which is never overwritten: choose another folder.")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give the name of a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    with folders.scratch(folder, "model") as temporary:
        write_model(temporary, model, model.meta if meta is None else meta)
        for name in (WEIGHTS, CONFIG):
            folders.sync(temporary / name)
        for name in (WEIGHTS, CONFIG):  # a kill in between leaves weights that the config refuses, never a mixture
            os.replace(temporary / name, folder / name)
        folders.sync(folder)
    return folder


def locate(path: str | os.PathLike[str], checkpoint: str = "latest") -> Path | None:
    """The folder with config.json that `path` means, verified where it can be; None when only a hub could know it."""
    choose_one = choose("checkpoint", checkpoint, CHOICES)
    folder = Path(path).expanduser()
    if folder.is_dir():
        if (folder / STATE).exists():
            folders.verify(folder)
            return folder
        if (folder / CONFIG).exists():
            return folder
        if folders.root_of(folder).is_dir():
            found = choose_one(folder)
            for sentence in found.refused:
                warnings.warn(f"{sentence[:-1]}; {found.folder.name} is used.", stacklevel=4)
            return found.folder
        raise UserError(f"{folder} holds no model: neither {CONFIG} nor {folders.CHECKPOINTS}/ is in it.")
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
        from lpwm.train import hub

        folder = hub.download(str(path), revision, token)
    config = read_config(folder)
    files = config.get("files")
    if isinstance(files, dict) and WEIGHTS in files:
        folders.check_file(folder, WEIGHTS, files[WEIGHTS])
    shapes = read_shapes(folder / WEIGHTS)
    with torch.device("meta"):  # compare before anything is allocated
        check_shapes(folder / WEIGHTS, shapes, build(config, folder))
    model = build(config, folder)
    model.load_state_dict(read_tensors(folder / WEIGHTS))
    model.meta = config
    return model.eval().to(target)
