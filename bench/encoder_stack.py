"""What the encoder's operator costs on one GPU in each form that its kernels have: each alone, and all together.

    python bench/encoder_stack.py [--json OUT] [--seconds 90] [--sizes pusht tiny]
    TRITON_INTERPRET=1 python bench/encoder_stack.py --toy      (no GPU: whether the script and the forms are right)

Kernels are compiled and compared with float32 in processes of their own, side by side; one that fails is printed and
left out. Then each is timed alone, and the best of them together as the whole operator, from patches to what the last
block hears, forwards and backwards in a CUDA graph (no torch.compile). The fastest combination whose errors are not
above those of the forms in use is written by width ("settings"), for `bench/train_step.py --stack OUT`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from common import trials
from common.trials import far, microseconds, now, said, worst

from lpwm.kernels import encoder as attention
from lpwm.kernels import settings as kernels_settings
from lpwm.kernels import stack
from lpwm.kernels.settings import DEFAULT, GeluTiles, LastTiles, NormTiles, Product, Settings

CALLS = 10, 7  # in a graph, and replays of it


@dataclass(frozen=True)
class Size:
    w: int
    f: int
    frames: int
    n: int = 257
    heads: int = 3
    p: int = 592  # numbers of a patch
    L: int = 11  # blocks but the last
    trial: int = 1008  # rows of a trial: no whole tiles, a multiple of 16 as in a run

    @property
    def m(self) -> int:
        return self.frames * self.n


SIZES = {"pusht": Size(384, 768, 256), "tiny": Size(192, 768, 512)}
TOYS = {"toy": Size(48, 64, 2, n=17, heads=2, p=16, L=2, trial=80)}
KINDS = ("norm_forward", "norm_backward", "gelu_forward", "gelu_backward", "up", "down", "last", "last_backward")


@dataclass(frozen=True)
class Job:
    """One form of one kernel; `form` None: torch's product and the GELU's own kernel."""

    size: str
    kind: str
    form: NormTiles | GeluTiles | Product | LastTiles | None
    slope: bool = False

    def __str__(self) -> str:
        what = _short(self.form) if self.form else "torch + gelu" if self.kind in KINDS else ""
        return f"{self.size:6} {self.kind:13} {what}{' slope' if self.slope else ''}"


def _short(form: Any) -> str:
    plain, given = asdict(type(form)()), asdict(form)
    return ", ".join(f"{k} {v}" for k, v in given.items() if v != plain[k]) or "as it is"


def norms(part: int, backwards: bool) -> list[NormTiles]:
    if not backwards:
        cuts = [(4, 2), (4, 4), (8, 4), (16, 4), (32, 4), (16, 8), (32, 8)]
        return [NormTiles(), *(NormTiles(rows=r, part=part, warps=k) for r, k in cuts)]
    forms = [NormTiles(), NormTiles(span=32), NormTiles(span=16)]
    cuts = [(8, 4, 64), (8, 4, 32), (8, 4, 16), (8, 4, 128), (4, 4, 64), (4, 2, 32)]
    cuts += [(16, 8, 64), (16, 8, 128), (16, 4, 64)]
    for rows, warps, span in cuts:
        ways = [k for k in (1, 2, 3) if k == 1 or span >= 2 * rows]
        forms += [NormTiles(rows, part, warps, span, stages) for stages in ways]
    return forms


def gelus(backwards: bool) -> list[GeluTiles]:
    if not backwards:
        cuts = [(2048, 4), (4096, 4), (2048, 8), (4096, 8), (8192, 8)]
        return [GeluTiles(), *(GeluTiles(block=b, warps=k) for b, k in cuts)]
    cuts = [(64, 16, 128, 4), (32, 16, 128, 4), (128, 32, 128, 8), (128, 8, 256, 4), (64, 8, 256, 4)]
    cuts += [(128, 16, 256, 8), (64, 8, 128, 2)]
    return [GeluTiles(), *(GeluTiles(span=s, rows=r, cols=c, warps_back=k) for s, r, c, k in cuts)]


def products(slope: bool, backwards: bool) -> list[Product]:
    """Of what compiles for sm_90 almost without spilling registers; two or more programs to a multiprocessor first."""
    near = Product(128, 128, 64, 8, 3)
    thin, low = replace(near, cols=64, warps=4), replace(near, rows=64, warps=4)
    forms = [near, replace(near, stages=2), thin, low]
    if slope:
        forms += [replace(near, rows=256), replace(near, stages=4), replace(thin, stages=2)]
    if backwards and slope:
        forms += [replace(near, cols=256)]
    return forms


def lasts(w: int, part: int, backwards: bool) -> list[LastTiles]:
    """The form in use first."""
    chosen = kernels_settings.of(w)
    use = chosen.last_backward if backwards else chosen.last
    cuts = [(16, 4, 2, 0), (16, 4, 3, 128), (32, 4, 1, 0), (32, 4, 3, 0), (32, 4, 2, 128), (32, 8, 1, 0)]
    cuts += [(32, 8, 3, 128), (64, 8, 1, 0), (64, 8, 2, 128)]
    return [use, *(t for t in (LastTiles(r, part, *rest) for r, *rest in cuts) if t != use)]


def jobs(toy: bool, names: list[str]) -> list[Job]:
    found = []
    for name in names:
        w = (TOYS if toy else SIZES)[name].w
        if not toy:
            found.append(Job(name, "attention", None))
        for kind in KINDS:
            if toy:
                found += _toy_jobs(name, kind)
            elif kind in ("up", "down"):
                found.append(Job(name, kind, None))
                for slope in (False, True):
                    found += [Job(name, kind, p, slope) for p in products(slope, kind == "down")]
            elif kind.startswith("norm"):
                found += [Job(name, kind, t) for t in norms(w // 3, kind == "norm_backward")]
            elif kind.startswith("last"):
                found += [Job(name, kind, t) for t in lasts(w, w // 3, kind == "last_backward")]
            else:
                found += [Job(name, kind, t) for t in gelus(kind == "gelu_backward")]
    return found


def _toy_jobs(name: str, kind: str) -> list[Job]:
    if kind.startswith("norm"):
        return [Job(name, kind, t) for t in (NormTiles(), NormTiles(rows=4, part=16, span=16, stages=2))]
    if kind.startswith("gelu"):
        return [Job(name, kind, t) for t in (GeluTiles(), GeluTiles(block=256, span=32, rows=8, cols=32))]
    if kind.startswith("last"):
        forms = lasts(TOYS[name].w, 16, kind == "last_backward")
        return [Job(name, kind, t) for t in (forms[0], forms[1], forms[-1])]
    forms = Product(32, 32, 16), Product(16, 32, 16), Product(32, 33, 16)  # the last fails
    return [Job(name, kind, None), *(Job(name, kind, p, slope) for p in forms for slope in (False, True))]


def average(r: torch.Tensor, c: torch.Tensor, asked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the last block hears of x̂ (h, b, w), and log2 Σ exp of its scores (h, b), by torch."""
    x = F.layer_norm(r + c, c.shape, eps=1e-6)
    s = torch.einsum("hbw,bnw->hbn", asked, x) / 8
    return torch.einsum("hbn,bnw->hbw", s.softmax(-1), x), s.logsumexp(-1) / math.log(2)


