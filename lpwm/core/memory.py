"""How much memory there is to take."""

from pathlib import Path
from typing import TYPE_CHECKING

from lpwm.core.errors import UserError

if TYPE_CHECKING:
    import torch

_GROUP = Path("/sys/fs/cgroup")


def free_bytes(device: "torch.device | None" = None) -> float:
    """Free memory of the device; of the host what is available, or less where a control group sets a limit."""
    if device is not None and device.type == "cuda":
        import torch

        return float(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as f:
            free = next(1024.0 * int(line.split()[1]) for line in f if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux: no check is better than a wrong one
        return float("inf")
    return min(free, group_free())


def need_memory(what: str, size: float) -> None:
    """Refuse before `size` bytes are allocated on the host that are more than half of what is free."""
    free = free_bytes()
    if size > 0.5 * free:
        raise UserError(
            f"{what} takes {size / 1e9:.1f} GB, more than half of the {free / 1e9:.1f} GB of memory that are free: "
            "use a machine with more memory, or less of it."
        )


def group_free(folder: Path = _GROUP) -> float:
    """What the control group of a container leaves: its limit less its use, caches of files not counted."""
    try:
        limit = float((folder / "memory.max").read_text())
        used = float((folder / "memory.current").read_text())
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0.0, limit - used + float(fields.get("inactive_file", 0)))
    except (OSError, ValueError):  # no such group, or its limit is "max"
        return float("inf")
