"""Checkpoints of a run: everything that resuming exactly needs, in a folder that is also a pretrained model.

    RUN/checkpoints/step-00001234/
        model.safetensors       weights and buffers (batch norms' running statistics)
        config.json             what the model needs to be used: see `lpwm.train.weights`
        optimizer.safetensors   every tensor of the optimizer's state, as "<parameter>/<key>"
        state.json              step, the run's config and hash, seed, optimizer groups, metric, versions, checksums

Everything random is keyed by (seed, step) and every rate is a function of the step, so these two are the state of
the generators and of the schedule.

The folder is sealed: `state.json` is written last and holds the SHA-256 and the byte count of every other file, and its
own checksum. It is written under a temporary name, every file flushed, then renamed. So whatever moment a process is
killed at, a folder under its final name is whole; and what is cut or altered later (a full disk, a bad copy, a flipped
bit) is seen before anything is read from it.
"""

from __future__ import annotations

import hashlib
import math
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lpwm.core.config import renamed, to_dict
from lpwm.core.errors import UserError
from lpwm.core.files import TEMPORARY, fingerprint, put, remove, scratch, sync
from lpwm.core.provenance import versions
from lpwm.train.weights import (
    CONFIG,
    FORMAT,
    WEIGHTS,
    Damaged,
    check_file,
    check_shapes,
    check_size,
    dump,
    read_json,
    read_tensors,
    stored_dtype,
    unwrap,
    write_model,
    write_tensors,
)

__all__ = ["Checkpoint", "Damaged", "best", "existing", "latest", "read", "restore", "save"]

STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"
OLD_OPTIMIZER = "optimiser.safetensors"  # as 0.1.0 called it
CHECKPOINTS = "checkpoints"
_FIELDS: dict[str, Any] = {"step": int, "run": dict, "run_hash": str, "metric": float | None, "files": dict}
_NAME = re.compile(r"step-(\d{8,})(\.old)?")  # `.old`: being replaced by the same step; good until that is done
# How a group is computed, not what: these belong to the device a run is resumed on.
_IMPLEMENTATION = {"params", "param_names", "foreach", "fused", "capturable", "differentiable"}


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint; `refused` says, a sentence each, which newer (or better) ones were passed over."""

    folder: Path
    state: dict[str, Any]
    refused: list[str] = field(default_factory=list)

    @property
    def step(self) -> int:
        return self.state["step"]

    @property
    def metric(self) -> float | None:
        return self.state["metric"]


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
    keep: int = 2,
) -> Path:
    """Write RUN/checkpoints/step-XXXXXXXX, whole or not at all; then remove all but the last `keep` and the best.

    `folder` is the run's. The best has the lowest `metric`; one that is not finite counts as none.
    """
    if keep < 1:
        raise UserError(f"keep = {keep}: at least one checkpoint must be kept.")
    root = root_of(folder)
    metric = float(metric) if metric is not None and math.isfinite(metric) else None
    final = root / f"step-{step:08d}"
    sweep(root)
    with scratch(root, final.name) as temporary:
        write_model(temporary, model, meta, run_hash)
        state: dict[str, Any] = {
            "format": FORMAT,
            "step": step,
            "run": to_dict(dict(run)),
            "run_hash": run_hash,
            "rng": {"seed": run.get("seed"), "step": step},
            "schedule": {"step": step},
            "metric": metric,
            "best": _best_so_far(root, step, metric),
            "versions": versions(),
            "optimizer": None,
        }
        if optimizer is not None:
            tensors, state["optimizer"] = _pack(unwrap(model), optimizer)
            write_tensors(temporary / OPTIMIZER, tensors)
        _seal(temporary, state)
        put(temporary, final)
    _prune(root, step, keep)
    return final


def read(folder: Path | str) -> Checkpoint:
    """One particular checkpoint, verified; a damaged one is a UserError that names what is wrong with it."""
    return Checkpoint(Path(folder), verify(Path(folder)))


@torch.no_grad()
def restore(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Put weights, buffers and the optimizer's state back, bit for bit; the step they are of.

    All is compared before anything is changed. Tensors that exist are filled in place, so that captured graphs
    keep reading them.
    """
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
    plan = None if optimizer is None else _compare(checkpoint, inner, optimizer)
    for name, tensor in weights.items():
        targets[name].copy_(tensor)
    if optimizer is not None and plan is not None:
        _unpack(optimizer, checkpoint.state["optimizer"], plan)
    return checkpoint.step


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """The parameters' names, group by group."""
    of = {id(p): name for name, p in model.named_parameters()}
    groups = [[of.get(id(p), "") for p in group["params"]] for group in optimizer.param_groups]
    if not all(name for group in groups for name in group):
        raise UserError("the optimizer has a parameter that the model lacks: build it from this model.")
    return groups


