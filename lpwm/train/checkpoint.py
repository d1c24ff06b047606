"""Checkpoints of a run: everything that resuming exactly needs, in a folder that is also a pretrained model.

    RUN/checkpoints/step-00001234/
        model.safetensors       weights and buffers (batch norms' running statistics)
        config.json             what the model needs to be used: see `lpwm.train.weights`
        optimizer.safetensors   every tensor of the optimizer's state, as "<parameter>/<key>"
        state.json              step, the run's config and hash, optimizer groups, metric, versions, checksums

Everything random is keyed by (seed, step) and every rate is a function of the step, so no other state exists.

The folder is sealed: `state.json` is written last and holds the SHA-256 and the byte count of every other file, and its
own checksum. The folder is written under a temporary name, flushed, then renamed. So a folder under its final name is
whole, and what is cut or altered later is seen before anything is read from it.
"""

import hashlib
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lpwm.core.config import renamed, to_dict
from lpwm.core.errors import UserError
from lpwm.core.files import TEMPORARY, disk_errors, fingerprint, put, remove, scratch, sync
from lpwm.core.json import Reader
from lpwm.core.provenance import versions
from lpwm.train.weights import (
    CONFIG,
    FORMAT,
    WEIGHTS,
    Damaged,
    check_file,
    check_shapes,
    dump,
    read_object,
    read_tensors,
    stored_dtype,
    unwrap,
    write_model,
    write_tensors,
)

__all__ = ["Checkpoint", "Damaged", "best", "existing", "latest", "restore", "save", "verify"]

STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"
OLD_OPTIMIZER = "optimiser.safetensors"  # as 0.1.0 called it
CHECKPOINTS = "checkpoints"
_NAME = re.compile(r"step-(\d{8,})(\.old)?")  # `.old`: being replaced by the same step; good until that is done
# How a group is computed, not what: these belong to the device a run is resumed on.
_IMPLEMENTATION = {"params", "param_names", "foreach", "fused", "capturable", "differentiable"}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was tested; `refused` says, a sentence each, which newer (or better) ones were passed over."""

    folder: Path
    step: int
    metric: float | None
    files: dict[str, Any]  # fingerprints by name
    optimizer: dict[str, Any] | None
    seen: str = ""  # units active since the last log record, see ActivityWindow
    refused: list[str] = field(default_factory=list)


def save(
    folder: Path | str,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    step: int,
    run: Mapping[str, Any],
    run_hash: str,
    meta: Mapping[str, Any],
    metric: float | None = None,
    seen: str = "",
    keep: int = 2,
) -> Path:
    """Write RUN/checkpoints/step-XXXXXXXX, whole or not at all; then remove all but the last `keep` and the best.
    `folder` is the run's. The best has the lowest `metric`; one that is not finite counts as none."""
    if keep < 1:
        raise UserError(f"keep = {keep}: at least one checkpoint must be kept.")
    root = root_of(folder)
    final = root / f"step-{step:08d}"
    sweep(root)
    with disk_errors(final), scratch(root, final.name) as temporary:
        write_model(temporary, model, meta, run_hash)
        score = float(metric) if metric is not None and math.isfinite(metric) else None
        state: dict[str, Any] = {"format": FORMAT, "step": step, "run": to_dict(dict(run)), "run_hash": run_hash}
        state |= {"metric": score, "versions": versions(), "seen": seen, "optimizer": None}
        if optimizer is not None:
            tensors, state["optimizer"] = _pack(unwrap(model), optimizer)
            write_tensors(temporary / OPTIMIZER, tensors)
        _seal(temporary, state)
        put(temporary, final)
    _prune(root, step, keep)
    return final


def tidy(folder: Path, step: int, keep: int) -> None:
    """What a save at `step` does at its end, for one that was killed there."""
    sweep(root_of(folder))
    _prune(root_of(folder), step, keep)


@torch.no_grad()
def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Put weights, buffers and the optimizer's state back, bit for bit; the step they are of. All is compared before
    anything is changed."""
    inner = unwrap(model)
    path = checkpoint.folder / WEIGHTS
    weights, targets = read_tensors(path), inner.state_dict()
    check_shapes(path, {name: tuple(t.shape) for name, t in weights.items()}, inner)
    for name, tensor in weights.items():
        if tensor.dtype != stored_dtype(targets[name]):
            raise UserError(
                f"{name!r} is {tensor.dtype} in {path} but {targets[name].dtype} in the model: build it in the "
                "precision it was trained in."
            )
    state = None if optimizer is None else _unpack(checkpoint, inner, optimizer)
    for name, tensor in weights.items():
        targets[name].copy_(tensor)
    if optimizer is not None and state is not None:
        optimizer.load_state_dict(state)
    return checkpoint.step


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """The parameters' names, group by group."""
    of = {id(p): name for name, p in model.named_parameters()}
    groups = [[of.get(id(p), "") for p in group["params"]] for group in optimizer.param_groups]
    if not all(name for group in groups for name in group):
        raise UserError("the optimizer has a parameter that the model lacks: build it from this model.")
    return groups


