"""The seeds of one cell as one stacked model, against the same seeds one after another, in one run.

    python bench/stacked_seeds.py [--device cuda] [--seeds 2 4 8] [--cases wall-lti1 small …] [--json OUT]

"alone" is `lpwm.train.step.Stepper`, one model after another, "stacked" is `lpwm.sweep.stacked.StackedStepper`, each

    eager       as Python calls it
    graph       captured as a CUDA graph (train.compile=graph; what a sweep with --stack-seeds runs on CUDA)
    compiled    compiled, then captured; alone it also has our kernels, and is what `lpwm train` runs on CUDA

so that `ratios` compares like with like, and `ratio` is the best alone over the best stacked (above 1: stacking pays).
Clips, slices and targets are drawn beforehand: what is timed is the update. Given is the time of one update of all N
seeds, the median of groups of ten. Dropout is 0, as stacks require. A form that fails says why, one that takes longer
than --patience seconds (compiling, mostly) is left, and none is begun after --limit; JSON is written after each.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lpwm.losses import Objective
from lpwm.model import WorldModel
from lpwm.optim import build, initialize
from lpwm.recipes import ladder, small, tiny
from lpwm.sweep.stacked import StackedStepper, check_stackable
from lpwm.train import RunConfig
from lpwm.train.step import Stepper

CASES: dict[str, RunConfig] = {
    "wall-lti1": ladder("lti1"),
    "wall-mlp-lti": ladder("mlp-lti"),
    "small": small(),
    "tiny": tiny(),
}
ACTIONS = 10
FORMS = ("eager", "graph", "compiled")
BEGAN = time.perf_counter()


def batches(config: RunConfig, seeds: int, device: str) -> tuple[Any, ...]:
    g = torch.Generator(device=device).manual_seed(0)
    B, T, side = config.train.batch, config.frames, config.model.encoder.image_size
    pixels = torch.randint(0, 256, (seeds, B, T, 3, side, side), generator=g, device=device, dtype=torch.uint8)
    actions = torch.randn(seeds, B, T - 1, ACTIONS, generator=g, device=device)
    objective = Objective(config.objective, config.model.sparse)
    draws = [objective.draw((s, 0), B, T, config.model.latent, device) for s in range(seeds)]
    return pixels, actions, draws, objective


def models_of(config: RunConfig, seeds: int, device: str) -> list[WorldModel]:
    out = []
    for seed in range(seeds):
        model = WorldModel(config.model, ACTIONS)
        initialize(model, seed)
        out.append(model.to(device).train())
    return out


def alone(config: RunConfig, seeds: int, device: str, form: str) -> Callable[[int], None]:
    pixels, actions, draws, objective = batches(config, seeds, device)
    cuda, compiled = device == "cuda", form == "compiled"
    options = {"fused": True, "capturable": True} if cuda else {}
    steppers = [
        Stepper(
            m,
            objective,
            build(m, config.optim, **options),
            config.train.batch,
            clip=config.optim.clip,
            precision=torch.bfloat16 if cuda else torch.float32,
            compiled=compiled,
            graphed=form != "eager",
            kernels=compiled,
        )
        for m in models_of(config, seeds, device)
    ]

    def step(i: int) -> None:
        for s, stepper in enumerate(steppers):
            stepper(pixels[s], actions[s], draws[s], 1.0, i)

    return step


def stacked(config: RunConfig, seeds: int, device: str, form: str) -> Callable[[int], None]:
    pixels, actions, draws, objective = batches(config, seeds, device)
    cuda = device == "cuda"
    options = {"fused": True, "capturable": True} if cuda else {}
    models = models_of(config, seeds, device)
    stepper = StackedStepper(
        models,
        objective,
        [build(m, config.optim, **options) for m in models],
        config.optim.clip,
        torch.bfloat16 if cuda else torch.float32,
        compiled=form == "compiled",
        graphed=form != "eager",
    )

    def step(i: int) -> None:
        stepper(pixels, actions, draws, 1.0)

    return step


def milliseconds(
    make: Callable[[], Callable[[int], None]], device: str, groups: int, patience: float = 0
) -> float | str:
    """The median over groups of ten updates; what failed, in words, rather than a number."""
    try:
        signal.setitimer(signal.ITIMER_REAL, patience)
        step = make()
        for i in range(6):  # compile, capture, settle
            step(i)
        times = []
        for group in range(groups):
            _sync(device)
            began = time.perf_counter()
            for i in range(10):
                step(6 + 10 * group + i)
            _sync(device)
            times.append((time.perf_counter() - began) / 10)
        return 1000 * statistics.median(times)
    except Exception as error:  # a benchmark tells what does not work and goes on
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        step = None  # type: ignore[assignment]  # with its graphs
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def _sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def too_long(*_: object) -> None:
    raise TimeoutError("took longer than --patience")


def summary(times: dict[str, float | str]) -> dict[str, Any]:
    """Alone over stacked: form by form where both ran, and the best of each."""
    known = {name: t for name, t in times.items() if isinstance(t, float)}
    ratios = {
        form: known[f"alone {form}"] / known[f"stacked {form}"]
        for form in FORMS
        if {f"alone {form}", f"stacked {form}"} <= set(known)
    }
    best = {
        kind: min((n for n in known if n.startswith(kind)), key=known.__getitem__, default=None)
        for kind in ("alone", "stacked")
    }
    found = [best["alone"], best["stacked"]]
    ratio = known[found[0]] / known[found[1]] if found[0] and found[1] else None
    return {"ratios": ratios, "best": best, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--forms", nargs="+", choices=FORMS, help="all on CUDA, eager alone on the CPU")
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--patience", type=float, default=90.0, help="seconds for one form")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no form is begun")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    signal.signal(signal.SIGALRM, too_long)
    cuda = args.device == "cuda"
    forms = args.forms or (FORMS if cuda else FORMS[:1])
    name = torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} CPU threads"
    found: dict[str, Any] = {
        "device": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "rows": [],
    }
    print(f"{name}, torch {torch.__version__}; milliseconds of one update of all seeds", flush=True)
    # The quick forms of all come first: compiling may use up the time.
    for form in (f for f in FORMS if f in forms):
        for case in args.cases:
            for n in args.seeds:
                measure(case, n, form, args, found)


def measure(case: str, seeds: int, form: str, args: argparse.Namespace, found: dict[str, Any]) -> None:
    """One form of one case, alone and stacked, added to its row."""
    config = CASES[case]
    predictor = replace(config.model.predictor, dropout=0.0)
    config = replace(config, model=replace(config.model, predictor=predictor))
    check_stackable(config)
    row = next((r for r in found["rows"] if (r["case"], r["seeds"]) == (case, seeds)), None)
    if row is None:
        row = {"case": case, "seeds": seeds, "ms": {}}
        found["rows"].append(row)
    for kind, make in (("alone", alone), ("stacked", stacked)):
        time_: float | str = "left out: the time was over"
        if time.perf_counter() - BEGAN < args.limit:
            time_ = milliseconds(
                lambda make=make: make(config, seeds, args.device, form),  # type: ignore[misc]
                args.device,
                args.groups,
                args.patience,
            )
        row["ms"][f"{kind} {form}"] = time_
        row |= summary(row["ms"])
        said = f"{time_:10.2f}" if isinstance(time_, float) else f"  {time_}"
        like = row["ratios"].get(form)
        more = f"   alone/stacked {like:.2f}×" if kind == "stacked" and like else ""
        print(
            f"{case:<14} {seeds:>2} {kind + ' ' + form:<17} {said}{more}  [{time.perf_counter() - BEGAN:.0f} s]",
            flush=True,
        )
        found["seconds"] = time.perf_counter() - BEGAN
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
