"""Checkpoints of a run: everything that resuming exactly needs, in a folder that is also a pretrained model.

    model.safetensors       weights and buffers (batch norms' running statistics)
    config.json             what the model needs to be used: see `lpwm.train.pretrained`
    optimizer.safetensors   every tensor of the optimizer's state, as "<parameter>/<key>"
    state.json              step, the run's config and hash, seed, optimizer groups, metric, versions, checksums

Everything random is keyed by (seed, step) and every rate is a function of the step, so these two are the state of
the generators and of the schedule. How a folder is written whole, and verified, is `lpwm.train.folders`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lpwm.core.config import to_dict
from lpwm.core.errors import UserError
from lpwm.train import folders
from lpwm.train.folders import FORMAT, OLD_OPTIMIZER, OPTIMIZER, WEIGHTS, Checkpoint, Damaged, best, existing, latest
from lpwm.train.pretrained import check_shapes, read_tensors, stored_dtype, unwrap, versions, write_model, write_tensors

__all__ = ["Checkpoint", "Damaged", "best", "existing", "latest", "read", "restore", "save"]

# How a group is computed, not what: these belong to the device a run is resumed on.
_IMPLEMENTATION = {"params", "param_names", "foreach", "fused", "capturable", "differentiable"}


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
    root = folders.root_of(folder)
    metric = float(metric) if metric is not None and math.isfinite(metric) else None
    final = root / f"step-{step:08d}"
    with folders.scratch(root, final.name) as temporary:
        write_model(temporary, model, meta, run_hash)
        state: dict[str, Any] = {
            "format": FORMAT,
            "step": step,
            "run": to_dict(dict(run)),
            "run_hash": run_hash,
            "rng": {"seed": run.get("seed"), "step": step},
            "schedule": {"step": step},
            "metric": metric,
            "best": folders.best_so_far(root, step, metric),
            "versions": versions(),
            "optimizer": None,
        }
        if optimizer is not None:
            tensors, state["optimizer"] = _pack(unwrap(model), optimizer)
            write_tensors(temporary / OPTIMIZER, tensors)
        folders.seal(temporary, state)
        folders.put(temporary, final)
    folders.prune(root, step, keep)
    return final


def read(folder: Path | str) -> Checkpoint:
    """One particular checkpoint, verified; a damaged one is a UserError that names what is wrong with it."""
    return Checkpoint(Path(folder), folders.verify(Path(folder)))


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
    same = isinstance(current, Tensor) and (current.dtype, current.shape, current.device) == (
        tensor.dtype,
        tensor.shape,
        device,
    )
    return current.copy_(tensor) if same else tensor.to(device)
