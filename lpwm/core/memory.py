"""How much memory there is to take."""

from __future__ import annotations

from pathlib import Path

import torch

_GROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> float:
    """Free memory of the device; of the host what is available, or less where a control group sets a limit."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as f:
            free = next(1024.0 * int(line.split()[1]) for line in f if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux: no check is better than a wrong one
        return float("inf")
    return min(free, group_free())


def group_free(folder: Path = _GROUP) -> float:
    """What the control group of a container leaves: its limit less its use, caches of files not counted."""
    try:
        limit = float((folder / "memory.max").read_text())
        used = float((folder / "memory.current").read_text())
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0.0, limit - used + float(fields.get("inactive_file", 0)))
    except (OSError, ValueError):  # no such group, or its limit is "max"
        return float("inf")
