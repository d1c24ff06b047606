"""Trained runs small enough to ship: what `lpwm demo --pretrained` starts from.

A packed run is a run folder of five small files, which `lpwm eval`, `lpwm interpret` and `lpwm report` read like any:

    run.json            as the run has it: config, hash, the data's digest
    training.json       how long its training took, where
    log.jsonl           its log, thinned
    model.safetensors   matrices in bf16, vectors (biases, norms, running statistics) in float32
    config.json         what the model needs to be used, with the fingerprint of the weights

The data set is not shipped: it is collected anew, and its digest compared with the run's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from lpwm.core.errors import UserError
from lpwm.core.files import disk_errors, make_folder, write_whole
from lpwm.core.provenance import SESSIONS, sessions
from lpwm.train import Loaded, folders, load
from lpwm.train.folders import CONFIG, WEIGHTS
from lpwm.train.log import LOG, read_log
from lpwm.train.pretrained import weights_of, write_tensors

LIMIT = 10_000_000  # bytes of all that is shipped
LOGGED = 120  # records of each kind that are kept: enough for a curve
FILES = ("run.json", SESSIONS, LOG, WEIGHTS, CONFIG)


def shipped() -> Path:
    """The folder of packed runs inside the package."""
    return Path(str(resources.files("lpwm"))) / "assets" / "pretrained"


def halved(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Matrices of floats in bf16; vectors are few, and running variances need their digits."""
    return {name: t.to(torch.bfloat16) if t.is_floating_point() and t.ndim > 1 else t for name, t in tensors.items()}


def pack(runs: Mapping[str, str | Path], out: str | Path, limit: int = LIMIT) -> dict[str, int]:
    """Turn run folders into OUT/NAME/…; bytes of each. Refused, with nothing written, above `limit` bytes in all."""
    if not runs:
        raise UserError("which runs are to be packed? give at least one, as NAME=RUN.")
    loaded = {name: load(path) for name, path in runs.items()}
    _check_together(loaded)
    weights = {name: halved(weights_of(one.model)) for name, one in loaded.items()}
    size = sum(t.nbytes for tensors in weights.values() for t in tensors.values())
    if size > limit:
        raise UserError(
            f"{' and '.join(runs)} take {size / 1e6:.1f} MB in bf16, more than the {limit / 1e6:g} MB that may be "
            "shipped: train a smaller model (fewer layers, a lighter predictor)."
        )
    out = Path(out)
    sizes = {}
    for name, one in loaded.items():
        folder = out / name
        make_folder(folder)
        with disk_errors(folder):
            write_tensors(folder / WEIGHTS, weights[name])
            config = {**one.model.meta, "files": {WEIGHTS: folders.fingerprint(folder / WEIGHTS)}}
            (folder / CONFIG).write_bytes(folders.dump(config))
            (folder / WEIGHTS).chmod(0o644)  # safetensors writes for its owner alone; a package is for everybody
        shutil.copyfile(one.path / "run.json", folder / "run.json")
        write_whole(folder / SESSIONS, json.dumps(sessions(one.path), indent=1) + "\n")
        write_whole(folder / LOG, _log(one.path))
        sizes[name] = sum((folder / file).stat().st_size for file in FILES)
    if sum(sizes.values()) > limit:
        raise UserError(f"{out} takes {sum(sizes.values()) / 1e6:.1f} MB with logs, more than {limit / 1e6:g} MB.")
    return sizes


def _check_together(loaded: Mapping[str, Loaded]) -> None:
    """One world, one data set: a pair is there to be compared."""
    digests = {json.loads((one.path / "run.json").read_text())["data"] for one in loaded.values()}
    if len(digests) > 1:
        raise UserError("the runs to be packed were trained on different data: pack runs of one data set.")


def _log(run: Path) -> str:
    records: list[dict[str, Any]] = read_log(run) if (run / LOG).exists() else []
    kept: list[dict[str, Any]] = []
    for kind in ("train", "val", "event"):
        rows = [r for r in records if r["kind"] == kind]
        every = max(1, -(-len(rows) // LOGGED))
        kept += [r for i, r in enumerate(rows) if i % every == 0 or i == len(rows) - 1]
    kept.sort(key=lambda r: r["step"])
    return "".join(json.dumps(r) + "\n" for r in kept)


def available() -> list[str]:
    root = shipped()
    return sorted(p.name for p in root.iterdir() if (p / CONFIG).exists()) if root.is_dir() else []


def unpack(name: str, root: str | Path) -> Path:
    """A copy of a shipped run as ROOT/NAME-HASH, whole or absent; one that is there already is found again."""
    source = shipped() / name
    if not (source / CONFIG).exists():
        raise UserError(
            f"no pretrained {name!r} is installed here (there {_are(available())}): train one with lpwm demo."
        )
    run = folders.read_json(source / "run.json")
    target = Path(root) / f"{name}-{run['hash']}"
    if not target.exists():
        make_folder(Path(root))
        with disk_errors(target), folders.scratch(Path(root), name) as temporary:
            for file in FILES:
                shutil.copyfile(source / file, temporary / file)
            temporary.rename(target)
    return target


def _are(names: Sequence[str]) -> str:
    return f"are {', '.join(names)}" if names else "is none"