def _plain(value: Any) -> Any:
    """A hyperparameter as JSON; rates that live in tensors (captured graphs) as their exact value."""
    if isinstance(value, Tensor):
        return value.tolist()
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _pack(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimizer's tensors by "<parameter>/<key>", and the rest as JSON."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    groups = []
    for names, group in zip(_names(model, optimizer), optimizer.param_groups, strict=True):
        hyper = {k: _plain(v) for k, v in group.items() if k not in _IMPLEMENTATION}
        groups.append({"params": names, "hyper": hyper})
        for name, parameter in zip(names, group["params"], strict=True):
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{name}/{key}"] = value
                else:
                    scalars.setdefault(name, {})[key] = value
    return tensors, {"class": type(optimizer).__name__, "groups": groups, "scalars": scalars}


def _compare(
    checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, dict[str, Tensor]]:
    """The tensors to put back, by parameter and key, once the checkpoint's optimizer is known to be this one."""
    saved, where = checkpoint.state.get("optimizer"), checkpoint.folder
    if saved is None:
        raise UserError(f"{where} has weights but no optimizer: it can be used, not resumed.")
    if saved["class"] != type(optimizer).__name__:
        raise UserError(f"{where} was trained with {saved['class']}, not {type(optimizer).__name__}.")
    here, there = _names(model, optimizer), [group["params"] for group in saved["groups"]]
    if len(here) != len(there):
        raise UserError(f"{where} has {len(there)} parameter groups, but the optimizer has {len(here)}.")
    for i, (ours, theirs) in enumerate(zip(here, there, strict=True)):
        for mine, its in zip([*ours, None], [*theirs, None], strict=False):
            if mine != its:
                raise UserError(
                    f"parameter group {i} has {its!r} in {where} where the optimizer has {mine!r}: the optimizer's "
                    "settings differ."
                )
    shapes = {name: p.shape for name, p in model.named_parameters()}
    plan: dict[str, dict[str, Tensor]] = {}
    path = where / OPTIMIZER
    if not path.exists():
        path = where / OLD_OPTIMIZER
    for full, tensor in read_tensors(path).items():
        name, _, key = full.rpartition("/")
        if name not in shapes or (tensor.ndim and tensor.shape != shapes[name]):
            raise UserError(f"{full!r} in {path} does not fit the model's parameters.")
        plan.setdefault(name, {})[key] = tensor
    return plan


def _unpack(optimizer: torch.optim.Optimizer, saved: dict[str, Any], plan: dict[str, dict[str, Tensor]]) -> None:
    for group, its in zip(optimizer.param_groups, saved["groups"], strict=True):
        for key in its["hyper"].keys() & group.keys() - _IMPLEMENTATION:
            group[key] = _refill(group[key], its["hyper"][key])
        on_device = bool(group.get("capturable") or group.get("fused"))
        for name, parameter in zip(its["params"], group["params"], strict=True):
            old = optimizer.state.pop(parameter, {})
            state: dict[str, Any] = dict(saved["scalars"].get(name, {}))
            for key, tensor in plan.get(name, {}).items():
                # Adam counts on the CPU unless a kernel must read the count.
                device = parameter.device if key != "step" or on_device else torch.device("cpu")
                state[key] = _place(old.get(key), tensor, device)
            if state:
                optimizer.state[parameter] = state


def _refill(current: Any, saved: Any) -> Any:
    if isinstance(current, Tensor):
        return current.copy_(torch.tensor(saved, dtype=current.dtype))
    return tuple(saved) if isinstance(current, tuple) else saved


def _place(current: Any, tensor: Tensor, device: torch.device) -> Tensor:
    if isinstance(current, Tensor) and (current.dtype, current.shape) == (tensor.dtype, tensor.shape):
        return current.copy_(tensor) if current.device == device else tensor.to(device)
    return tensor.to(device)


def _seal(folder: Path, state: dict[str, Any]) -> None:
    """Flush every file of `folder`, then write `state.json` with their fingerprints and its own checksum."""
    files = sorted(p for p in folder.iterdir() if p.is_file())
    for path in files:
        sync(path)
    state = {**state, "files": {path.name: fingerprint(path) for path in files}}
    state["checksum"] = hashlib.sha256(dump(state)).hexdigest()
    (folder / STATE).write_bytes(dump(state))
    sync(folder / STATE)
    sync(folder)


def _glance(folder: Path) -> dict[str, Any]:
    """`state.json` with its own checksum and the sizes of all files tested, which costs nothing; or Damaged."""
    path = folder / STATE
    state = read_json(path)
    if state.get("format") != FORMAT:
        raise Damaged(
            f"{path} is no checkpoint state of format {FORMAT} (it says {state.get('format')!r}): "
            "use the version of lpwm that wrote it."
        )
    rest = {name: value for name, value in state.items() if name != "checksum"}
    if state.get("checksum") != hashlib.sha256(dump(rest)).hexdigest() or path.read_bytes() != dump(state):
        raise Damaged(f"{path} was altered after it was written.")
    for name, kind in _FIELDS.items():
        if name not in state:
            raise Damaged(f"{path} lacks the field {name!r}.")
        if not isinstance(state[name], kind):
            raise Damaged(f"{path} has a field {name!r} of the wrong type, {type(state[name]).__name__}.")
    for name in (WEIGHTS, CONFIG):
        if name not in state["files"]:
            raise Damaged(f"{path} does not list {name}.")
    for name, wanted in state["files"].items():
        check_size(folder, name, wanted)
    return state


def verify(folder: Path) -> dict[str, Any]:
    """The state of a sealed folder whose files are all what was written; else Damaged."""
    state = _glance(folder)
    for name, wanted in state["files"].items():
        check_file(folder, name, wanted)
    return renamed(state)


def sweep(root: Path) -> None:
    """Remove what killed processes left: temporary folders, and set-aside ones whose successor is in place.

    A run, or a model's folder, has one writer.
    """
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
    match = _NAME.fullmatch(folder.name)
    assert match, folder
    return int(match[1])


def existing(run_folder: Path | str) -> list[Path]:
    """Folders of checkpoints, newest first; nothing is verified. Empty when the run has none yet."""
    root = root_of(run_folder)
    folders = [p for p in root.iterdir() if _NAME.fullmatch(p.name)] if root.is_dir() else []
    return sorted(folders, key=lambda p: (_step_of(p), p.suffix != ".old"), reverse=True)


def _first_sound(run_folder: Path | str, folders: list[Path], refused: list[str]) -> Checkpoint:
    for folder in folders:
        try:
            state = verify(folder)
            if state["step"] != _step_of(folder):
                raise Damaged(f"{folder} was renamed: it holds step {state['step']}.")
            return Checkpoint(folder, state, refused)
        except (Damaged, OSError) as error:
            refused.append(_refusal(folder, error))
    if not refused:
        raise UserError(
            f"{run_folder} has no checkpoint: give the folder of a run that has saved one, or start the run again."
        )
    raise UserError(
        f"{run_folder} has no usable checkpoint ({' '.join(refused).rstrip('.')}): restore the folder from "
        "a copy or start the run again."
    )


def latest(run_folder: Path | str) -> Checkpoint:
    """The newest checkpoint of a run that is whole. Those refused before it are in `.refused`."""
    return _first_sound(run_folder, existing(run_folder), [])


def best(run_folder: Path | str) -> Checkpoint:
    """The checkpoint with the lowest metric (of equals the later) that is whole."""
    refused: list[str] = []
    metrics = {folder: state["metric"] for folder, state in _sound(run_folder, refused).items()}
    if metrics and all(m is None for m in metrics.values()):
        raise UserError(f"no checkpoint of {run_folder} has a metric to be best in: use the latest.")
    ranked = sorted((f for f in metrics if metrics[f] is not None), key=lambda f: (metrics[f], -_step_of(f)))
    return _first_sound(run_folder, ranked, refused)


CHOICES: dict[str, Callable[[Path | str], Checkpoint]] = {"latest": latest, "best": best}


def _sound(run_folder: Path | str, refused: list[str] | None = None) -> dict[Path, dict[str, Any]]:
    """The states of the checkpoints that look whole, newest first; of the others a sentence each in `refused`."""
    states = {}
    for folder in existing(run_folder):
        try:
            states[folder] = _glance(folder)
        except (Damaged, OSError) as error:
            if refused is not None:
                refused.append(_refusal(folder, error))
    return states


def _refusal(folder: Path, error: Exception) -> str:
    return f"checkpoint {folder.name} is refused: {str(error).rstrip('.')}."


def _prune(root: Path, step: int, keep: int) -> None:
    """After a save at `step`: keep the last `keep` and the best up to it, remove the other sound ones.

    Damaged ones do not count, so they never crowd out sound ones, and stay until their step is saved again. Later
    ones are left alone: no run saves behind its own end, so they are damaged or not ours to delete.
    """
    states = {folder: state for folder, state in _sound(root).items() if _step_of(folder) <= step}
    scored = [f for f in states if states[f]["metric"] is not None]
    kept = set(list(states)[:keep])
    if scored:
        kept.add(min(scored, key=lambda f: (states[f]["metric"], -_step_of(f))))
    for folder in states.keys() - kept:
        with suppress(OSError):  # the save itself stands; the next one tries again
            remove(folder)


def _best_so_far(root: Path, step: int, metric: float | None) -> dict[str, Any] | None:
    """{"step", "metric"} of the lowest metric among the checkpoints up to `step` and the one being saved."""
    scores = [(metric, -step)] if metric is not None else []
    earlier = (state for state in _sound(root).values() if state["step"] < step)
    scores += [(state["metric"], -state["step"]) for state in earlier if state["metric"] is not None]
    return {"step": -min(scores)[1], "metric": min(scores)[0]} if scores else None
