"""Piecewise at the paper's size: LpWM and LeWM trained in the same cells, measured and planned with. A cell is a choice
of pixels, λ and η, and of the norm and the fed-back steps where they are named.

    python results/campaigns/piecewise_full.py --out OUT --cells white-lam1-lr2e-4 white-lam1-lr1e-4-layer-fed3 … \
        --steps 6000 --seed 102 --data-seed 101 --episode-seed 911 [--data 3000 40] [--seconds 540] [--quick] …

The rounds, their cells and their rules are in results/protocol.md. One process for each method trains the cells in
order, side by side on one GPU, and writes OUT/METHOD.json after every stage; OUT/controls.json has the controls on the
same goals. Data, weights and a copy of the results stay in --work, so that the same command continues: finished cells
are skipped (those of --done too), an interrupted one goes on from its checkpoint. When all cells are done, what time
is left goes to planning with R=1. Nothing is stopped as dead: what the check would have said is in `events`.

One thing differs from `lpwm train`: λ is a tensor in the compiled step, so that cells share one compilation.
The eighth round ran with an earlier version of this script, at commit a406f2d.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

BEGAN = time.time()
METHODS = ("lpwm", "lewm")
PLANNER = {"samples": 300, "elites": 30, "iterations": 30}  # the paper's
QUICK_PLANNER = {"samples": 12, "elites": 3, "iterations": 2}


@dataclass(frozen=True)
class Cell:
    pixels: str
    lam: float
    lr: float
    norm: str = "batch"  # of the projector and of the predictor's head
    fed: int = 1  # steps that are fed back

    @property
    def name(self) -> str:
        rest = f"-{self.norm}" * (self.norm != "batch") + f"-fed{self.fed}" * (self.fed != 1)
        return f"{self.pixels}-lam{self.lam:g}-lr{self.lr:g}{rest}"

    @classmethod
    def parse(cls, name: str) -> Cell:
        """The cell of a name: white-lam1-lr2e-4, or white-lam1-lr0.0002-layer-fed3."""
        match = re.fullmatch(r"(\w+)-lam([\d.]+)-lr([\d.]+(?:e-\d+)?)(?:-(batch|layer))?(?:-fed(\d+))?", name)
        if match is None:
            raise argparse.ArgumentTypeError(f"{name!r} is no PIXELS-lamλ-lrη[-NORM][-fedN]")
        pixels, lam, lr, norm, fed = match.groups()
        return cls(pixels, float(lam), float(lr), norm or "batch", int(fed or 1))


def say(text: str) -> None:
    print(f"[{time.time() - BEGAN:6.1f} s] {text}", flush=True)


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--seconds", type=float, default=540.0, help="what runs then is interrupted and saved")
    p.add_argument("--done", type=Path, nargs="*", default=[], help="results of earlier calls")
    p.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "lpwm-piecewise-full")
    p.add_argument(
        "--cells", nargs="+", type=Cell.parse, required=True, help="PIXELS-lamλ-lrη[-NORM][-fedN], in this order"
    )
    p.add_argument("--seed", type=int, required=True, help="training seed")
    p.add_argument("--data-seed", type=int, required=True)
    p.add_argument("--data", type=int, nargs=2, default=(1000, 100), metavar=("EPISODES", "STEPS"))
    p.add_argument("--episode-seed", type=int, required=True, help="of the goals")
    p.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    p.add_argument("--steps", type=int, default=0, help="6,000, or 20 with --quick")
    p.add_argument("--goals", type=int, default=100)
    p.add_argument("--no-replan", action="store_true", help="leave out R=1")
    p.add_argument("--device", default="cuda")
    p.add_argument("--compile", default="auto", choices=("auto", "on", "graph", "off"))
    p.add_argument("--least", type=float, default=60.0, help="no cell is started with fewer seconds left")
    p.add_argument("--quick", action="store_true", help="tiny sizes, 20 steps, on a CPU: whether it all works")
    p.add_argument("--method", default="", help=argparse.SUPPRESS)
    p.add_argument("--began", type=float, default=0.0, help=argparse.SUPPRESS)
    args = p.parse_args()
    global BEGAN
    BEGAN = args.began or BEGAN
    args.steps = args.steps or (20 if args.quick else 6000)
    if args.quick:
        args.goals, args.device, args.least = 6, "cpu", 0.0
    return args


def config_of(cell: Cell, method: str, args: argparse.Namespace) -> Any:
    """The recipe piecewise-2x2, and what the cell changes."""
    from lpwm import recipes

    c = recipes.METHODS[method](recipes.support(("g=2",)))
    data, model, train = c.data, c.model, c.train
    data = replace(data, episodes=args.data[0], steps=args.data[1], seed=args.data_seed)
    train = replace(
        train,
        steps=args.steps,
        seed=args.seed,
        stop_dead=False,
        compile=args.compile,
        log_every=50,
        eval_every=500,
        checkpoint_every=1000,
        keep=1,
    )
    encoder = replace(model.encoder, pixels=cell.pixels)
    if args.quick:
        data = replace(data, episodes=40, steps=50)
        encoder = replace(encoder, image_size=32, patch=16, width=16, depth=2, heads=1, head_dim=16, mlp=16)
        model = replace(
            model,
            latent=16,
            projector=replace(model.projector, hidden=32),
            predictor=replace(model.predictor, heads=1, head_dim=8, mlp=16, head_hidden=16),
        )
        train = replace(train, batch=8, log_every=5, eval_every=10, checkpoint_every=10)
        c = replace(c, objective=replace(c.objective, rdmreg=replace(c.objective.rdmreg, slices=32)))
    return replace(
        c,
        data=data,
        model=replace(
            model,
            encoder=encoder,
            projector=replace(model.projector, norm=cell.norm),
            predictor=replace(model.predictor, head_norm=cell.norm),
        ),
        objective=replace(c.objective, lam=cell.lam, rollout_steps=cell.fed),
        optim=replace(c.optim, lr=cell.lr),
        train=train,
    )


def planning(args: argparse.Namespace, receding: int, along: float) -> Any:
    from lpwm.evaluate.config import EvalConfig

    return EvalConfig(
        goals=("random",),
        episodes=args.goals,
        seed=args.episode_seed,
        budgets=(50,),
        receding=(receding,),
        path_discount=along,
        planner_seeds=1,
        options=dict(QUICK_PLANNER if args.quick else PLANNER),
        controls=(),
        curve=0,
        precision="bfloat16" if args.device.startswith("cuda") else "float32",
    )


# Files ------------------------------------------------------------------------------------------------------


def short(x: Any) -> Any:
    """Five digits are enough, and JSON has no NaN."""
    if isinstance(x, dict):
        return {str(k): short(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [short(v) for v in x]
    if isinstance(x, float):
        return float(f"{x:.5g}") if math.isfinite(x) else None
    return x


def write(path: Path, value: Any) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".half")
    half.write_text(json.dumps(short(value), indent=None, separators=(",", ":")) + "\n")
    os.replace(half, path)


def earlier(method: str, args: argparse.Namespace) -> dict[str, Any]:
    """Cells of this method from earlier calls of the same size; of a cell that is there twice, the finished one."""
    cells: dict[str, Any] = {}
    for path in (*args.done, args.work / "results" / f"{method}.json", args.out / f"{method}.json"):
        with contextlib.suppress(OSError, ValueError):
            file = json.loads(path.read_text())
            if (file.get("method"), file.get("steps"), file.get("quick")) == (method, args.steps, args.quick):
                cells |= {n: e for n, e in file["cells"].items() if e["finished"] or n not in cells}
    return cells


# One method -------------------------------------------------------------------------------------------------


def share_compilations(device: Any, undo: bool = False) -> None:
    """λ as a tensor and room for many shapes: otherwise every λ would be compiled anew. The losses are the same."""
    import torch

    import lpwm.train.run as folder
    from lpwm.losses import Objective

    torch._dynamo.config.recompile_limit = 64
    if undo:
        folder.Objective = Objective  # type: ignore[misc]
        return

    class Shared(Objective):
        def __init__(self, config: Any, nonnegative: bool) -> None:
            super().__init__(config, nonnegative)
            self.config = copy.copy(config)
            object.__setattr__(self.config, "lam", torch.tensor(float(config.lam), device=device))

    folder.Objective = Shared  # type: ignore[misc]


class Screen:
    """The cells of one method, one after another in one process."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch

        self.args, self.method = args, args.method
        self.device = torch.device(args.device)
        self.shared = self.device.type == "cuda"
        if self.shared:
            share_compilations(self.device)
        self.cells = earlier(self.method, args)
        self.wanted: list[Cell] = args.cells

    @property
    def left(self) -> float:
        return self.args.seconds - (time.time() - BEGAN)

    def save(self) -> None:
        from lpwm.core.provenance import device_name, origin, versions

        about = {
            "format": "lpwm piecewise full",
            "method": self.method,
            "steps": self.args.steps,
            "seed": self.args.seed,
            "data_seed": self.args.data_seed,
            "data": list(self.args.data),
            "episode_seed": self.args.episode_seed,
            "goals": self.args.goals,
            "quick": self.args.quick,
            "versions": versions(),
            **origin(),
            "device": device_name(self.device),
            "cells": self.cells,
        }
        for folder in (self.args.out, self.args.work / "results"):
            write(folder / f"{self.method}.json", about)

    def go(self) -> None:
        for cell in self.wanted:
            known = self.cells.get(cell.name, {})
            if known.get("finished"):
                say(f"{self.method} {cell.name} is finished: passed over")
                continue
            if "failed" in known and known["started"] > BEGAN:  # in this call, by a process before this one
                continue
            if self.left < self.args.least:
                say(f"{self.method}: {self.left:.0f} s are left, no new cell")
                break
            self.one(cell)
        else:
            if not self.args.no_replan:
                self.replan()
        self.save()

    def one(self, cell: Cell) -> None:
        import torch

        from lpwm.core.config import digest, to_dict
        from lpwm.train.run import Run

        began, config = time.time(), config_of(cell, self.method, self.args)
        say(f"{self.method} {cell.name}: starts")
        run = Run.create(config, self.args.work / "runs", f"{self.method}-{cell.name}")
        entry: dict[str, Any] = {
            "pixels": cell.pixels,
            "lam": cell.lam,
            "lr": cell.lr,
            "norm": cell.norm,
            "fed": cell.fed,
            "run_hash": run.hash,
            "config_digest": digest(config),
            "config": to_dict(config),
            "started": time.time(),
            "finished": False,
        }
        self.cells[cell.name] = entry
        try:
            model = self.train(run)
            entry["train_s"] = time.time() - began
            entry |= self.logs(run)
            self.save()  # what is known so far, should the rest be cut off
            began = time.time()
            entry |= self.measure(run, model)
            entry["measure_s"] = time.time() - began
            self.save()
            self.plan(run, model, entry)
            entry["finished"] = True
        except KeyboardInterrupt:  # Interrupted is one
            entry["interrupted"] = True
            self.save()
            raise
        except Exception as error:  # the next cell may do better
            entry["failed"] = f"{type(error).__name__}: {error}"[:2000]
            say(f"{self.method} {cell.name} failed: {entry['failed']}")
            self.save()
            if "CUDA" in str(error) or self.args.quick:  # nothing works in this process any more
                raise
        self.save()
        self.tell(cell, entry)
        del run
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def train(self, run: Any) -> Any:
        try:
            return run.train(self.device, console=False)
        except Exception as error:
            if not self.shared:
                raise
            say(f"{self.method}: once more with λ as a number, after {type(error).__name__}: {str(error)[:300]}")
            self.shared = False
            share_compilations(self.device, undo=True)
        return run.train(self.device, console=False)

    def logs(self, run: Any) -> dict[str, Any]:
        """The curves, a list for each name, and what was said on the way."""
        from lpwm.train.log import read_log

        out: dict[str, Any] = {}
        for kind in ("train", "val"):
            rows = [r.to_json() for r in read_log(run.folder, kind)]
            names = list(dict.fromkeys(n for r in rows for n in r if n not in ("kind", "time")))
            out[f"{kind}_log"] = {n: [r.get(n) for r in rows] for n in names}
        out["events"] = [[r.step, r.message] for r in read_log(run.folder, "event")]
        rates = [x for x in out["train_log"].get("steps_per_second", []) if x]
        out["steps_per_second"] = sorted(rates)[len(rates) // 2] if rates else None
        out["last_train"] = {n: values[-1] for n, values in out["train_log"].items() if values}
        return out

    def measure(self, run: Any, model: Any) -> dict[str, Any]:
        """Held-out numbers with the running statistics of BatchNorm, with each batch's own, and with new ones."""
        import torch

        from lpwm.core.config import to_dict
        from lpwm.data import open_clips
        from lpwm.evaluate.measure import distance_curve
        from lpwm.train.monitors import depth_errors, held_out_clips

        c = run.config
        with torch.no_grad():
            train = run.source(self.device, compiled=False)
            common: dict[str, Any] = {
                "source": c.data.source,
                "world": run.world(),
                "frameskip": c.data.frameskip,
                "holdout": c.data.holdout,
                "device": self.device,
                "image_size": c.model.encoder.image_size,
                "stats": train.stats,
            }
            held = held_out_clips(run.data, batch=min(c.train.batch, 64), **common)
            pairs = open_clips(run.data, clip_length=c.frames, split="val", batch=c.train.batch, **common)
            world = run.world()

            def all_of(name: str) -> dict[str, Any]:
                curve = distance_curve(
                    lambda s: torch.cat(
                        [model.encode(world.render(x, c.model.encoder.image_size)) for x in s.split(128)]
                    ),
                    world,
                    states=64 if self.args.quick else 512,
                    seed=self.args.episode_seed,
                    device=self.device,
                )
                return {
                    f"depth_{name}": depth_errors(model, held),
                    f"one_step_{name}": one_step(model, pairs),
                    f"range_{name}": to_dict(curve),
                }

            out = all_of("running")
            with torch.autocast(self.device.type, torch.bfloat16):
                out["one_step_running_bf16"] = one_step(model, pairs)
            with own_statistics(model):
                out["one_step_batch"] = one_step(model, pairs)
            with new_statistics(model, train, 3 if self.args.quick else 50):
                out |= all_of("new")
        return out

    def plan(self, run: Any, model: Any, entry: dict[str, Any], receding: int = 5) -> None:
        """Random goals under both costs. Again with new statistics of BatchNorm, where those halve the error."""
        began = time.time()
        plans = entry.setdefault("planning", {})
        self._plan(run, model, plans, "", receding)
        if receding == 5 and self._lags(entry):
            with new_statistics(model, run.source(self.device, compiled=False), 3 if self.args.quick else 50):
                self._plan(run, model, plans, " new statistics", receding)
        entry["plan_s"] = entry.get("plan_s", 0.0) + time.time() - began

    @staticmethod
    def _lags(entry: dict[str, Any]) -> bool:
        old, new = (entry[f"depth_{name}"]["error_depth"][0] for name in ("running", "new"))
        return math.isfinite(new) and not old < 2 * new

    def _plan(self, run: Any, model: Any, plans: dict[str, Any], note: str, receding: int) -> None:
        from lpwm.evaluate.agent import Agent
        from lpwm.evaluate.evaluate import evaluate

        agent = Agent(
            self.method,
            model.eval(),
            run.config.model.encoder.image_size,
            self.stats_of(run),
            run.config.data.frameskip,
            seed=self.args.seed,
            method=self.method,
            run_hash=run.hash,
        )
        for along in (0.0, 1.0):
            name = f"R{receding} along {along:g}{note}"
            if name in plans:
                continue
            settings = planning(self.args, receding, along)
            result = evaluate([agent], run.world(), settings, holdout=run.config.data.holdout, device=self.device)
            plans[name] = outcome(result.played.records[0][self.method][0][0])

    def stats_of(self, run: Any) -> Any:
        return run.source(self.device, compiled=False).stats

    def replan(self) -> None:
        """All cells are done: R=1, the best at R=5 first."""
        from lpwm.train import Run, load

        for name, entry in sorted(self.cells.items(), key=lambda item: -best(item[1])):
            cell = next((c for c in self.wanted if c.name == name), None)
            if not entry.get("finished") or cell is None or "R1 along 1" in entry.get("planning", {}):
                continue
            if self.left < min(self.args.least, 60.0):
                return
            run = Run.create(config_of(cell, self.method, self.args), self.args.work / "runs", f"{self.method}-{name}")
            if not (run.folder / "checkpoints").exists():  # made on another machine
                continue
            self.plan(run, load(run.folder, self.device).model, entry, 1)
            self.save()
            self.tell(cell, entry)

    def tell(self, cell: Cell, e: dict[str, Any]) -> None:
        if "depth_running" not in e:
            return
        d, new, r = e["depth_running"], e["depth_new"], e["range_running"]["relative"]
        rates = ", ".join(
            f"{n}: {100 * p['latched']:.0f}/{100 * p['terminal']:.0f}" for n, p in e.get("planning", {}).items()
        )
        at = [
            f"{x:.3g}"
            for x in (
                d["error_depth"][0],
                d["copy_error_depth"][0],
                d["error_depth"][-1],
                d["copy_error_depth"][-1],
                new["error_depth"][0],
            )
        ]
        say(
            f"{self.method} {cell.name}: error {at[0]} ({at[1]}), deepest {at[2]} ({at[3]}), "
            f"new statistics {at[4]}; range "
            + " ".join(f"{x:.2f}" for x in r[:4])
            + f"; active {e['last_train'].get('active_fraction') or 0:.2f}, dimension "
            f"{e['last_train'].get('effective_dimension') or 0:.1f}; reached/at the end in %: {rates}; "
            f"{e.get('train_s', 0):.0f} + {e.get('measure_s', 0):.0f} + {e.get('plan_s', 0):.0f} s"
        )


def best(entry: dict[str, Any]) -> float:
    return max((p["latched"] for p in entry.get("planning", {}).values()), default=-1.0)


def outcome(record: Any) -> dict[str, Any]:
    return {
        "latched": float(record.latched(50).mean()),
        "terminal": float(record.terminal(50).mean()),
        "latched_episodes": "".join(str(int(x)) for x in record.latched(50)),
        "terminal_episodes": "".join(str(int(x)) for x in record.terminal(50)),
        "final_distance": [round(float(x), 1) for x in record.final_distance(50)],
        "wall_s": record.wall_s,
    }


def one_step(model: Any, clips: Any, batches: int = 4) -> dict[str, float]:
    """The monitors on held-out clips of training's length, every position predicted; in the model's present mode."""
    import torch

    from lpwm.train.monitors import measure

    rows = []
    for step in range(min(batches, clips.steps_per_epoch)):
        clip = clips.batch(step)
        z = model.encode(clip.pixels)
        K = min(model.history, z.shape[1] - 1)
        zhat, other = (model.predict(z[:, :K], a[:, :K]) for a in (clip.actions, clip.actions.roll(1, dims=0)))
        rows.append(measure(z, zhat, permuted_zhat_BKD=other, sparse=model.config.sparse))
    return {name: float(torch.stack([r[name] for r in rows]).mean()) for name in rows[0]}


def norms(model: Any) -> list[Any]:
    from lpwm.model.layers import BatchNorm

    return [m for m in model.modules() if isinstance(m, BatchNorm)]


@contextlib.contextmanager
def own_statistics(model: Any) -> Iterator[None]:
    """BatchNorm by each batch's own statistics, everything else (dropout) as in evaluation; then as before."""
    model.eval()
    kept = [(m, m.running_mean.clone(), m.running_var.clone(), m.momentum) for m in norms(model)]
    for m, *_ in kept:
        m.training = True
    try:
        yield
    finally:
        for m, mean, var, momentum in kept:
            m.running_mean.copy_(mean)
            m.running_var.copy_(var)
            m.training, m.momentum = False, momentum


@contextlib.contextmanager
def new_statistics(model: Any, source: Any, batches: int) -> Iterator[None]:
    """BatchNorm by statistics averaged over training batches with the weights as they are now; then as before."""
    import torch

    with own_statistics(model):
        with torch.no_grad():
            for i in range(batches):
                for m in norms(model):
                    m.momentum = 1 / (i + 1)
                clip = source.batch(i)
                z = model.encode(clip.pixels)
                K = min(model.history, z.shape[1] - 1)
                model.predict(z[:, :K], clip.actions[:, :K])
        for m in norms(model):
            m.training = False
        yield


# All methods ------------------------------------------------------------------------------------------------


def controls(args: argparse.Namespace) -> None:
    """Doing nothing, random actions and the planner on the true dynamics, on the same goals."""
    import torch

    from lpwm.evaluate.agent import Agent
    from lpwm.evaluate.evaluate import Evaluator
    from lpwm.evaluate.goals import episode_sets
    from lpwm.train.run import Run

    path = args.work / "results" / "controls.json"
    if not path.exists():
        config = config_of(args.cells[0], "lpwm", args)
        run = Run.create(config, args.work / "runs", "controls")
        stats = run.source(torch.device("cpu"), compiled=False).stats
        nobody = Agent("nobody", None, 0, stats, config.data.frameskip)
        rates: dict[str, Any] = {}
        for receding in (5, 1):
            for along in (0.0, 1.0):
                settings = replace(planning(args, receding, along), controls=("nothing", "random", "oracle"))
                sets = episode_sets(run.world(), settings, run.data, config.data.holdout, config.data.frameskip)
                runner = Evaluator([nobody], run.world(), settings, sets, device=args.device)
                for name in ("nothing", "random") if not rates else ():
                    rates[name] = outcome(runner.run(runner.control_job(name, "random", 5, receding, 0))[0])
                job = runner.control_job("oracle", "random", 5, receding, 0)
                first = runner.run(job)[0]
                rates[f"oracle R{receding} along {along:g}"] = outcome(first)
        start = [round(float(x), 1) for x in first.distance_BT[:, 0]]
        about = {"format": "lpwm piecewise full controls", "episode_seed": args.episode_seed, "goals": args.goals}
        write(path, {**about, "start_distance": start, "controls": rates})
    text = path.read_text()
    (args.out / "controls.json").write_text(text)
    for name, value in json.loads(text)["controls"].items():
        say(f"{name}: {100 * value['latched']:.0f} % reached, {100 * value['terminal']:.0f} % at the end")


def main() -> int:
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.method:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            Screen(args).go()
            sys.stdout.flush()
            os._exit(0)  # all is written; under CUDA's multi-process service the interpreter's own end may crash
        say(f"{args.method} was interrupted; the same command continues")
        return 3
    from lpwm.train.prepare import prepare_data

    prepare_data(config_of(args.cells[0], "lpwm", args).data, args.work / "runs" / "data")
    words = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--began", str(BEGAN), "--method"]
    jobs = {m: subprocess.Popen([*words, m]) for m in args.methods}
    try:
        controls(args)
    except Exception as error:
        say(f"the controls failed: {type(error).__name__}: {error}")
    asked, again = 0.0, 2
    while any(job.poll() is None for job in jobs.values()):
        time.sleep(0.2)
        over = time.time() - BEGAN - args.seconds
        for m, job in jobs.items():
            if job.poll() not in (None, 0, 3) and again and over < -args.least and not args.quick:
                say(f"{m} ended with {job.returncode}: a new process takes the other cells")
                jobs[m], again = subprocess.Popen([*words, m]), again - 1
        if over > 0 and not asked:
            say("time is over: training is interrupted and saved")
            asked = time.time()
            for job in jobs.values():
                job.terminate()
        if asked and time.time() - asked > 20:
            for job in jobs.values():
                job.kill()
    codes = {m: job.returncode for m, job in jobs.items()}
    say(f"ended: {codes}")
    return 0 if all(code in (0, 3) for code in codes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
