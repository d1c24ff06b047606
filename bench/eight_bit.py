"""What 8-bit products could save in a training step: the encoder's matrix products in bfloat16 and in float8 (e4m3).

    python bench/eight_bit.py [--json OUT] [--repeats 30]

The products of one step of PushT's encoder (256 frames of 257 tokens, width 384, 3 heads of 64, MLP 768; 11 blocks and
the last one's keys and values) and of ViT-Tiny on Piecewise (512 frames, width 192, MLP 768): forward, gradient of the
input, gradient of the weight. "float8" is cuBLASLt's product of two operands that are 8-bit already, with one scale
each and a bfloat16 result: the best case, as if rounding to 8 bits cost nothing. "rounding" is what it costs as a pass
of its own over an operand: with the row-major copy that the forward pass needs and the transposed one of the weight's
gradient. A real step can gain at most bfloat16 − float8, and at least that minus the rounding.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch

CASES = {  # frames, tokens, width, inner width of attention, MLP, blocks
    "pusht-224": (256, 257, 384, 192, 768, 12),
    "piecewise-224": (512, 257, 192, 192, 768, 12),
}
FLOAT8 = torch.float8_e4m3fn


def milliseconds(f, repeats: int) -> float:
    for _ in range(3):
        f()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        f()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def product(rows: int, inner: int, columns: int, repeats: int) -> dict[str, float]:
    """(rows, inner) × (inner, columns), and the rounding of the first operand, plain and transposed."""
    a = torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(columns, inner, device="cuda", dtype=torch.bfloat16)
    one = torch.ones((), device="cuda")
    a8, b8 = a.to(FLOAT8), b.to(FLOAT8)

    def eight() -> torch.Tensor:
        return torch._scaled_mm(a8, b8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return {
        "bfloat16": milliseconds(lambda: a @ b.t(), repeats),
        "float8": milliseconds(eight, repeats),
        "rounding": milliseconds(lambda: a.to(FLOAT8), repeats),
        "teraflop": 2e-12 * rows * inner * columns,
    }


def measure(name: str, repeats: int) -> dict:
    frames, tokens, width, attention, mlp, blocks = CASES[name]
    rows, rounded = frames * tokens, torch.compile(lambda x: x.t().contiguous().to(FLOAT8))
    layers = {"qkv": (width, 3 * attention), "out": (attention, width), "up": (width, mlp), "down": (mlp, width)}
    total = dict.fromkeys(("bfloat16", "float8", "rounding", "teraflop"), 0.0)
    parts = {}
    for layer, (inner, columns) in layers.items():
        forward = product(rows, inner, columns, repeats)
        back = product(rows, columns, inner, repeats)
        weight = product(columns, rows, inner, repeats)  # operands are transposed copies, rows long
        x, y = (torch.randn(rows, n, device="cuda", dtype=torch.bfloat16) for n in (inner, columns))
        weight["rounding"] = sum(milliseconds(lambda t=t: rounded(t), repeats) for t in (x, y))
        parts[layer] = {"forward": forward, "input": back, "weight": weight}
        for part in parts[layer].values():
            for key in total:
                total[key] += (blocks - 1) * part[key]
    return {
        "case": name,
        "per_step_ms": total,
        "products_ms": parts,
        "most_gain_ms": total["bfloat16"] - total["float8"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU that torch can use.")
    rows = [measure(name, args.repeats) for name in CASES]
    for row in rows:
        t = row["per_step_ms"]
        told = f"bfloat16 {t['bfloat16']:.2f} ms, float8 {t['float8']:.2f} ms, rounding {t['rounding']:.2f} ms"
        print(f"{row['case']}: {told}, {t['teraflop']:.2f} TFLOP; at most {row['most_gain_ms']:.2f} ms to gain")
    if args.json:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        args.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
