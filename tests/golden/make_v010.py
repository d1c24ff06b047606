"""Makes tests/golden/v010: small folders written by lpwm 0.1.0, and expected.json with what it says about them.

    python tests/golden/make_v010.py lpwm-0.1.0-py3-none-any.whl

Takes the wheel or a folder with the package. The folders are what 0.1.0 wrote, less tensorboard files and cached
episodes; HDF5 files are compressed with gzip. Do not run it with another version.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

HERE = Path(__file__).parent
OUT = HERE / "v010"

MODEL = (
    "--model.latent 8 --model.encoder.image 16 --model.encoder.patch 8 --model.encoder.width 16 "
    "--model.encoder.depth 1 --model.encoder.heads 1 --model.encoder.head-dim 16 --model.encoder.mlp 16 "
    "--model.projector.hidden 16 --model.predictor.heads 2 --model.predictor.head-dim 8 --model.predictor.mlp 16 "
    "--model.predictor.head-hidden 16 --model.predictor.rank 2 --objective.rdmreg.slices 16"
)
TRAIN = "--train.batch 8 --train.log-every 10 --train.eval-every 20 --train.eval-batches 1 --train.keep 1"
LAST = ["--device", "cpu", "--json"]
ARENA = ["--data.episodes", "30", "--data.holdout", "0.3"]  # held-out frames in several zones


def training(recipe: str, out: str, steps: int, *options: str) -> list[str]:
    length = ["--train.steps", str(steps), "--train.checkpoint-every", str(steps)]
    return ["train", recipe, *MODEL.split(), *TRAIN.split(), *length, *options, "--out", out, *LAST]


# One run of each world, of six methods and rungs; the last is of recordings whose world nobody knows.
RUNS = {
    "piecewise": training("tiny/lpwm", "trained", 60, *ARENA),
    "wall": training("wall/shallow-adaln/lpwm", "trained", 20, "--data.episodes", "20", "--data.steps", "30"),
    "two_room": training("two-room/lewm", "trained", 20, "--data.episodes", "20", "--data.steps", "30"),
    "pusht": training("pusht-small/mlp-ltv/vicreg", "trained", 20, "--data.episodes", "10", "--data.steps", "30"),
    "cube": training(
        *("cube-small/lpwm-tj0.1", "trained", 20, "--data.episodes", "4"),
        *("--data.steps", "20", "--data.frames", "16", "--data.holdout", "0.25"),
    ),
    "recording": training(
        *("tiny/lpwm", "recorded", 20, "--model.predictor.rung", "lti"),
        *("--data.file", "recording.h5", "--data.frameskip", "2"),
    ),
}
INTERRUPTED = training("tiny/lpwm", "interrupted", 60, *ARENA)
PLANNING = (
    "--preset quick --episodes 3 --budgets 10 --offset 10 --horizon 2 --receding 1 "
    "--solver-options samples=8 elites=2 iterations=2"
)
CONTROLS = {"piecewise": "nothing random oracle", "pusht": "nothing random"}
DATA = {
    "states.h5": "collect piecewise --episodes 6 --steps 20 --options g=3 --seed 5 --workers 1",
    "pixels.h5": "collect two_room --episodes 4 --steps 10 --pixels --size 16 --seed 5 --workers 1",
}
GRID = """recipe = "tiny/{method}"
seeds = [0, 1]
select_seeds = [0]
goals = "random"

[axes]
method = ["lpwm", "lewm"]

[fixed]
"data.episodes" = 12
"train.steps" = 10
"train.checkpoint_every" = 10
"train.keep" = 1
"model.latent" = 8
"model.encoder.width" = 8
"model.encoder.head_dim" = 8
"model.projector.hidden" = 8
"objective.rdmreg.slices" = 16

[eval.open]
preset = "open"
goals = ["random"]
episodes = 2
planner_seeds = 1
options = { samples = 8, elites = 2, iterations = 2 }
curve = 0
"""
GRIDS = ("cpu-mini", "piecewise-table", "wall-ladder", "wall-transfer", "pusht-ladder", "pusht-vicreg",
         "cube-temporal-jaccard")  # fmt: skip
# Run by the old package itself: what the command line does not print.
MACHINE = """
import json, platform, torch
cpu = [l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")][:1]
print(json.dumps({"torch": str(torch.__version__), "machine": platform.machine(), "cpu": (cpu or [""])[0],
                  "capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}))
"""
CODES = """
import json, sys, torch
from lpwm.model import WorldModel
frames = (torch.arange(1536) ** 2 // 11 % 256).to(torch.uint8).reshape(2, 3, 16, 16)
out = {}
for folder in sys.argv[1:]:
    with torch.no_grad():
        out[folder] = WorldModel.from_pretrained(folder).encode(frames).tolist()
print(json.dumps(out))
"""
SAVE = """
import sys
from lpwm.model import WorldModel
WorldModel.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])
"""


class Old:
    """Version 0.1.0 in a process of its own, in the folder of golden files."""

    def __init__(self, package: Path) -> None:
        self.environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}

    def python(self, *words: str) -> Any:
        done = subprocess.run([sys.executable, *words], cwd=OUT, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)[:200]} failed: {done.stderr}")
        return json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else done.stdout

    def __call__(self, *words: str) -> Any:
        began = time.monotonic()
        made = self.python("-m", "lpwm", *words)
        print(f"lpwm {' '.join(words)[:90]}: {time.monotonic() - began:.1f} s", flush=True)
        return made

    def interrupt(self, command: list[str], step: int) -> Path:
        """Stop a training with Ctrl-C once it has logged `step`; the run's folder."""
        out = OUT / command[command.index("--out") + 1]
        child = subprocess.Popen(
            [sys.executable, "-m", "lpwm", *command],
            cwd=OUT, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while child.poll() is None:
            logs = list(out.glob("*/log.jsonl"))
            if logs and f'"step": {step},' in logs[0].read_text():
                child.send_signal(signal.SIGINT)
                break
        if child.wait() != 130:
            raise SystemExit(f"the training ended before it was interrupted (exit status {child.returncode}).")
        print(f"interrupted {logs[0].parent.name} after step {step}")
        return logs[0].parent


def write_recording(path: Path) -> None:
    """Frames and actions of a red square that moves, with no word about a world."""
    rng = np.random.default_rng(0)
    episodes, length = 12, 25
    frames = np.full((episodes * length, 16, 16, 3), 255, np.uint8)
    state, action = np.zeros((episodes * length, 2), np.float32), np.zeros((episodes * length, 2), np.float32)
    for episode in range(episodes):
        place = rng.uniform(3, 12, 2)
        for row in range(episode * length, (episode + 1) * length):
            state[row], action[row] = place, rng.uniform(-1, 1, 2)
            x, y = place.round().astype(int)
            frames[row, y - 1 : y + 2, x - 1 : x + 2] = (200, 30, 30)
            place = np.clip(place + action[row], 1, 14)
    action[length - 1 :: length] = np.nan
    with h5py.File(path, "w") as file:
        file.create_dataset("pixels", data=frames, compression="gzip", chunks=(length, 16, 16, 3))
        file["state"], file["action"] = state, action
        file["ep_len"] = np.full(episodes, length, np.int32)
        file["ep_offset"] = np.arange(episodes, dtype=np.int64) * length


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def weights(run: Path) -> Path:
    (path,) = run.glob("checkpoints/*/model.safetensors")
    return path


def config_digest(config: Any) -> str:
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def evaluate(old: Old, world: str, run: str) -> str:
    """The evaluation of a run, without a distance curve (Cube draws slowly); its path."""
    goals = ["random"] if world == "cube" else ["random", "dataset"]
    controls = CONTROLS.get(world, "nothing random").split()
    first = f"{run}/first.json"
    # Cube's first evaluation draws the curve's frames; the one that is kept repeats it without.
    old("eval", run, *PLANNING.split(), "--goals", *goals, "--controls", *controls, "--out", first, "--device", "cpu")
    content = json.loads((OUT / first).read_text())
    content["settings"]["curve"] = 0
    (OUT / first).write_text(json.dumps(content))
    kept = f"{run}/eval/golden.json"
    old("eval", run, "--repeat", first, "--out", kept, "--device", "cpu")
    (OUT / first).unlink()
    content = json.loads((OUT / kept).read_text())
    del content["repeats"]
    (OUT / kept).write_text(json.dumps(content) + "\n")
    return kept


def tidy() -> None:
    """Without what is not needed to load, continue or read; large files compressed."""
    for folder in [*OUT.rglob("tensorboard"), *OUT.rglob("episodes")]:
        shutil.rmtree(folder)
    for path in OUT.rglob("*.h5"):
        (path.parent / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
        path.unlink()


def make(old: Old) -> dict[str, Any]:
    expected: dict[str, Any] = {"made_with": old.python("-c", MACHINE)}
    write_recording(OUT / "recording.h5")
    expected["data"] = {}
    for name, command in DATA.items():
        made = old(*command.split(), "--out", name, "--json")
        expected["data"][name] = {
            "command": command.split(),
            "collected": made,
            "info": old("data", "info", name, "--json"),
        }
    old("data", "convert", "states.h5", "converted.h5", "--add-pixels", "--size", "16")
    expected["data"]["states.h5"]["converted"] = old("data", "info", "converted.h5", "--json")
    (OUT / "converted.h5").unlink()
    expected["data"]["recording.h5"] = {"info": old("data", "info", "recording.h5", "--json")}

    expected["runs"] = {}
    for name, command in RUNS.items():
        result = old(*command)
        run = OUT / result["run"]
        expected["runs"][name] = {
            "folder": result["run"],
            "command": command,
            "result": result,
            "weights": digest(weights(run)),
        }
        if name != "recording":
            expected["runs"][name]["eval"] = evaluate(old, name, result["run"])
    interrupted = old.interrupt(INTERRUPTED, 30)
    shutil.rmtree(OUT / "interrupted" / "data")
    expected["interrupted"] = {"folder": f"interrupted/{interrupted.name}", "command": INTERRUPTED}

    piecewise, wall = (expected["runs"][name]["folder"] for name in ("piecewise", "wall"))
    zones = ["interpret", piecewise, "--resolution", "6", "--frames", "60", "--folds", "2", "--device", "cpu"]
    sparsity = ["interpret", wall, "--what", "sparsity", "--frames", "60", "--device", "cpu"]
    expected["interpret"] = []
    for command, path in ((zones, f"{piecewise}/interpret/zones.json"), (sparsity, f"{wall}/interpret/sparsity.json")):
        old(*command, "--out", path)
        expected["interpret"].append({"command": command, "file": path})
    reported = {name: old("report", expected["runs"][name]["folder"], "--out", "page.html", "--json")
                for name in ("piecewise", "recording")}  # fmt: skip
    expected["report"] = reported
    (OUT / "page.html").unlink()

    (OUT / "pretrained").mkdir()
    old.python("-c", SAVE, piecewise, "pretrained")
    folders = [expected["runs"][name]["folder"] for name in RUNS] + ["pretrained"]
    expected["codes"] = old.python("-c", CODES, *folders)

    (OUT / "small.toml").write_text(GRID)
    old("sweep", "small.toml", "--out", "sweeps", "--workers", "1", "--device", "cpu", "--json")
    expected["sweep"] = {
        "status": old("sweep", "status", "sweeps/small", "--json"),
        "report": old("report", "sweeps/small", "--out", "page.html", "--json"),
    }
    for page in OUT.glob("page*"):
        page.unlink()

    recipes = old("recipes", "--json")
    expected["recipes"] = {name: config_digest(entry["config"]) for name, entry in recipes.items()}
    expected["grids"] = {}
    for name in GRIDS:
        cells = old("sweep", name, "--dry-run", "--json")["cells"]
        hashes = [cell["hash"] for cell in cells]
        expected["grids"][name] = {"cells": len(hashes), "digest": config_digest(hashes)}
    expected["params"] = old("params", "--json")
    others = sorted(p for p in HERE.iterdir() if p.suffix in (".json", ".npz", ".h5"))
    expected["golden"] = {p.name: digest(p) for p in others}
    return expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the wheel of 0.1.0, or a folder with its package")
    path = parser.parse_args().package
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(scratch)
            path = Path(scratch)
        old = Old(path.resolve())
        assert old("--version").strip() == "lpwm 0.1.0"
        expected = make(old)
    tidy()
    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    files = [p for p in OUT.rglob("*") if p.is_file()]
    print(f"{len(files)} files, {sum(p.stat().st_size for p in files) / 1e6:.2f} MB in {OUT.name}")


if __name__ == "__main__":
    main()
