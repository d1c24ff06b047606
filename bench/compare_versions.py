"""Runs the same commands with two versions of lpwm and compares what they print and write, number by number.

    python bench/compare_versions.py OLD NEW

OLD and NEW are folders that hold the package `lpwm`: a checkout, an unpacked wheel, or the wheel itself.
Each version runs in a fresh folder. Times, versions and commits are ignored. The exit status is 1 on a difference.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What a newer version calls differently on purpose: old name -> new name.
KEYS: dict[str, str] = {  # keys of JSON, at any depth
    "along": "path_discount",
    "image": "image_size",
    "normalisation": "normalization",
    "optimiser": "optimizer",
    "regulariser": "regularizer",
    "regulariser_excess": "regularizer_excess",
}
WORDS: dict[str, str] = {}  # words of a command, for instance {"params": "paper params"}
FILES: dict[str, str] = {"optimiser.safetensors": "optimizer.safetensors"}  # parts of paths of written files

# Keys of JSON whose values tell when, where and by which code: not compared.
IGNORED = {
    "born", "bytes", "commit", "finished", "host", "layout", "lpwm", "lpwm_version", "machine", "minutes", "pid",
    "predicted_s", "records", "seconds", "source", "started", "steps_per_second", "time", "token", "version",
    "versions",
    "wall_s",
    "arrive", "cache", "camera", "units",  # of settings, data sets and studies since 0.2
    "beside_public",  # of `data info` until 0.2
    "range_10px", "range_25px", "range_50px", "range_100px",  # of logs until 0.2
}  # fmt: skip
# Pages and figures must exist; their contents carry times. Logs and cached episodes are named by process and version.
OPAQUE = {".html", ".png", ".pdf", ".gif"}
SKIPPED = {".log", ".npz"}
MASKS = (
    (re.compile(r"\b\d+(\.\d+)?(e-?\d+)?\s?(ms|s|min|h|GB free)\b"), "TIME"),
    (re.compile(r"\blpwm \d+\.\d+\.\d+\S*"), "lpwm VERSION"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*"), "DATE"),
)

SMALL = (
    "--train.steps 20 --train.log-every 10 --train.eval-every 20 --train.checkpoint-every 20 "
    "--data.episodes 30 --data.holdout 0.3 --model.latent 8 --objective.rdmreg.slices 16"
)
PLANNING = (
    "--preset quick --episodes 3 --budgets 10 --offset 10 --horizon 2 --receding 1 "
    "--solver-options samples=8 elites=2 iterations=2"
)
GRID = """
recipe = "tiny/{method}"
seeds = [0]
[axes]
method = ["lpwm", "lewm"]
[fixed]
"data.episodes" = 24
"train.steps" = 10
"model.latent" = 8
[eval.open]
preset = "open"
goals = ["random"]
episodes = 2
planner_seeds = 1
options = { samples = 8, elites = 2, iterations = 2 }
curve = 0
"""
# A word with * is replaced by the folders that match it.
COMMANDS = (
    "recipes --json",
    "recipes tiny/*",
    "params --json",
    "params --widths 64 128 --history 1",
    "params --schema mlp-lti --widths 32",
    "doctor --json",
    "collect piecewise --episodes 8 --steps 20 --out states.h5 --workers 1 --json",
    "collect wall --episodes 4 --steps 10 --pixels --size 16 --out pixels.h5 --workers 1 --json",
    "data info states.h5 --json",
    "data info pixels.h5",
    "data convert states.h5 drawn.h5 --add-pixels --size 16",
    f"train tiny/lpwm {SMALL} --out runs --device cpu --json",
    f"train tiny/lewm {SMALL} --out runs --device cpu --json",
    f"train tiny/lpwm {SMALL} --data.file pixels.h5 --data.frameskip 2 --out recorded --device cpu --json",
    f"eval runs/tiny-*/ {PLANNING} --device cpu --json",
    f"eval runs/tiny-*/ {PLANNING} --device cpu",
    "interpret runs/tiny-*/ --resolution 6 --frames 60 --folds 2 --device cpu --json",
    "interpret runs/tiny-lpwm-*/ --what sparsity --frames 60 --device cpu --json",
    "report runs/tiny-*/ --out report.html --json",
    "sweep grid.toml --out sweeps --workers 1 --device cpu --json",
    "sweep status sweeps/grid --json",
    "sweep cpu-mini --dry-run --json",
    "demo --pretrained --out demo --device cpu --json",
)


def differences(old: Any, new: Any, tolerance: float = 0.0, where: str = "") -> Iterator[str]:
    """One line for each place where two JSON values differ; `tolerance` is absolute, or relative above 1."""
    if isinstance(old, dict) and isinstance(new, dict):
        renamed, new = ({KEYS.get(k, k): v for k, v in d.items() if k not in IGNORED} for d in (old, new))
        for key in renamed.keys() | new.keys():
            at = f"{where}.{key}" if where else str(key)
            if key not in new:
                yield f"{at} is missing"
            elif key not in renamed:
                yield f"{at} is new"
            else:
                yield from differences(renamed[key], new[key], tolerance, at)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where} has {len(new)} entries, not {len(old)}"
        for i, (a, b) in enumerate(zip(old, new, strict=False)):
            yield from differences(a, b, tolerance, f"{where}[{i}]")
    elif _number(old) and _number(new):
        if not (old == new or abs(old - new) <= tolerance * max(1.0, abs(old)) or (old != old and new != new)):
            yield f"{where}: {old!r} became {new!r}"
    elif isinstance(old, str) and isinstance(new, str):
        if masked(old) != masked(new):
            yield f"{where}: {_short(old)} became {_short(new)}"
    elif old is not new and (type(old) is not type(new) or old != new):
        yield f"{where}: {_short(old)} became {_short(new)}"


def _number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) < 80 else text[:77] + "…"


def masked(text: str) -> str:
    """Text without times, dates and versions."""
    for pattern, name in MASKS:
        text = pattern.sub(name, text)
    return text


def parsed(text: str) -> Any:
    """JSON if it is JSON, else the lines of the text."""
    try:
        return json.loads(text)
    except ValueError:
        return [line.rstrip() for line in text.splitlines()]


def run(package: Path, folder: Path, command: str, new: bool) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of one command with the package of that folder."""
    words: list[str] = []
    for word in command.split():
        if new and word in WORDS:
            words += WORDS[word].split()
        elif "*" in word and word.endswith("/"):
            words += [str(p.relative_to(folder)) for p in sorted(folder.glob(word.rstrip("/")))]
        else:
            words.append(word)
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "lpwm", *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


