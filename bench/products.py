"""Large float32 products of planning on the CPU: oneDNN's next to those of MKL, torch's own choice.

    python bench/products.py [--json OUT] [--threads 1]

The products of MLP∘LTI at D=64 (the small recipes: 20 environments × 300 candidates × 5 blocks) and of Deep-AdaLN at
D=384, then whole plans of 30 iterations for 20 environments, with and without oneDNN (`lpwm.model.frozen`). Both take
turns; `ratio` is MKL's time over oneDNN's, of the fastest quarter. `used` says whether LpWM chooses oneDNN here.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from lpwm import recipe
from lpwm.core.provenance import device_name
from lpwm.model import WorldModel, frozen
from lpwm.plan import CEM, CEMConfig, LatentProblem

SHAPES = [(30000, 10, 256), (30000, 256, 64), (6000, 64, 192), (6000, 64, 64), (1500, 384, 1152), (1500, 1152, 384)]


def turns(new: Callable[[], object], old: Callable[[], object], count: int) -> tuple[float, float]:
    """Seconds of each, the lower quartile."""
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(count + 1):
        for f, kept in zip((new, old), times, strict=True):
            begin = time.perf_counter()
            f()
            if i:  # the first is warm-up
                kept.append(time.perf_counter() - begin)
    first, second = (sorted(t)[len(t) // 4] for t in times)
    return first, second


def product(rows: int, inner: int, outer: int) -> dict[str, object]:
    x, W, b = torch.randn(rows, inner), torch.randn(outer, inner), torch.randn(outer)
    one = lambda: torch.ops.mkldnn._linear_pointwise(x, W, b, "none", [], "")  # noqa: E731
    new, old = turns(one, lambda: torch.nn.functional.linear(x, W, b), 40)
    return {"product": f"{rows}x{inner}x{outer}", "onednn_ms": 1e3 * new, "mkl_ms": 1e3 * old, "ratio": old / new}


def plan(name: str, environments: int = 20) -> dict[str, object]:
    model = WorldModel(recipe(name).model, action_dim=10).eval()
    D = model.config.latent
    g = torch.Generator().manual_seed(0)
    z, goal, past = (torch.rand(environments, *shape, generator=g) for shape in ((3, D), (D,), (2, 10)))
    problem, solver = LatentProblem(model, z, goal, past, 5), CEM(CEMConfig())
    chosen = frozen.prefers_onednn

    def solve(preferred: bool) -> None:
        frozen.prefers_onednn = lambda: preferred
        solver.solve(problem, seed=0)

    new, old = turns(lambda: solve(True), lambda: solve(False), 4)
    frozen.prefers_onednn = chosen
    return {"plan": name, "environments": environments, "onednn_s": new, "mkl_s": old, "ratio": old / new}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [product(*shape) for shape in SHAPES] + [plan("piecewise-2x2-small/lpwm")]
    for row in rows:
        print("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    if args.json:
        about = {"cpu": device_name(torch.device("cpu")), "torch": torch.__version__, "used": frozen.prefers_onednn()}
        args.json.write_text(json.dumps({**about, "threads": args.threads, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