def _pack(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimizer's tensors by "<parameter>/<key>", and the rest as JSON."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    groups = []
    for names, group in zip(_names(model, optimizer), optimizer.param_groups, strict=True):
        hyper = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in group.items() if k not in _IMPLEMENTATION}
        groups.append({"params": names, "hyper": hyper})
        for name, parameter in zip(names, group["params"], strict=True):
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{name}/{key}"] = value
                else:
                    scalars.setdefault(name, {})[key] = value
    return tensors, {"class": type(optimizer).__name__, "groups": groups, "scalars": scalars}


def _unpack(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The saved state as torch's `load_state_dict` takes it, once its optimizer is known to be this one."""
    where = checkpoint.folder
    if checkpoint.optimizer is None:
        raise UserError(f"{where} has weights but no optimizer: it can be used, not resumed.")
    saved = Reader(checkpoint.optimizer, f"{where / STATE}: optimizer")
    if saved.get("class", str) != type(optimizer).__name__:
        raise UserError(f"{where} was trained with {saved.get('class', str)}, not {type(optimizer).__name__}.")
    names, groups = _names(model, optimizer), list(saved.children("groups"))
    if len(names) != len(groups):
        raise UserError(f"{where} has {len(groups)} parameter groups, but the optimizer has {len(names)}.")
    for i, (ours, theirs) in enumerate(zip(names, groups, strict=True)):
        for mine, its in zip([*ours, None], [*theirs.get("params", tuple[str, ...]), None], strict=False):
            if mine != its:
                raise UserError(f"parameter group {i} has {its!r} in {where} where the optimizer has {mine!r}.")
    number = {name: i for i, name in enumerate(name for group in names for name in group)}
    shapes = {name: p.shape for name, p in model.named_parameters()}
    scalars = saved.get("scalars", dict[str, dict[str, Any]])
    state: dict[int, dict[str, Any]] = {number[name]: values for name, values in scalars.items()}
    path = where / OPTIMIZER
    path = path if path.exists() else where / OLD_OPTIMIZER
    for full, tensor in read_tensors(path).items():
        name, _, key = full.rpartition("/")
        if name not in number or (tensor.ndim and tensor.shape != shapes[name]):
            raise UserError(f"{full!r} in {path} does not fit the model's parameters.")
        state.setdefault(number[name], {})[key] = tensor
    settings = []
    for ours, theirs, group in zip(names, groups, optimizer.param_groups, strict=True):
        hyper = {k: _like(group[k], v) for k, v in theirs.get("hyper", dict[str, Any]).items() if k in group}
        settings.append({**group, **hyper, "params": [number[name] for name in ours]})
    return {"state": state, "param_groups": settings}


def _like(current: Any, saved: Any) -> Any:
    """A saved hyperparameter as the optimizer has it: a tuple, or a tensor that a captured graph reads."""
    if isinstance(current, Tensor):
        return torch.tensor(saved, dtype=current.dtype, device=current.device)
    return tuple(saved) if isinstance(current, tuple) else saved


def _seal(folder: Path, state: dict[str, Any]) -> None:
    """Flush every file of `folder`, then write `state.json` with their fingerprints and its own checksum."""
    files = sorted(p for p in folder.iterdir() if p.is_file())
    for path in files:
        sync(path)
    state = {**state, "files": {path.name: fingerprint(path) for path in files}}
    (folder / STATE).write_bytes(dump({**state, "checksum": _checksum(state)}))
    sync(folder / STATE)
    sync(folder)


def _checksum(state: dict[str, Any]) -> str:
    return hashlib.sha256(dump(state)).hexdigest()


def verify(folder: Path, content: bool = True) -> Checkpoint:
    """The checkpoint in a sealed folder whose files are all what was written; else Damaged. Without `content` only its
    state and the sizes of the files are tested, which costs nothing."""
    path = folder / STATE
    if path.is_file():
        path.open("rb").close()  # a PermissionError is not damage
    read = read_object(path)
    if read.get("format", default=None) != FORMAT:
        raise Damaged(f"{path} is of another format than {FORMAT}: use the version of lpwm that wrote it.")
    rest = {name: value for name, value in read.record.items() if name != "checksum"}
    if read.get("checksum", default="") != _checksum(rest) or path.read_bytes() != dump(read.record):
        raise Damaged(f"{path} was altered after it was written.")
    try:
        state = Reader(renamed(rest), str(path))
        kinds = {"step": int, "metric": float | None, "files": dict[str, Any]}
        optimizer = state.get("optimizer", dict[str, Any] | None, None)
        rest = {name: state.get(name, kind) for name, kind in kinds.items()}
        made = Checkpoint(folder, optimizer=optimizer, seen=state.get("seen", str, ""), **rest)
    except UserError as error:
        raise Damaged(str(error)) from None
    for name in (WEIGHTS, CONFIG):
        if name not in made.files:
            raise Damaged(f"{path} does not list {name}.")
    if _NAME.fullmatch(folder.name) and _step_of(folder) != made.step:
        raise Damaged(f"{folder} was renamed: it holds step {made.step}.")
    for name, wanted in made.files.items():
        check_file(folder, name, wanted, content)
    return made


def sweep(root: Path) -> None:
    """Remove what killed processes left: temporary folders, and set-aside ones whose successor is in place."""
    for path in root.iterdir() if root.is_dir() else ():
        if path.name.startswith(TEMPORARY):
            shutil.rmtree(path, ignore_errors=True)
        elif _NAME.fullmatch(path.name) and path.suffix == ".old" and path.with_suffix("").exists():
            remove(path)


def root_of(run_folder: Path | str) -> Path:
    """RUN/checkpoints; both RUN and RUN/checkpoints are understood."""
    run_folder = Path(run_folder)
    return run_folder if run_folder.name == CHECKPOINTS else run_folder / CHECKPOINTS


def _step_of(folder: Path) -> int:
    return int(folder.name.removesuffix(".old").removeprefix("step-"))


def existing(run_folder: Path | str) -> list[Path]:
    """Folders of checkpoints, newest first; nothing is verified. Empty when the run has none yet."""
    root = root_of(run_folder)
    folders = [p for p in root.iterdir() if _NAME.fullmatch(p.name)] if root.is_dir() else []
    return sorted(folders, key=lambda p: (_step_of(p), p.suffix != ".old"), reverse=True)


def _sound(folders: list[Path], refused: list[str], content: bool) -> Iterator[Checkpoint]:
    """Those that pass `verify`; of the others a sentence each in `refused`."""
    for folder in folders:
        try:
            yield verify(folder, content)
        except PermissionError as error:  # not damage: it is the user's to allow
            raise UserError(f"{error.filename or folder} may not be read: allow it (chmod -R u+rX {folder}).") from None
        except (Damaged, OSError) as error:
            refused.append(f"checkpoint {folder.name} is refused: {str(error).rstrip('.')}.")


def _first(run_folder: Path | str, folders: list[Path], refused: list[str]) -> Checkpoint:
    made = next(_sound(folders, refused, True), None)
    if made is not None:
        return replace(made, refused=refused)
    if not refused:
        raise UserError(f"{run_folder} has no checkpoint: give the folder of a run that has saved one.")
    raise UserError(
        f"{run_folder} has no usable checkpoint ({' '.join(refused).rstrip('.')}): restore it from a copy, or start "
        "the run over with --fresh, which deletes what is there."
    )


def latest(run_folder: Path | str) -> Checkpoint:
    """The newest checkpoint of a run that is whole. Those refused before it are in `.refused`."""
    return _first(run_folder, existing(run_folder), [])


def best(run_folder: Path | str) -> Checkpoint:
    """The checkpoint with the lowest metric (of equals the later) that is whole."""
    refused: list[str] = []
    sound = list(_sound(existing(run_folder), refused, False))
    scored = _by_metric(sound)
    if sound and not scored:
        raise UserError(f"no checkpoint of {run_folder} has a metric to be best in: use the latest.")
    return _first(run_folder, [c.folder for c in scored], refused)


def _by_metric(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Those that have a metric, the best first, of equals the later."""
    scored = [(c.metric, -c.step, i) for i, c in enumerate(checkpoints) if c.metric is not None]
    return [checkpoints[i] for *_, i in sorted(scored)]


def adopt(checkpoint: Checkpoint, run_folder: Path) -> None:
    """Copy a checkpoint of another run into this one's."""
    root, name = root_of(run_folder), f"step-{checkpoint.step:08d}"
    with scratch(root, name) as temporary:
        for file in (*checkpoint.files, STATE):
            shutil.copyfile(checkpoint.folder / file, temporary / file)
            sync(temporary / file)
        put(temporary, root / name)


CHOICES: dict[str, Callable[[Path | str], Checkpoint]] = {"latest": latest, "best": best}


def _prune(root: Path, step: int, keep: int) -> None:
    """After a save at `step`: keep the last `keep` and the best up to it, remove the other sound ones. Damaged ones
    neither count nor go. Later ones are left alone: no run saves behind its own end."""
    sound = [c for c in _sound(existing(root), [], False) if c.step <= step]
    kept = {c.folder for c in [*sound[:keep], *_by_metric(sound)[:1]]}
    for folder in {c.folder for c in sound} - kept:
        with suppress(OSError):  # the save itself stands; the next one tries again
            remove(folder)