def contents(path: Path) -> Any:
    """What a written file holds, as JSON values; null for what is not compared."""
    if path.suffix in OPAQUE:
        return None
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return {name: [str(t.dtype), *_array(t.double().numpy())] for name, t in load_file(path).items()}
    if path.suffix == ".h5":
        import h5py

        with h5py.File(path) as file:
            return {name: _array(file[name][()]) for name in file if isinstance(file[name], h5py.Dataset)}
    return path.read_text(errors="replace").splitlines()


def _array(value: Any) -> Any:
    import numpy as np

    value = np.ascontiguousarray(value)
    if value.size > 50_000:
        return [str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
    if value.dtype == object:
        return [str(x) for x in value.ravel()]
    return [str(value.dtype), list(value.shape), value.ravel().tolist()]


def written_name(path: Path, folder: Path) -> str:
    """The path in the folder. Data of a run are named by a hash of the version too: here by their contents."""
    match = re.fullmatch(r"(.+)-[0-9a-f]{12}\.h5", path.name)
    if match is None:
        return path.relative_to(folder).as_posix()
    digest = hashlib.sha256(json.dumps(contents(path)).encode()).hexdigest()[:12]
    return path.with_name(f"{match[1]}-{digest}.h5").relative_to(folder).as_posix()


def compare_files(old: Path, new: Path, tolerance: float) -> list[str]:
    """Files that exist in one folder alone, and differences of the contents of the others."""

    def names(folder: Path) -> dict[str, Path]:
        files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix not in SKIPPED)
        return {written_name(p, folder): p for p in files if "tfevents" not in p.name}

    before, after = names(old), names(new)
    for part, other in FILES.items():
        before = {name.replace(part, other): path for name, path in before.items()}
    lines = [f"{name} is missing" for name in before if name not in after]
    lines += [f"{name} is new" for name in after if name not in before]
    for name in before.keys() & after.keys():
        a, b = contents(before[name]), contents(after[name])
        lines += [f"{name}: {line}" for line in differences(a, b, tolerance)]
    return lines


def unpacked(path: Path, folder: Path) -> Path:
    """The folder that holds `lpwm`; a wheel is unpacked into `folder`."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(folder)
        return folder
    if not (path / "lpwm" / "__init__.py").exists():
        raise SystemExit(f"{path} holds no package lpwm: give a checkout, an unpacked wheel or a wheel.")
    return path.resolve()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--tolerance", type=float, default=0.0, help="of numbers; the default is none")
    parser.add_argument("--only", default="", help="only commands that contain this text")
    parser.add_argument("--show", type=int, default=5, help="differences printed for each command")
    parser.add_argument("--json", type=Path, help="write all differences here")
    args = parser.parse_args()
    results: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        packages = [unpacked(path, root / f"package-{i}") for i, path in enumerate((args.old, args.new))]
        folders = [root / "old", root / "new"]
        for folder in folders:
            folder.mkdir()
            (folder / "grid.toml").write_text(GRID)
        for command in COMMANDS:
            if args.only in command:
                (rc, out, err), (rc2, out2, err2) = (
                    run(package, folder, command, new=i == 1)
                    for i, (package, folder) in enumerate(zip(packages, folders, strict=True))
                )
                lines = [f"exit status {rc} became {rc2}: {err2.strip()[-200:]}"] if rc != rc2 else []
                if rc and rc == rc2:
                    lines.append(f"both failed: {err.strip()[-200:]}")
                lines += differences(parsed(out), parsed(out2), args.tolerance)
                results[command] = lines
                show(command, lines, args.show)
        results["files written"] = compare_files(*folders, args.tolerance)
        show("files written", results["files written"], args.show)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    differing = sum(bool(lines) for lines in results.values())
    print(f"{len(results) - differing} of {len(results)} equal")
    return 1 if differing else 0


def show(command: str, lines: list[str], most: int) -> None:
    name = command if len(command) <= 60 else command[:59] + "…"
    print(f"{name:<60}  {f'{len(lines)} differences' if lines else 'equal'}", flush=True)
    for line in lines[:most]:
        print(f"    {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
