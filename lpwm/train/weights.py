"""A model's folder: `model.safetensors` (weights and buffers) and `config.json` (all else that using it needs).

A checkpoint and a pretrained model are such folders. Nothing is ever unpickled: safetensors is a table of names, shapes
and bytes.

config.json: format, model (its config), action_dim, proprio_dim, history, world (its spec or null), normalization
({"mean", "std"} of raw actions, or null), frameskip, image_size, run_hash, versions, files (the weights' fingerprint),
and whatever else the caller's `meta` holds.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lpwm.core.config import renamed, to_dict
from lpwm.core.errors import UserError
from lpwm.core.files import fingerprint
from lpwm.core.json import Reader, read_json
from lpwm.core.provenance import versions
from lpwm.model.world_model import WorldModel

T = TypeVar("T")
FORMAT = 1
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
_OPTIONAL = {"world": None, "normalization": None, "frameskip": None, "run_hash": None}


class Damaged(UserError):
    """A file or folder that is not what was written; the text is one sentence that names it."""


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile` and DistributedDataParallel, whose names carry no prefix."""
    for wrapper in ("_orig_mod", "module") * 2:  # either may be around the other
        inner = getattr(model, wrapper, None)
        model = inner if isinstance(inner, nn.Module) else model
    return model


def stored_dtype(tensor: Tensor) -> torch.dtype:
    """Half precisions are stored as float32, which holds them exactly; all others as they are."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


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
    path.touch()
    mode = path.stat().st_mode  # as the umask has it; safetensors writes for the owner alone
    try:
        save_file(plain, path)
    except SafetensorError as error:  # it reports errors of the disk in its own words
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    path.chmod(mode)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, in memory of its own; anything else is refused unread."""
    return _safely(path, lambda: {name: tensor.clone() for name, tensor in load_file(path).items()})


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes from the header alone."""

    def shapes() -> dict[str, tuple[int, ...]]:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118

    return _safely(path, shapes)


def _safely(path: Path, read: Callable[[], T]) -> T:
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file: give the file itself.")
    try:
        return read()
    except FileNotFoundError:
        raise UserError(f"{path} is missing.") from None
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is not a whole safetensors file ({str(error).rstrip('.')}): it was cut, altered or made by "
            "another program, and other formats are never opened because they can run code."
        ) from None


def check_shapes(where: Path, shapes: Mapping[str, tuple[int, ...]], model: nn.Module) -> None:
    """The names and shapes of a file are those of the model; otherwise the first difference, as a sentence."""
    wanted = {name: tuple(t.shape) for name, t in unwrap(model).state_dict().items()}
    for name in [*wanted, *shapes]:
        if name not in shapes:
            wrong = f"{where} has no {name!r}, which the model has"
        elif name not in wanted:
            wrong = f"{where} has {name!r}, which the model lacks"
        elif shapes[name] != wanted[name]:
            wrong = f"{name!r} has shape {shapes[name]} in {where} but {wanted[name]} in the model"
        else:
            continue
        raise UserError(f"{wrong}: they are of different configurations.")


def dump(value: dict[str, Any]) -> bytes:
    """JSON such that dump(parse(text)) == text: a file that was altered anywhere is no fixed point or another value."""
    return (json.dumps(value, indent=1) + "\n").encode()


def read_object(path: Path) -> Reader:
    """A JSON file of this format; else Damaged."""
    try:
        return Reader(read_json(path), str(path))
    except UserError as error:
        raise Damaged(str(error)) from None


def check_file(folder: Path, name: str, wanted: Any, content: bool = True) -> None:
    """Damaged unless `folder/name` has the size and, with `content`, the SHA-256 of its fingerprint."""
    path = folder / name
    if Path(name).name != name or not path.is_file():
        raise Damaged(f"{path} is missing.")
    size, bytes_ = path.stat().st_size, wanted.get("bytes") if isinstance(wanted, dict) else None
    if size != bytes_:
        what = "truncated" if isinstance(bytes_, int) and size < bytes_ else "not what was written"
        raise Damaged(f"{path} is {what}: {size} bytes instead of {bytes_}.")
    if content and fingerprint(path) != wanted:
        raise Damaged(f"{path} was altered after it was written: its checksum differs.")


def write_model(
    folder: Path, model: nn.Module, meta: Mapping[str, Any] | None = None, run_hash: str | None = None
) -> None:
    """Write model.safetensors, then config.json, which holds the fingerprint of the former."""
    inner = unwrap(model)
    assert isinstance(inner, WorldModel), type(inner)
    config = {**_OPTIONAL, "image_size": inner.config.encoder.image_size, **to_dict(dict(meta or {}))}
    config |= {"format": FORMAT, "model": to_dict(inner.config), "action_dim": inner.action_dim}
    config |= {"proprio_dim": inner.proprio_dim, "history": inner.history, "versions": versions()}
    if run_hash is not None:
        config["run_hash"] = run_hash
    try:
        json.dumps(config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"the model's meta cannot be written as JSON: {str(error).rstrip('.')}.") from None
    write_tensors(folder / WEIGHTS, {name: t.to(stored_dtype(t)) for name, t in inner.state_dict().items()})
    config["files"] = {WEIGHTS: fingerprint(folder / WEIGHTS)}
    (folder / CONFIG).write_bytes(dump(config))


def read_config(folder: Path) -> Reader:
    """config.json with its format tested and its optional fields filled with null."""
    config = read_object(folder / CONFIG)
    version = config.get("format", default=None)
    if version is None:
        raise UserError(f"{config.where} is not of an LpWM world model: it has no 'format'.")
    if version != FORMAT:
        raise UserError(f"{config.where} is of format {version!r}, and this lpwm reads {FORMAT}: upgrade lpwm.")
    return Reader({**_OPTIONAL, **renamed(config.record)}, config.where)
