"""Adam and AdamW as torch's, with the step of all parameters in one kernel where they lie in float32 on CUDA.

The classes bear the names of torch's and keep its state ("step", "exp_avg", "exp_avg_sq"), so that checkpoints and
state dicts go from one to the other. A step the kernel cannot make is torch's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

try:
    from lpwm.kernels import adam_kernel as kernels_adam
except ImportError:  # no Triton: a CPU build of torch
    kernels_adam = None  # type: ignore[assignment]

Tensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # parameter, gradient, m, v, step


def possible(parameters: Sequence[Tensor], **options: Any) -> bool:
    """Whether an optimizer made with these options would ever use the kernel for these parameters."""
    return bool(options.get("capturable")) and _understood(options) and _plain(parameters)


def _understood(group: dict[str, Any]) -> bool:
    return not (group.get("amsgrad") or group.get("maximize") or group.get("differentiable"))


def _plain(tensors: Sequence[Tensor]) -> bool:
    """Float32, dense and all on one device whose addresses a kernel can follow (not, say, a DTensor)."""
    return kernels_adam is not None and all(
        type(t) in (Tensor, torch.nn.Parameter)
        and t.dtype == torch.float32
        and t.device.type == kernels_adam.DEVICE
        and t.device == tensors[0].device
        and t.is_contiguous()
        for t in tensors
    )


class _OneLaunch(torch.optim.Adam):
    """The step of torch's Adam and its subclasses, made by `kernels_adam`.

    The kernel reads addresses from a table, which is copied to the device when they change: gradients are new tensors
    at each step, mostly where the last ones were. A captured graph copies it again at every replay, from memory that
    must stay as it was: keep the optimizer as long as the graph.
    """

    # On the class, as torch copies and unpickles optimizers without their other attributes.
    _last: tuple[Any, Tensor] | None = None  # the table as numbers, and on the device
    _spare: Tensor | None = None  # pinned memory for a capture, which had better not allocate it
    # Which kernels, for aligned tensors or others, are loaded: a capture had better not load any.
    _compiled: frozenset[bool] = frozenset()
    _captured: tuple[Tensor, ...] = ()  # the tables that graphs copy

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            found = self._gather()
            if found is None or not self._launch(*found):
                super().step()
        return loss

    def _gather(self) -> tuple[list[Tensors], list[tuple[int, ...]]] | None:
        """The tensors that have a gradient, and their rows of the table; None where torch must make the step."""
        if kernels_adam is None:
            return None
        if any(getattr(self, name, None) is not None for name in ("grad_scale", "found_inf")):  # by GradScaler
            return None
        tensors: list[Tensors] = []
        rows: list[tuple[int, ...]] = []
        first = 0
        for group in self.param_groups:
            lists: list[list[Tensor]] = [[] for _ in range(6)]
            if not group["capturable"] or not _understood(group) or not isinstance(group["lr"], Tensor):
                return None
            if group["weight_decay"] and not group["decoupled_weight_decay"]:
                return None
            self._init_group(group, *lists)  # torch's own: makes the states that are missing
            parameters, gradients, m, v, _, steps = lists
            betas = [float(b) for b in group["betas"]]
            logs = [math.log(b) if b else -math.inf for b in betas]
            constants = tuple(map(kernels_adam.bits, (group["weight_decay"], *betas, *logs, group["eps"])))
            for each in zip(parameters, gradients, m, v, steps, strict=True):
                size = each[0].numel()
                if any(t.numel() != size for t in each[1:4]):
                    return None
                tensors.append(each)
                rows.append((*(t.data_ptr() for t in (*each, group["lr"])), size, first, *constants))
                first += kernels_adam.blocks_of(size)
        rates = [group["lr"] for group in self.param_groups]
        return (tensors, rows) if _plain([t for each in tensors for t in each] + rates) else None

    def _launch(self, tensors: list[Tensors], rows: list[tuple[int, ...]]) -> bool:
        if not rows:
            return True
        with torch.cuda.device_of(tensors[0][0]):
            aligned = all(address % 16 == 0 for row in rows for address in row[:4])
            table = self._table(rows, tensors[0][0].device, aligned)
            if table is None:
                return False
            size, first = rows[-1][6:8]
            kernels_adam.step(table, first + kernels_adam.blocks_of(size), aligned)
        increment_version([t for p, _, *state in tensors for t in (p, *state)])
        return True

    def _table(self, rows: list[tuple[int, ...]], device: torch.device, aligned: bool) -> Tensor | None:
        """The rows on the device. None in a capture that no such step came before, or another capture since it."""
        if device.type != "cuda":
            return torch.tensor(rows)
        if torch.cuda.is_current_stream_capturing():
            if self._spare is None or len(self._spare) < len(rows) or aligned not in self._compiled:
                return None
            pinned, self._spare = self._spare[: len(rows)], None
            pinned.copy_(torch.tensor(rows))
            self._captured = (*self._captured, pinned)
            return torch.empty(pinned.shape, dtype=torch.int64, device=device).copy_(pinned, non_blocking=True)
        self._compiled |= {aligned}
        if self._spare is None:
            most = sum(len(group["params"]) for group in self.param_groups)
            self._spare = torch.empty(most, len(kernels_adam.ROW), dtype=torch.int64, pin_memory=True)
        key = (torch.cuda.current_stream().cuda_stream, rows)
        if self._last is None or self._last[0] != key:
            # torch gives pinned memory to others only once the copy is made.
            self._last = key, torch.tensor(rows).pin_memory().to(device, non_blocking=True)
        return self._last[1]


class Adam(_OneLaunch):
    """`torch.optim.Adam`."""


class AdamW(_OneLaunch, torch.optim.AdamW):
    """`torch.optim.AdamW`."""
