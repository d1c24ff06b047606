"""What attention's kernels cost on one GPU in each form that they have: forwards, dq, and dk and dv.

    python bench/attention.py [--json OUT] [--seconds 120] [--frames 256 512]
    TRITON_INTERPRET=1 python bench/attention.py --toy      (no GPU: whether the script and the forms are right)

Forms are compiled and compared with float32 in processes of their own, side by side; one that fails is printed and left
out. Then each is timed alone, in a CUDA graph, and at last both gradients after each other as they are in use and in
their fastest forms (alone, the second does not find in the cache what the first has read). After --seconds nothing new
is begun.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from common import trials
from common.trials import far, microseconds, now

try:
    from lpwm.kernels import attention as kernels
    from lpwm.kernels.attention import Tiles
except ImportError:  # no Triton: --help still helps
    kernels = None  # type: ignore[assignment]

NAMES = {"forward": "FORWARD", "dq": "DQ", "dkv": "DKV"}
IN_USE: dict[str, Tiles] = {kind: getattr(kernels, name) for kind, name in NAMES.items()} if kernels else {}


@dataclass(frozen=True)
class Size:
    n: int = 257
    heads: int = 3
    d: int = 64
    trial: int = 4  # frames


TOY = Size(n=65, heads=1, trial=2)


def forms(kind: str, toy: bool) -> list[Tiles]:
    """Those in use first, then mostly one change at a time."""
    use = IN_USE[kind]
    masked = replace(use, lone=False)
    if toy:
        wrong = replace(use, keys=48, queries=48)  # no power of two: fails
        return [use, replace(masked, even=False), replace(use, rows=32, keys=32), wrong]
    wide = replace(use, rows=128, warps=8)
    ways = [masked, replace(use, stages=5 - use.stages)]  # 2 or 3
    ways += [replace(use, registers=0), replace(use, registers=168)]
    if kind == "dkv":
        ways += [replace(use, even=False), replace(masked, even=False), wide]
        ways += [replace(use, queries=64, registers=168), replace(wide, queries=64, stages=2)]
    else:
        ways += [replace(use, keys=32), replace(use, keys=128, stages=2), wide]
        ways += [replace(wide, keys=32) if kind == "dq" else replace(wide, keys=128, stages=2)]
    return [use, *ways]


def jobs(toy: bool) -> list[tuple[str, Tiles]]:
    return [(kind, t) for kind in NAMES for t in forms(kind, toy)]


def short(t: Tiles) -> str:
    plain = asdict(Tiles())
    return ", ".join(f"{k} {v}" for k, v in asdict(t).items() if v != plain[k]) or "plain"


class Data:
    """One layer's tensors, and each kernel on them."""

    def __init__(self, size: Size, frames: int, device: str) -> None:
        self.size, self.frames = size, frames
        dtype = torch.bfloat16 if device == "cuda" else torch.float32  # the interpreter truncates bfloat16
        g = torch.Generator(device).manual_seed(1)
        width = size.heads * size.d
        self.qkv = torch.randn(frames, size.n, 3 * width, generator=g, device=device).to(dtype)
        self.grad = torch.randn(frames, size.n, width, generator=g, device=device).to(dtype)
        self.out, self.dqkv = torch.empty_like(self.grad), torch.full_like(self.qkv, float("nan"))
        self.lse = torch.empty(frames, size.heads, size.n, device=device)
        self.sums = self.lse
        self.use(IN_USE)
        self.forward()

    @staticmethod
    def use(chosen: dict[str, Tiles]) -> None:
        for kind, tiles in chosen.items():
            setattr(kernels, NAMES[kind], tiles)

    def forward(self) -> None:
        kernels.attention_forward(self.qkv, self.size.heads, self.out, self.lse)

    def dq(self) -> tuple[torch.Tensor, torch.Tensor]:
        return kernels.grad_queries(self.grad, self.qkv, self.out, self.lse, self.size.heads, self.dqkv, self.sums)

    def call(self, kinds: dict[str, Tiles]) -> Callable[[], Any]:
        """One kernel in the form given, or both gradients; the others as they are in use."""
        self.use(IN_USE | kinds)
        shape = (kernels.pieces(self.frames, self.size.n), self.qkv.shape[-1])
        self.sums = torch.full(shape, float("nan"), device=self.qkv.device)
        if "forward" in kinds:
            return self.forward
        if "dkv" not in kinds:
            return self.dq
        if "dq" in kinds:
            return lambda: kernels.attention_backward(
                self.grad, self.qkv, self.out, self.lse, self.size.heads, self.dqkv, self.sums
            )
        e, delta = self.dq()
        return lambda: kernels.grad_keys(self.grad, self.qkv, e, delta, self.size.heads, self.dqkv)

    def error(self, kind: str, tiles: Tiles) -> float:
        """The largest distance from float32 of what the kernel makes."""
        wide = self.qkv.float().requires_grad_()
        q, k, v = (t.unflatten(-1, (self.size.heads, -1)).transpose(1, 2) for t in wide.chunk(3, -1))
        s = q @ k.transpose(-1, -2) * self.size.d**-0.5
        o = (s.softmax(-1) @ v).transpose(1, 2).flatten(-2)
        (d,) = torch.autograd.grad(o, wide, self.grad.float())
        self.out.copy_(o.detach())  # the gradients' own errors
        self.lse.copy_(s.detach().logsumexp(-1) * 1.4426950408889634)
        if kind == "forward":
            self.out.fill_(float("nan"))
        run = self.call({kind: tiles})
        run()
        if kind == "forward":
            return max(far(self.out, o.detach()), far(self.lse / 1.4426950408889634, s.detach().logsumexp(-1)))
        got, want = self.dqkv.chunk(3, -1), d.chunk(3, -1)
        if kind == "dkv":
            return max(far(got[1], want[1]), far(got[2], want[2]))
        sums, total = self.sums.sum(0).chunk(3), d.sum((0, 1)).chunk(3)  # of the keys' it is 0 up to rounding
        return max(far(got[0], want[0]), far(sums[0], total[0]), far(sums[2], total[2]))


