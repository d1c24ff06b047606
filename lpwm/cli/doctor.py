"""lpwm doctor: what is installed, which worlds and devices work, and how to fix what does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass

from lpwm.core.version import __version__

EXTRAS = {  # extra: (import name, distribution, what it is for)
    "pusht": [("pymunk", "pymunk", "the PushT world")],
    "cube": [("mujoco", "mujoco", "the Cube world")],
    "cube-build": [
        ("ogbench", "ogbench", "making the Cube scene anew; its packed scene comes with lpwm"),
        ("dm_control", "dm_control", "making the Cube scene anew; its packed scene comes with lpwm"),
    ],
    "video": [("av", "av", "reading mp4 data sets")],
    "lance": [
        ("lance", "pylance", "reading and writing Lance tables"),
        ("hdf5plugin", "hdf5plugin", "reading HDF5 files compressed with Blosc"),
    ],
    "cluster": [("ray", "ray", "sweeps on Ray"), ("submitit", "submitit", "sweeps on Slurm")],
    "wandb": [("wandb", "wandb", "logging to Weights & Biases")],
}
_SAME = (
    "torch numpy scipy einops gymnasium h5py safetensors huggingface_hub tyro rich tensorboard matplotlib plotly jinja2"
)
CORE = {name: name for name in _SAME.split()} | {"sklearn": "scikit-learn", "PIL": "pillow"}  # import: distribution


@dataclass(frozen=True)
class Args:
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Finding:
    what: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = False  # a core part: its absence makes the exit status 1


def _package(module: str, distribution: str, remedy: str, needed: bool, purpose: str = "") -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding(distribution, False, f"missing{', needed for ' + purpose if purpose else ''}", remedy, needed)
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        version = "present, version unknown"
    return Finding(distribution, True, version, needed=needed)


def examine() -> list[Finding]:
    ok = sys.version_info >= (3, 11)
    findings = [Finding("python", ok, platform.python_version(), "" if ok else "use Python 3.11 or newer", True)]
    for module, distribution in CORE.items():
        findings.append(_package(module, distribution, f"pip install {distribution}", True))
    for extra, packages in EXTRAS.items():
        for module, distribution, purpose in packages:
            findings.append(_package(module, distribution, f"pip install 'lpwm[{extra}]'", False, purpose))
    findings += _devices() + drawing() + _worlds()
    free = shutil.disk_usage(os.getcwd()).free / 1e9
    findings.append(Finding("disk", free > 2, f"{free:.1f} GB free here", "" if free > 2 else "free some disk space"))
    return findings


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
    from lpwm.core.errors import UserError
    from lpwm.worlds.cube import draw as cube_draw

    try:
        return [Finding("cube drawing", True, f"{cube_draw.backend()}, no screen needed")]
    except UserError as error:
        remedy = "apt-get install libegl1 libopengl0 libgl1-mesa-dri, or libosmesa6"
        return [Finding("cube drawing", False, str(error), remedy)]


def _worlds() -> list[Finding]:
    """Each world is built, stepped and drawn once: a world that imports may still not work."""
    from lpwm import worlds

    findings = []
    for name in worlds.WORLDS:
        try:
            world = worlds.make_world(name)
            state = world.sample_state(1, (0, "doctor"))
            frame = world.render(state)
            findings.append(Finding(f"world {name}", True, f"works, frames {tuple(frame.shape[1:])}"))
        except Exception as error:  # report every kind of failure, with its own words
            findings.append(Finding(f"world {name}", False, f"{type(error).__name__}: {error}", "see the message"))
    return findings


def run(args: Args) -> int:
    findings = examine()
    if args.json:
        print(json.dumps({"lpwm": __version__, "findings": [asdict(f) for f in findings]}, indent=2))
    else:
        print(f"lpwm {__version__} on {platform.system()} {platform.machine()}")
        width = max(len(f.what) for f in findings)
        for f in findings:
            mark = "ok" if f.ok else ("!!" if f.needed else "--")
            print(f" {mark}  {f.what:<{width}}  {f.detail}" + (f"  →  {f.remedy}" if f.remedy else ""))
    return 0 if all(f.ok or not f.needed for f in findings) else 1
