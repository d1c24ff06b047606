"""What made a number besides its config: the code, the machine, the time it took; and the records of a log.

commit    of the checkout that is imported ("+changes" when files differ from it), or $LPWM_COMMIT where there is
          no checkout, or null
source    a digest of the package's own Python files: the same code gives the same, checkout or not
"""

import hashlib
import math
import os
import platform
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lpwm.core.config import renamed
from lpwm.core.errors import UserError
from lpwm.core.files import read_bytes, write_whole
from lpwm.core.json import dump_json, from_json, parse_json, read_json
from lpwm.core.memory import need_memory
from lpwm.core.version import __version__

if TYPE_CHECKING:
    import torch

SESSIONS = "training.json"
LOG = "log.jsonl"
_MOST = 2**33  # bytes of a log
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


def device_name(device: "torch.device") -> str:
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} thread{'s' if torch.get_num_threads() != 1 else ''}"


@dataclass(frozen=True)
class Session:
    """One stretch of training."""

    from_step: int = 0
    to_step: int = 0
    seconds: float = 0.0
    device: str | None = None
    processes: int | None = None
    versions: dict[str, str] | None = None
    commit: str | None = None
    source: str | None = None


def write_sessions(
    folder: Path,
    earlier: list[Session],
    first: int,
    last: int,
    seconds: float,
    device: "torch.device",
    processes: int = 1,
) -> None:
    """RUN/training.json: the earlier stretches of training, and this one as far as it has come."""
    entry = Session(first, last, round(seconds, 1), device_name(device), processes, versions(), **origin())
    write_whole(folder / SESSIONS, dump_json([*earlier, entry], indent=1))


def sessions(folder: Path) -> list[Session]:
    """What was recorded; [] for runs without, and where the file is damaged (it is a note, not the run)."""
    try:
        return [from_json(Session, entry) for entry in read_json(folder / SESSIONS, of=list)]
    except UserError:
        return []


@dataclass(frozen=True)
class Record:
    """One line of a log: what was measured at a step, by name, or the message of an event."""

    step: int
    kind: str
    values: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, line: str) -> "Record | None":
        """None for a line that a kill left torn."""
        try:
            fields = renamed(parse_json(line, LOG))
        except UserError:
            return None
        step, kind = fields.pop("step", None), fields.pop("kind", None)
        return cls(step, kind, fields) if isinstance(step, int) and isinstance(kind, str) else None

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step, "kind": self.kind, **self.values} if self.values else {}

    def number(self, name: str) -> float:
        """NaN where it was not logged or not finite."""
        value = self.values.get(name)
        return float(value) if isinstance(value, (int, float)) else math.nan

    def by_depth(self, name: str) -> list[float]:
        """A logged list; empty where there is none."""
        value = self.values.get(name)
        return [float(v) if isinstance(v, (int, float)) else math.nan for v in value] if isinstance(value, list) else []

    @property
    def message(self) -> str:
        return str(self.values.get("message") or "")


def read_log(path: str | Path, kind: Kind | None = None) -> list[Record]:
    """The records of a log.jsonl (or of the run folder that holds it), of one kind or all, torn lines left out."""
    path = Path(path)
    path = path / LOG if path.is_dir() else path
    if not path.exists():
        raise UserError(f"there is no log {path}: give a run folder, or its {LOG}.")
    need_memory(str(path), 8 * path.stat().st_size)  # a record takes several times its line
    records = map(Record.from_json, read_bytes(path, _MOST).decode("utf-8", "replace").split("\n"))
    return [r for r in records if r is not None and kind in (None, r.kind)]


def last_record(folder: Path, kind: Kind) -> Record:
    """The last of a kind in a run's log; one of step 0 without values where there is none."""
    records = read_log(folder, kind) if (folder / LOG).exists() else []
    return records[-1] if records else Record(0, kind)
