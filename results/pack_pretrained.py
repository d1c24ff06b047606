"""Turn trained run folders into what `lpwm demo --pretrained` ships, and check what rounding does to planning.

    python results/pack_pretrained.py lpwm=RUN lewm=RUN [--out lpwm/assets/pretrained] [--check]

    run.json            as the run has it: config, hash, the data's digest
    training.json       how long its training took, where
    log.jsonl           its log, thinned
    model.safetensors   matrices in bf16, vectors (biases, norms, running statistics) in float32
    config.json         what the model needs to be used, with the fingerprint of the weights

More than 10 MB in all is refused. `--check` plans with both forms on the
same random goals (demo's planner) and prints their success side by side.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from lpwm.cli.demo import PLANNING
from lpwm.core.errors import UserError
from lpwm.core.files import disk_errors, fingerprint, write_whole
from lpwm.core.json import dump_json
from lpwm.core.provenance import LOG, SESSIONS, Record, read_log, sessions
from lpwm.evaluate.evaluate import evaluate
from lpwm.evaluate.runs import load_team
from lpwm.train import Loaded, load
from lpwm.train.pretrained import FILES, shipped
from lpwm.train.weights import CONFIG, WEIGHTS, dump, write_tensors

LIMIT = 10_000_000  # bytes of all that is shipped
LOGGED = 120  # records of each kind that are kept: enough for a curve


def halved(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Matrices of floats in bf16; vectors are few, and running variances need their digits."""
    return {name: t.to(torch.bfloat16) if t.is_floating_point() and t.ndim > 1 else t for name, t in tensors.items()}


def pack(runs: Mapping[str, str | Path], out: str | Path, limit: int = LIMIT) -> dict[str, int]:
    """Turn run folders into OUT/NAME/…; bytes of each. Refused, with nothing written, above `limit` bytes in all."""
    if not runs:
        raise UserError("which runs are to be packed? give at least one, as NAME=RUN.")
    loaded = {name: load(path) for name, path in runs.items()}
    _check_together(loaded)
    weights = {name: halved(one.model.state_dict()) for name, one in loaded.items()}
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
        folder.mkdir(parents=True, exist_ok=True)  # in the package, where no verb writes
        with disk_errors(folder):
            write_tensors(folder / WEIGHTS, weights[name])
            config = {**one.model.meta, "files": {WEIGHTS: fingerprint(folder / WEIGHTS)}}
            (folder / CONFIG).write_bytes(dump(config))
            (folder / WEIGHTS).chmod(0o644)  # a package is for everybody
        shutil.copyfile(one.path / "run.json", folder / "run.json")
        write_whole(folder / SESSIONS, dump_json(sessions(one.path), indent=1))
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
    records = read_log(run) if (run / LOG).exists() else []
    kept: list[Record] = []
    for kind in ("train", "val", "event"):
        rows = [r for r in records if r.kind == kind]
        every = max(1, -(-len(rows) // LOGGED))
        kept += [r for i, r in enumerate(rows) if i % every == 0 or i == len(rows) - 1]
    kept.sort(key=lambda r: r.step)
    return "".join(json.dumps(r.to_json()) + "\n" for r in kept)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--out", type=Path, default=shipped())
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    runs = dict(text.split("=", 1) for text in args.runs)
    try:
        sizes = pack(runs, args.out)
    except UserError as error:
        print(f"pack_pretrained: {error}", file=sys.stderr)
        return 2
    for name, size in sizes.items():
        print(f"{name}: {size / 1e3:.0f} kB in {args.out / name}")
    if args.check:
        for name, path in runs.items():
            check(name, Path(path), args.out / name)
    return 0


def check(name: str, before: Path, after: Path) -> None:
    """Success of both forms on the same 100 random goals, and on how many goals they differ."""
    settings = replace(PLANNING, goals=("random",), controls=(), curve=0)
    successes = []
    for path in (before, after):
        team = load_team([path], data=False)
        cell = evaluate(team.agents, team.world, settings, holdout=team.holdout).cells[0]
        successes.append(cell.methods[0].success("latched", 50)[0, 0])
    differ = int((successes[0] != successes[1]).sum())
    print(
        f"{name}: {100 * successes[0].mean():.0f} % as trained, {100 * successes[1].mean():.0f} % packed, "
        f"{differ} of {len(successes[0])} random goals come out differently"
    )


if __name__ == "__main__":
    sys.exit(main())