def right(args: argparse.Namespace, tried: dict[int, dict]) -> list[tuple[str, Tiles, float]]:
    """The forms whose errors are not above those of the forms in use; the others are printed."""
    kept: list[tuple[str, Tiles, float]] = []
    measure: dict[str, float] = {}
    for index, (kind, tiles) in enumerate(jobs(args.toy)):
        row = tried.get(index, {"failed": "not compiled in time"})
        error = row.get("error", float("nan"))
        first = measure.setdefault(kind, error if tiles == IN_USE[kind] and error < 0.02 else 0.005)
        if "failed" not in row and not error <= 1.2 * first + 2e-6:
            row["failed"] = f"off by {error:.1e}, the form in use by {first:.1e}"
        if "failed" in row:
            print(f"  left out  {kind:7} {short(tiles)}: {row['failed']}", flush=True)
        else:
            kept.append((kind, tiles, error))
    return kept


def time_all(args: argparse.Namespace, frames: int, kept: list[tuple[str, Tiles, float]]) -> list[dict]:
    rows: list[dict] = []
    data = Data(TOY if args.toy else Size(), frames, args.device)

    def measure(label: str, kinds: dict[str, Tiles], error: float | None) -> None:
        row = {"frames": frames, "kind": label, "tiles": {k: asdict(t) for k, t in kinds.items()}, "error": error}
        name = f"{frames} {label:8} {'; '.join(short(t) for t in kinds.values())}"
        if now() > args.seconds:
            print(f"  left out  {name}: no time left", flush=True)
            return
        try:
            row["us"] = microseconds(data.call(kinds), args.device, times=20, groups=5)
        except Exception as problem:
            print(f"  left out  {name}: {trials.said(problem)}", flush=True)
            return
        rows.append(row)
        print(f"  {row['us']:8.1f} us  {f'error {error:.1e}' if error else '':13}  {name}", flush=True)

    for kind, tiles, error in kept:
        measure(kind, {kind: tiles}, error)
    best = {}
    for kind in NAMES:
        of = [r for r in rows if r["kind"] == kind]
        if of:
            top = min(of, key=lambda r: r["us"])
            best[kind] = Tiles(**top["tiles"][kind])
            print(f"best {frames} {kind:7} {top['us']:8.1f} us  {short(best[kind])}", flush=True)
    if {"dq", "dkv"} <= best.keys():
        for chosen in (IN_USE, best):
            measure("backward", {kind: chosen[kind] for kind in ("dq", "dkv")}, None)
    return rows


def main() -> None:
    parser = trials.parser(__doc__, 120.0)
    parser.add_argument("--frames", nargs="*", type=int, default=None)
    args = parser.parse_args()
    trials.begin(args, kernels is not None)
    every, size = jobs(args.toy), TOY if args.toy else Size()
    if args.trial:
        trials.trial(args, len(every), lambda i: Data(size, size.trial, args.device).error(*every[i]))
        return
    tried = trials.try_all(args, __file__, [], 0.6 * args.seconds)
    print(f"{len(tried)} of {len(every)} forms tried in {now():.0f} s", flush=True)
    kept = right(args, tried)
    found: dict[str, Any] = {**trials.machine(args.device), "kernels": []}
    for frames in args.frames or ([2] if args.toy else [256, 512]):
        found["kernels"] += time_all(args, frames, kept)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1))
    print(f"done in {now():.0f} s", flush=True)


if __name__ == "__main__":
    main()
