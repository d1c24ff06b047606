"""What made a number besides its config: the code, the machine, the time it took, what was logged.

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
from typing import TYPE_CHECKING, Any, Literal

from lpwm.core.config import renamed
from lpwm.core.errors import UserError
from lpwm.core.files import write_whole
from lpwm.core.version import __version__

if TYPE_CHECKING:
    import torch

SESSIONS = "training.json"
LOG = "log.jsonl"
ROOT = Path(__file__).parents[1]
Kind = Literal["train", "val", "event"]  # of a log record


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

    if git("ls-files", "--error-unmatch", "core/version.py") is None:  # installed inside somebody else's checkout
        return None
    head = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
    return head and head[:12] + ("+changes" if changed else "")


def versions() -> dict[str, str]:
    import torch

    return {"lpwm": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def device_name(device: torch.device) -> str:
    import torch

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
        "versions": versions(),
        **origin(),
    }
    write_whole(folder / SESSIONS, json.dumps([*sessions(folder), entry], indent=1) + "\n")


def sessions(folder: Path) -> list[dict[str, Any]]:
    """What was recorded; [] for runs without, and where the file is damaged (it is a note, not the run)."""
    try:
        entries = json.loads((folder / SESSIONS).read_text())
    except (OSError, ValueError):
        return []
    return entries if isinstance(entries, list) else []


def read_log(path: str | Path, kind: Kind | None = None) -> list[dict[str, Any]]:
    """The records of a log.jsonl (or of the run folder that holds it), of one kind or all, torn lines left out."""
    path = Path(path)
    path = path / LOG if path.is_dir() else path
    if not path.exists():
        raise UserError(f"there is no log {path}: give a run folder, or its {LOG}.")
    records = (parse_record(line) for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return [r for r in records if r is not None and (kind is None or r["kind"] == kind)]


def parse_record(line: str) -> dict[str, Any] | None:
    """A record of a log, or None for a line that a kill left torn."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int) or "kind" not in record:
        return None
    return renamed(record)
