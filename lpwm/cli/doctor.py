"""lpwm doctor: what is installed, which worlds and devices work, and how to fix what does not."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from lpwm.cli.terminal import say
from lpwm.core.compiled import cache_folder
from lpwm.core.errors import UserError
from lpwm.core.version import __version__
from lpwm.worlds import WORLDS, make_world

# What an extra is for; its packages are those the installed lpwm declares.
EXTRAS = {
    "pusht": "the PushT world",
    "cube": "the Cube world",
    "cube-build": "rebuilding the Cube scene",
    "video": "reading mp4 data sets",
    "lerobot": "LeRobot data sets, and videos with tables",
    "lance": "Lance tables, and HDF5 files compressed with Blosc",
    "cluster": "sweeps on Ray and Slurm",
    "wandb": "logging to Weights & Biases",
}


@dataclass(frozen=True)
class Args:
    json: bool = False  # Print JSON.


@dataclass(frozen=True)
class Finding:
    what: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = False  # a core part: its absence makes the exit status 1


def _packages() -> list[Finding]:
    """Every package that lpwm needs, or that an extra brings."""
    findings = []
    for line in importlib.metadata.requires("lpwm") or ():
        name, extra = re.split(r"[^\w-]", line, maxsplit=1)[0], (re.search(r'extra == "(.*)"', line) or [""] * 2)[1]
        if extra and extra not in EXTRAS:
            continue
        try:
            findings.append(Finding(name, True, importlib.metadata.version(name), needed=not extra))
        except importlib.metadata.PackageNotFoundError:
            detail = f"missing, needed for {EXTRAS[extra]}" if extra else "missing"
            remedy = f"pip install 'lpwm[{extra}]'" if extra else f"pip install {name}"
            findings.append(Finding(name, False, detail, remedy, not extra))
    return findings


def examine() -> list[Finding]:
    ok = sys.version_info >= (3, 11)
    python = Finding("python", ok, platform.python_version(), "" if ok else "use Python 3.11 or newer", True)
    free = shutil.disk_usage(os.getcwd()).free / 1e9
    disk = Finding("disk", free > 2, f"{free:.1f} GB free here", "" if free > 2 else "free some disk space")
    with ThreadPoolExecutor(1) as aside:  # MuJoCo compiles its scene while torch is imported
        cube = aside.submit(lambda: (drawing(), _world("cube")))
        devices = _devices()
        others = [_world(name) for name in WORLDS if name != "cube"]
        drawn, cube_works = cube.result()
    return [python, *_packages(), *devices, *drawn, cube_works, *others, disk, _kept()]


def _kept() -> Finding:
    """The folder of compiled code, and its size."""
    folder = cache_folder()
    size = sum(p.lstat().st_size for p in folder.rglob("*")) / 1e6
    place = next(p for p in (folder, *folder.parents) if p.exists())
    remedy = "" if os.access(place, os.W_OK) and place.is_dir() else "set LPWM_CACHE to a folder that can be written"
    return Finding("compiled code", not remedy, f"{folder}, {size:.1f} MB", remedy)


def _devices() -> list[Finding]:
    try:
        import torch
    except Exception as error:  # a broken install must not break the doctor
        return [Finding("torch import", False, f"{type(error).__name__}: {error}", "reinstall torch", True)]
    cores = os.cpu_count() or 1
    findings = [Finding("cpu", True, f"{cores} cores, torch uses {torch.get_num_threads()} threads", needed=True)]
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(i)
            findings.append(Finding(f"cuda:{i}", True, f"{p.name}, {p.total_memory / 2**30:.0f} GiB"))
    else:
        remedy = "" if torch.version.cuda else "this torch is a CPU build; install a CUDA build to use a GPU"
        findings.append(Finding("cuda", False, "no GPU that torch can use", remedy))
    return findings


def drawing() -> list[Finding]:
    """What MuJoCo draws with, where it is installed."""
    if importlib.util.find_spec("mujoco") is None:
        return []
    from lpwm.worlds.cube.model import scene

    try:
        scene()  # before what imports torch
        from lpwm.worlds.cube import draw as cube_draw

        return [Finding("cube drawing", True, f"{cube_draw.backend()}, no screen needed")]
    except UserError as error:
        remedy = "apt-get install libegl1 libopengl0 libgl1-mesa-dri, or libosmesa6"
        return [Finding("cube drawing", False, str(error), remedy)]


def _world(name: str) -> Finding:
    """A world is built and drawn once: one that imports may still not work."""
    try:
        world = make_world(name)
        frame = world.render(world.sample_state(1, (0, "doctor")))
        return Finding(f"world {name}", True, f"works, frames {tuple(frame.shape[1:])}")
    except Exception as error:  # report every kind of failure, with its own words
        return Finding(f"world {name}", False, f"{type(error).__name__}: {error}", "see the message")


def run(args: Args) -> int:
    findings = examine()
    if args.json:
        say(json.dumps({"lpwm": __version__, "findings": [asdict(f) for f in findings]}, indent=2))
    else:
        say(f"lpwm {__version__} on {platform.system()} {platform.machine()}")
        width = max(len(f.what) for f in findings)
        for f in findings:
            mark = "ok" if f.ok else ("!!" if f.needed else "--")
            line, remedy = f" {mark}  {f.what:<{width}}  {f.detail}", f"  →  {f.remedy}" if f.remedy else ""
            say(line + ("\n" + " " * (width + 5) if len(line + remedy) > 80 else "") + remedy)
    return 0 if all(f.ok or not f.needed for f in findings) else 1
