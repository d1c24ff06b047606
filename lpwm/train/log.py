"""What a run logs: JSONL and TensorBoard always, Weights & Biases and a console by choice.

`log.jsonl` holds one JSON object per record: step, time (seconds since 1970), kind ("train", "val" or "event"), then
its values. A record of step s belongs to the state after s steps, so a run that resumes from a checkpoint of step s
keeps the records up to s and the file reads as one run; log step s before saving it.
"""

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from lpwm.core.errors import UserError, need
from lpwm.core.files import disk_errors, make_folder, read_bytes, write_whole
from lpwm.core.provenance import LOG, Kind, Record, last_record, read_log
from lpwm.train.progress import Progress

Value = Tensor | float | int | bool | str | None | Sequence[float]
__all__ = ["LOG", "Kind", "Logger", "flatten", "keep_until", "last_record", "read_log", "to_host"]
_RECENT = 8  # log points over which the rate is taken


class Logger:
    """`log(step, values)` writes a record everywhere and returns it as plain numbers. The values may be tensors of any
    device: all of them come to the host in one transfer, the only wait for the device. Without a folder (ranks other
    than the first) nothing is written."""

    def __init__(
        self,
        folder: str | Path | None,
        *,
        total_steps: int,
        start_step: int = 0,
        tensorboard: bool = True,
        wandb: str | None = None,
        console: bool = True,
        config: Mapping[str, Any] | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start_step`: 0 begins anew, s > 0 continues from a checkpoint of step s. `wandb`: the project's name.
        `config`: what Weights & Biases shows as the run's config. `stream`: instead of stderr."""
        self._clock = clock
        self._recent: deque[tuple[int, float]] = deque([(start_step, clock())], maxlen=_RECENT)
        self._file: TextIO | None = None
        self._board: Any = None
        self._wandb: Any = None
        self._progress: Progress | None = None
        if folder is None:
            return
        folder = Path(folder)
        install = "Weights & Biases needs the package wandb: pip install 'lpwm[wandb]'."
        module = need("wandb", install) if wandb else None  # refused before anything is written
        make_folder(folder)
        self._path = folder / LOG
        keep_until(self._path, start_step)
        with disk_errors(self._path):
            self._file = self._path.open("a", encoding="utf-8")
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter  # slow to import, and only the first rank needs it

            # Events from this step on, written by a run that was killed, are hidden by the reader.
            purge = start_step + 1 if start_step > 0 else 0
            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)
        if module is not None:  # the folder names the run, so that a resumed run continues its own curves
            named = {"id": folder.name, "name": folder.name, "dir": str(folder)}
            self._wandb = module.init(project=wandb, resume="allow", config=dict(config or {}), **named)
        if console:
            self._progress = Progress(total_steps, start_step, stream or sys.stderr, clock)

    def log(self, step: int, values: Mapping[str, Value], kind: Kind = "train") -> dict[str, Any]:
        """Write a record and return it. Tensors are scalars or lists; what is not finite is null in the file."""
        record = to_host(values)
        if kind == "train":
            record.setdefault("steps_per_second", self._rate(step))
        self._write(step, kind, record)
        numbers = flatten(record)
        if self._board is not None:
            with disk_errors(self._path.with_name("tensorboard")):
                for name, value in numbers.items():
                    self._board.add_scalar(f"{kind}/{name}", value, step)
                self._board.flush()  # a killed run keeps what it has logged
        if self._wandb is not None:
            self._wandb.log({f"{kind}/{name}": value for name, value in numbers.items()}, step=step)
        if self._progress is not None:
            self._progress.show(step, kind, numbers)
        return record

    def event(self, step: int, message: str, **values: Value) -> None:
        """Something that happened (resumed, dead, out of memory …), in a sentence."""
        self._write(step, "event", {"message": message, **to_host(values)})
        if self._board is not None:
            self._board.add_text("event", message, step)
            self._board.flush()
        if self._progress is not None:
            self._progress.say(message)

    def close(self) -> None:
        for part in (self._progress, self._board, self._file):
            if part is not None:
                with disk_errors(self._path):
                    part.close()
        if self._wandb is not None:
            self._wandb.finish()
        self._progress = self._board = self._wandb = self._file = None

    def __enter__(self) -> "Logger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, step: int, kind: str, record: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        line = {"step": step, "time": round(time.time(), 3), "kind": kind, **_plain(record)}
        with disk_errors(self._path):
            # A file that was removed or replaced takes records and keeps none.
            if self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino:
                raise UserError(f"{self._path} was taken over by another process: this one stops.")
            self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
            self._file.flush()

    def _rate(self, step: int) -> float:
        """Steps a second over the last log points. The transfer has waited for the device, so it is the device's."""
        now = self._clock()
        first, since = self._recent[0]
        self._recent.append((step, now))
        return (step - first) / (now - since) if now > since and step > first else math.nan


def to_host(values: Mapping[str, Value]) -> dict[str, Any]:
    """The same with tensors as floats (0-d) or lists of floats (1-d), through one transfer per device in use."""
    out: dict[str, Any] = dict(values)
    tensors = {name: value.detach() for name, value in values.items() if isinstance(value, Tensor)}
    for name, value in tensors.items():
        if value.ndim > 1:
            raise UserError(f"cannot log {name!r} of shape {tuple(value.shape)}: log scalars or lists.")
    for device in {value.device for value in tensors.values()}:
        here = {name: value for name, value in tensors.items() if value.device == device}
        wide = torch.float32 if device.type == "mps" else torch.float64
        flat = iter(torch.cat([value.reshape(-1).to(wide) for value in here.values()]).tolist())
        for name, value in here.items():
            piece = [next(flat) for _ in range(value.numel())]
            out[name] = piece if value.ndim else piece[0]
    return out


def flatten(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record; the entries of list x become x_1, x_2, …"""
    out: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, (int, float)):
            out[name] = float(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            out |= {f"{name}_{i}": float(x) for i, x in enumerate(value, start=1)}
    return out


def keep_until(path: Path, step: int) -> None:
    """Drop the records after `step` (all of them when it is 0) and torn lines: the whole file changes, or nothing."""
    if not path.exists():
        return
    with disk_errors(path):
        lines = read_bytes(path, 2**33).splitlines(keepends=True)
        records = [Record.from_json(line.decode("utf-8", errors="replace")) for line in lines]
        kept = [line for line, r in zip(lines, records, strict=True) if r is not None and 0 < step >= r.step]
        write_whole(path, b"".join(line.rstrip(b"\n") + b"\n" for line in kept))  # anew: who had it open sees that


def _plain(value: Any) -> Any:
    """JSON has no NaN: null. Nine digits carry a float32 exactly."""
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value