class Data:
    """Tensors of one block of m rows, and each job on them; of the last block, as many whole frames as there are."""

    def __init__(self, size: Size, m: int, device: str) -> None:
        self.size, self.m, self.device = size, m, device
        # The interpreter truncates bfloat16.
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        g = torch.Generator(device).manual_seed(1)

        def noise(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return (torch.randn(shape, generator=g, device=device) * scale).to(self.dtype)

        w, f = size.w, size.f
        self.x, self.g, self.r = noise(m, w), noise(m, w), noise(m, w)
        self.up, self.down = noise(f, w, scale=w**-0.5), noise(w, f, scale=w**-0.5)
        self.bias = noise(f, scale=0.3)
        self.c, self.one = noise(w, scale=0.1).float(), torch.rand(m, device=device, generator=g) + 0.5
        self.hidden, self.wide = noise(m, f), noise(m, f)
        self.out_w, self.out_f, self.out_f2 = (torch.empty_like(t) for t in (self.x, self.wide, self.wide))
        self.one_out, self.sums = torch.empty_like(self.one), torch.empty(0, device=device)
        b = m // size.n
        self.stream = self.r[: b * size.n].view(b, size.n, w)
        self.asked, self.told = noise(size.heads, b, w, scale=8 * w**-0.5), noise(size.heads, b, w)
        heard, lse = average(self.stream.float(), self.c, self.asked.float())
        self.heard, self.lse = heard.to(self.dtype).contiguous(), lse.contiguous()

    def call(self, job: Job) -> Callable[[], Any]:
        n, p, k, t = stack.kernels_norm, stack.kernels_pointwise, stack.kernels_mlp, job.form
        size, tiles = self.size, t if isinstance(t, GeluTiles) else GeluTiles()
        width = size.w if job.kind in ("norm_backward", "last_backward") else size.f
        rows = -(-self.m // tiles.span)
        if isinstance(t, NormTiles):
            rows = n.pieces(self.m, t)
        elif isinstance(t, LastTiles):
            rows = len(self.stream)
        elif isinstance(t, Product):
            if not k.serves(t, size.w, size.f, self.x.device):
                raise ValueError("these tiles leave a rest of columns, or there are no descriptors here")
            rows = k.pieces(self.m, t)
        self.sums = torch.full((rows, width), float("nan"), device=self.device)
        if job.kind == "norm_forward":
            return lambda: n.norm_forward(self.r, self.c, 1e-6, self.out_w, self.one_out, t)
        if job.kind == "norm_backward":
            return lambda: n.norm_backward(self.g, self.x, self.one, self.r, self.out_w, self.sums, t)
        if job.kind == "gelu_forward":
            return lambda: p.gelu_forward(self.hidden, self.out_f, t)
        if job.kind == "gelu_backward":
            return lambda: p.gelu_backward(self.wide, self.hidden, self.out_f, self.sums, t)
        if job.kind == "last":
            return lambda: stack.kernels_last.hear(self.stream, self.c, self.asked, 1 / 8, 1e-6, t)
        if job.kind == "last_backward":
            known = self.stream, self.c, self.asked, self.heard, self.lse
            return lambda: stack.kernels_last.hear_backward(self.told, *known, 1 / 8, 1e-6, self.sums, t)
        if job.kind == "up" and t is not None:
            return lambda: k.up(self.x, self.up, self.bias, self.out_f2, self.out_f, t, job.slope)
        if job.kind == "up":
            return lambda: p.gelu_forward(torch.addmm(self.bias, self.x, self.up.t(), out=self.out_f2), self.out_f)
        if t is not None:
            return lambda: k.down_backward(self.g, self.down, self.hidden, self.out_f, self.sums, t, job.slope)
        return lambda: p.gelu_backward(torch.mm(self.g, self.down), self.hidden, self.out_f, self.sums)

    def alone(self, kind: str) -> Callable[[], Any]:
        """torch's product without the GELU."""
        if kind == "up":
            return lambda: torch.addmm(self.bias, self.x, self.up.t(), out=self.out_f2)
        return lambda: torch.mm(self.g, self.down, out=self.out_f2)

    def error(self, job: Job) -> float:
        """The largest distance from float32 of what the job makes."""
        f32 = torch.Tensor.float
        if job.kind == "attention":
            return worst(attention._attention_errors(self.size.n, self.size.heads, self.x.device))
        if job.kind == "norm_forward":
            x = f32(self.r) + self.c
            self.call(job)()
            one = (x.var(-1, correction=0) + 1e-6).rsqrt()
            return max(far(self.out_w, F.layer_norm(x, x.shape[-1:], eps=1e-6)), far(self.one_out, one))
        if job.kind == "norm_backward":
            g, y = f32(self.g), f32(self.x)
            d = (g - g.mean(1, keepdim=True) - y * (g * y).mean(1, keepdim=True)) * self.one[:, None]
            self.call(job)()
            return max(far(self.out_w, f32(self.r) + d), far(self.sums.sum(0), d.sum(0)))
        if job.kind == "gelu_forward":
            self.call(job)()
            return far(self.out_f, F.gelu(f32(self.hidden)))
        if job.kind.startswith("last"):
            inputs = [f32(t).clone().requires_grad_() for t in (self.stream, self.c, self.asked)]
            want, got = average(*inputs), self.call(job)()
            if job.kind == "last_backward":
                want = torch.autograd.grad(want[0], inputs, f32(self.told))
                got = got[0], self.sums.sum(0), got[1]
            return max(map(far, got, want))
        if job.kind == "gelu_backward":
            u, d = f32(self.hidden), f32(self.wide)
        else:
            u, d = f32(self.x) @ f32(self.up).t() + f32(self.bias), f32(self.g) @ f32(self.down)
        u = u.clone().requires_grad_()
        if job.kind == "up":
            self.call(job)()
            return far(self.out_f, F.gelu(u).detach())
        (slope,) = torch.autograd.grad(F.gelu(u).sum(), u)
        if job.kind == "down":
            self.hidden = (slope if job.slope else u.detach()).to(self.dtype)
        self.call(job)()
        return max(far(self.out_f, d * slope), far(self.sums.sum(0), (d * slope).sum(0)))


class Blocks:
    """The whole operator forwards and backwards, on random weights."""

    def __init__(self, size: Size, frames: int, L: int, device: str) -> None:
        self.size, self.device = size, device
        g, (w, f, i, p) = torch.Generator(device).manual_seed(2), (size.w, size.f, 64 * size.heads, size.p)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32

        def noise(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return (torch.randn(shape, generator=g, device=device) * scale).to(dtype)

        self.patches = noise(frames, size.n, p)
        self.patches[:, 0] = 0  # there is the class token
        self.grad_first, self.grad = noise(frames, w), noise(frames, i)
        self.weights = stack.Folded(
            noise(w, p, scale=p**-0.5),
            noise(size.n, w),
            noise(L, 3 * i, w, scale=w**-0.5),
            noise(L, 3 * i, scale=0.1),
            noise(L, w, i, scale=i**-0.5),
            noise(L, f, w, scale=w**-0.5),
            noise(L, f, scale=0.1),
            noise(L, w, f, scale=f**-0.5),
            noise(2 * L + 1, w, scale=0.1).float(),
            noise(3 * i, w, scale=w**-0.5),
            noise(3 * i, scale=0.1),
        )
        self.out: tuple[torch.Tensor, ...] = ()

    def __call__(self) -> None:
        rest = self.weights, self.size.heads, 1e-6
        first, told, kept = stack.forward(self.patches, *rest)
        self.out = (first, told, *stack.backward(self.grad_first, self.grad, self.patches, kept, *rest))

    def plain(self) -> list[torch.Tensor]:
        """The same by torch in float32. The keys' part of a bias has the gradient 0, here up to rounding."""
        weights = stack.Folded(*(t.float().clone().requires_grad_() for t in self.weights))
        c, r = weights.c, weights.begin + F.linear(self.patches.float(), weights.embed)

        def heard(norm: int, weight: torch.Tensor, bias: torch.Tensor, asking: slice) -> torch.Tensor:
            packed = F.linear(F.layer_norm(r + c[norm], c.shape[1:], eps=1e-6), weight, bias)
            q, k, v = (t.unflatten(-1, (self.size.heads, -1)).transpose(1, 2) for t in packed.chunk(3, -1))
            made = (q[:, :, asking] @ k.transpose(-1, -2) / 8).softmax(-1) @ v
            return made.transpose(1, 2).flatten(-2)

        for j in range(len(weights.qkv)):
            r = r + F.linear(heard(2 * j, weights.qkv[j], weights.qkv_bias[j], slice(None)), weights.out[j])
            x = F.layer_norm(r + c[2 * j + 1], c.shape[1:], eps=1e-6)
            r = r + F.linear(F.gelu(F.linear(x, weights.up[j], weights.up_bias[j])), weights.down[j])
        ends = r[:, 0], heard(-1, weights.last, weights.last_bias, slice(1))[:, 0]
        grads = torch.autograd.grad(ends, weights, (self.grad_first.float(), self.grad.float()))
        return [*(t.detach() for t in ends), *grads]


def time_kernels(args: argparse.Namespace, tried: dict[int, dict], until: float) -> list[dict]:
    """Each form that is right, alone; the forms in use first, whose errors are the measure of the others'."""
    rows, measure, data, name = [], {}, None, ""
    for index, job in enumerate(jobs(args.toy, args.sizes)):
        found = tried.get(index, {"failed": "not compiled in time"})
        form = asdict(job.form) if job.form else None
        row = {"size": job.size, "kind": job.kind, "form": form, "slope": job.slope}
        row |= {k: v for k, v in found.items() if k != "job"}
        rows.append(row)
        error = found.get("error", 0.01)
        first = measure.setdefault((job.size, job.kind), min(error, 0.02))
        if "failed" not in row and not error <= 1.1 * first + 2e-6:
            row["failed"] = f"off by {error:.1e}, the form in use by {first:.1e}"
        if job.kind == "attention" and "failed" not in row:  # compiled and right: it has one form
            continue
        if "failed" not in row and now() > until:
            row["failed"] = "no time left"
        if "failed" in row:
            print(f"  left out  {job}: {row['failed']}", flush=True)
            continue
        try:
            if job.size != name or data is None:
                data, name = None, job.size
                size = (TOYS if args.toy else SIZES)[name]
                data = Data(size, size.m, args.device)
            row["us"] = microseconds(data.call(job), args.device, *CALLS)
            backwards = job.kind == "down" or job.kind.endswith("_backward")
            row["later_us"] = 4 * data.sums.numel() / 3e6 if backwards else 0.0  # to add them up, at 3 TB/s
            if job.form is None:
                row["product_us"] = microseconds(data.alone(job.kind), args.device, *CALLS)
        except Exception as error:
            row["failed"] = said(error)
            print(f"  left out  {job}: {row['failed']}", flush=True)
    for row in sorted((r for r in rows if "us" in r), key=lambda r: (r["size"], r["kind"], r["us"])):
        job = Job(row["size"], row["kind"], _form(row), row["slope"])
        print(f"  {row['us']:8.1f} us  error {row['error']:.1e}  {job}", flush=True)
    return rows


def _form(row: dict) -> Any:
    kinds = {"norm": NormTiles, "gelu": GeluTiles, "last": LastTiles}
    return kinds.get(row["kind"][:4], Product)(**row["form"]) if row["form"] else None


def combinations(rows: list[dict], name: str) -> dict[str, Settings]:
    """What is worth trying together: the best of each kind, with the GELU in no product, in one, in both."""

    def best(kind: str, slope: bool = False) -> Any:
        of = (name, kind, slope)
        right = [r for r in rows if (r["size"], r["kind"], r["slope"]) == of and "us" in r and r["form"]]
        return _form(min(right, key=lambda r: r["us"])) if right else None

    def gelu() -> GeluTiles:
        a, b = best("gelu_forward") or GeluTiles(), best("gelu_backward") or GeluTiles()
        return replace(b, block=a.block, warps=a.warps)

    use = kernels_settings.of((SIZES | TOYS)[name].w)
    found = {"in use": use} if use == DEFAULT else {"in use": use, "plain": DEFAULT}
    norms = Settings(best("norm_forward") or NormTiles(), best("norm_backward") or NormTiles())
    last, back = best("last") or use.last, best("last_backward") or use.last_backward
    found["norms, last"] = both = replace(norms, last=last, last_backward=back)
    found["norms, last, gelu"] = alone = replace(both, gelu=gelu())
    for slope in (False, True):
        up, down = best("up", slope), best("down", slope)
        if up and down:
            label = "norms, last, gelu in both" + (", slope kept" if slope else "")
            found[label] = replace(alone, up=up, down=down, slope=slope)
        if up and not slope:
            found["norms, last, gelu in up"] = replace(alone, up=up)
        if down and not slope:
            found["norms, last, gelu in down"] = replace(alone, down=down)
    return found


def time_stack(args: argparse.Namespace, rows: list[dict], name: str, until: float) -> tuple[list[dict], Settings]:
    size = (TOYS if args.toy else SIZES)[name]
    few = 2 if args.toy else 16  # frames: 16·257 rows are a multiple of 16, as those of a run
    small, whole = Blocks(size, few, 2, args.device), Blocks(size, size.frames, size.L, args.device)
    want, found, reference = small.plain(), [], []
    before = dict(kernels_settings.BY_WIDTH)

    def measure(label: str, chosen: Settings) -> None:
        row: dict[str, Any] = {"size": name, "combination": label, "settings": asdict(chosen)}
        found.append(row)
        try:
            if now() > until:
                raise TimeoutError("no time left")
            kernels_settings.BY_WIDTH[size.w] = chosen
            small()
            row["errors"] = [far(a, b) for a, b in zip(small.out, want, strict=True)]
            row["us"] = microseconds(whole, args.device, times=1, groups=7)
            if not reference:  # the forms in use
                reference.extend(t.float().clone() for t in whole.out)
            row["differs"] = max(far(a, b) for a, b in zip(whole.out, reference, strict=True))
            limits = [1.2 * min(e, 0.02) + 1e-4 for e in found[0].get("errors", [0.02] * len(want))]
            row["right"] = all(e <= most for e, most in zip(row["errors"], limits, strict=True))
            row["right"] = row["right"] and row["differs"] < 0.1
            state = "" if row["right"] else "  NOT RIGHT"
            errors = f"error {max(row['errors']):.1e}  differs {row['differs']:.1e}"
            print(f"  {row['us'] / 1000:8.3f} ms  {errors}  {name} {label}{state}", flush=True)
        except Exception as error:
            row["failed"] = said(error)
            print(f"  left out  {name} {label}: {row['failed']}", flush=True)
        finally:
            kernels_settings.BY_WIDTH.clear()
            kernels_settings.BY_WIDTH.update(before)

    for label, chosen in combinations(rows, name).items():
        measure(label, chosen)
    top = min((r for r in found if r.get("right")), key=lambda r: r["us"], default=found[0])
    print(f"{name}: {top['combination']}: {json.dumps(top['settings'])}", flush=True)
    return found, kernels_settings.read(top["settings"])


def main() -> None:
    parser = trials.parser(__doc__, 90.0)
    parser.add_argument("--sizes", nargs="*", default=None, choices=[*SIZES, *TOYS])
    args = parser.parse_args()
    trials.begin(args, stack.kernels is not None)
    args.sizes = args.sizes or list(TOYS if args.toy else SIZES)
    every, sizes = jobs(args.toy, args.sizes), TOYS if args.toy else SIZES
    if args.trial:
        of = [sizes[job.size] for job in every]
        trials.trial(args, len(every), lambda i: Data(of[i], of[i].trial, args.device).error(every[i]))
        return
    tried = trials.try_all(args, __file__, ["--sizes", *args.sizes], 0.6 * args.seconds)
    print(f"{len(tried)} of {len(every)} forms tried in {now():.0f} s", flush=True)
    rows = time_kernels(args, tried, 0.75 * args.seconds)
    found: dict[str, Any] = {**trials.machine(args.device), "settings": {}, "stacks": [], "kernels": rows}
    for at, name in enumerate(args.sizes):
        try:
            left = args.seconds - now()
            stacks, best = time_stack(args, rows, name, now() + left / (len(args.sizes) - at))
        except Exception as error:
            print(f"{name}: {said(error)}", flush=True)
            continue
        found["stacks"] += stacks
        found["settings"][str(sizes[name].w)] = asdict(best)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1))
    print(f"done in {now():.0f} s", flush=True)


if __name__ == "__main__":
    main()
