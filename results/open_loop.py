"""Why is one method ahead where plans run open loop? How much of the difference goes with the error of rollouts.

    python results/open_loop.py EVALUATION.json [more.json …] [--depth 5]

For every file, cell and budget: success of each checkpoint on its held-out rollout error, least squares over
checkpoints; collapsed ones have no error and are left out. Printed: the difference of the methods, the same at
equal log error, and the slope in points per doubling of the error; t intervals over checkpoints. One covariate of
a model is no cause: it says what goes together.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scipy import stats


def least_squares(x_NP: np.ndarray, y_N: np.ndarray) -> list[tuple[float, float, float]]:
    """Coefficients of y ≈ x b with their 95 % intervals."""
    df = len(y_N) - x_NP.shape[1]
    inverse = np.linalg.inv(x_NP.T @ x_NP)
    b = inverse @ x_NP.T @ y_N
    half = stats.t.ppf(0.975, df) * np.sqrt(np.diag(inverse) * ((y_N - x_NP @ b) ** 2).sum() / df)
    return [(float(m), float(m - h), float(m + h)) for m, h in zip(b, half, strict=True)]


def lines(document: dict, depth: int) -> list[str]:
    known = {(r["method"], r["seed"]): r["monitors"]["error_depth"][depth - 1] for r in document["runs"]}
    errors = {run: np.log2(error) for run, error in known.items() if error is not None}
    out = [f"{method}, seed {seed}: collapsed, left out" for method, seed in known if (method, seed) not in errors]
    for cell in document["cells"]:
        rows = [r for r in cell["rows"] if r["name"].endswith(("-lpwm", "-lewm"))]
        sparse = [r["name"].endswith("-lpwm") for r in rows]
        if sorted(sparse) != [False, True]:
            continue
        for budget in rows[0]["budgets"]:
            table = [
                (float(is_sparse), errors[row["name"], seed], 100 * np.mean(success))
                for row, is_sparse in zip(rows, sparse, strict=True)
                for seed, success in zip(row["seeds"], row["budgets"][budget]["success"]["terminal"], strict=True)
                if (row["name"], seed) in errors
            ]
            method, error, success = np.array(table).T
            one = np.ones_like(method)
            (_, alone), (_, equal, slope) = (
                least_squares(np.stack(x, 1), success) for x in ([one, method], [one, method, error])
            )
            texts = (f"{m:+.1f} [{low:+.1f}, {high:+.1f}]" for m, low, high in (alone, equal, slope))
            names = ("sparse − dense", f"at equal error at depth {depth}", "per doubling of the error")
            where = f"{cell['goals']} goals, H={cell['horizon']} R={cell['receding']}, held at step {budget}"
            middle = " and ".join(f"{2 ** np.median(error[method == m]):.3f}" for m in (1, 0))
            out.append(f"{where}: " + ", ".join(f"{n} {t}" for n, t in zip(names, texts, strict=True)))
            out.append(f"  {len(success)} checkpoints; median error of sparse and dense {middle}")
    return out


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--depth", type=int, default=5, help="blocks that are predicted in a row")
    args = parser.parse_args(argv)
    for file in args.files:
        print("\n".join([f"{file.name}:", *lines(json.loads(file.read_text()), args.depth)]))


if __name__ == "__main__":
    main()
