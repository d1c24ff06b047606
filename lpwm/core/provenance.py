"""What made a number besides its config: the code, the machine, the time it took.

commit    of the checkout that is imported ("+changes" when files differ from it), or $LPWM_COMMIT where there is
          no checkout, or null
source    a digest of the package's own Python files: the same code gives the same, checkout or not
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

from lpwm.core.files import write_whole
from lpwm.core.version import __version__

SESSIONS = "training.json"
ROOT = Path(__file__).parents[1]


@cache
def origin() -> dict[str, str | None]:
    digest = hashlib.sha256()
    for path in sorted(ROOT.rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return {"commit": os.environ.get("LPWM_COMMIT") or _commit(), "source": digest.hexdigest()[:16]}


def _commit() -> str | None:
    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", "version.py") is None:  # installed inside somebody else's checkout
        return None
    head = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
    return head and head[:12] + ("+changes" if changed else "")


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} thread{'s' if torch.get_num_threads() != 1 else ''}"


def add_session(folder: Path, first: int, last: int, seconds: float, device: torch.device, processes: int = 1) -> None:
    """Append one stretch of training to RUN/training.json."""
    entry = {
        "from_step": first,
        "to_step": last,
        "seconds": round(seconds, 1),
        "device": device_name(device),
        "processes": processes,
        "versions": {"lpwm": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        **origin(),
    }
    write_whole(folder / SESSIONS, json.dumps([*sessions(folder), entry], indent=1) + "\n")


def sessions(folder: Path) -> list[dict[str, Any]]:
    """What was recorded; [] for runs of before, and where the file is damaged (it is a note, not the run)."""
    try:
        found = json.loads((folder / SESSIONS).read_text())
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []
