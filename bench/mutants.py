"""Which changes to the code no test sees: random mutants of some modules, each tried against some tests.

    python bench/mutants.py lpwm/plan --tests tests/plan --count 40 --seed 1

One operator, comparison, number, truth value, sign or branch is changed at a time, in a copy of the tree; the tests run
until the first failure. A mutant that lives is printed with its line. Some are the same program (a tie, a default that
every caller gives): each is a place to look, not a verdict. The tests must pass before; those of GPUs and soak tests
are left out, so what only runs on CUDA lives.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAIRS: list[tuple[type[ast.AST], type[ast.AST]]] = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.And, ast.Or),
    (ast.BitAnd, ast.BitOr),
]
SWAP = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])} | {ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult}


def places(tree: ast.AST) -> list[ast.AST]:
    """Nodes worth changing: not in annotations, in what is raised, or in text."""
    left_out: set[int] = set()
    for node in ast.walk(tree):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        parts.append(node if isinstance(node, ast.Raise | ast.JoinedStr) else None)
        left_out.update(id(n) for part in parts if part is not None for n in ast.walk(part))
    return [n for n in ast.walk(tree) if id(n) not in left_out and _changes(n)]


def _changes(node: ast.AST) -> bool:
    """Whether `change` knows what to do."""
    if isinstance(node, ast.BinOp | ast.BoolOp):
        return type(node.op) in SWAP
    if isinstance(node, ast.Compare):
        return type(node.ops[0]) in SWAP
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool | int | float)
    return isinstance(node, ast.If) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub))


def change(node: ast.AST, draw: random.Random) -> str:
    """Changes the node in place; what it reads as now."""
    if isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = SWAP[type(node.op)]()
    elif isinstance(node, ast.Compare):
        node.ops[0] = SWAP[type(node.ops[0])]()
    elif isinstance(node, ast.Constant):
        old = node.value
        node.value = not old if isinstance(old, bool) else old + 1 if isinstance(old, int) else 1.5 * old + 0.01
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()
    elif isinstance(node, ast.If):
        node.test = ast.Constant(draw.random() < 0.5)
        return "if " + ast.unparse(node.test)
    return ast.unparse(node)


def passes(tree: Path, tests: list[str], seconds: float) -> bool:
    """Whether the tests pass in this tree, in time."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not soak and not gpu"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run([*command, *tests], cwd=tree, env=environment, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", help="files, or folders of which every file counts")
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=240, help="a mutant that takes longer is seen")
    args = parser.parse_args()
    paths = [ROOT / m for m in args.modules]  # from the root of the repository, wherever this is started
    files = sorted({f for m in paths for f in ([m] if m.is_file() else m.glob("*.py"))})
    files = [f.relative_to(ROOT) for f in files if places(ast.parse(f.read_text(encoding="utf-8")))]
    if not files:
        raise SystemExit(f"there is no module in {', '.join(args.modules)}: name files or folders of lpwm.")
    draw, alive = random.Random(args.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        kept_out = shutil.ignore_patterns(".*", "__pycache__", "runs", "dist", "build", "*.egg-info")
        shutil.copytree(ROOT, tree, ignore=kept_out)
        if not passes(tree, args.tests, args.seconds):
            raise SystemExit(f"{' '.join(args.tests)} fails as it is: fix that first, or give more --seconds.")
        sources = {f: (tree / f).read_text(encoding="utf-8") for f in files}
        for _ in range(args.count):
            file = draw.choices(files, [len(sources[f]) for f in files])[0]
            module = ast.parse(sources[file])
            node = draw.choice(places(module))
            line = node.lineno
            now = change(node, draw)
            (tree / file).write_text(ast.unparse(module), encoding="utf-8")
            if passes(tree, args.tests, args.seconds):
                alive += 1
                was = sources[file].splitlines()[line - 1].strip()
                print(f"alive: {file}:{line}  {was}  =>  {now}", flush=True)
            (tree / file).write_text(sources[file], encoding="utf-8")
    print(f"{alive} of {args.count} mutants live")


if __name__ == "__main__":
    main()
