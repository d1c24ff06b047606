"""Records of sweeps that were never run, with known answers."""

import hashlib

import numpy as np

from lpwm.core.json import to_json
from lpwm.recipes import recipe
from lpwm.sweep.grid import expand, parse_grid
from lpwm.sweep.ledger import Record
from lpwm.sweep.status import Sweep
from lpwm.sweep.worker import CellResult, HeldOut, Measured, Planned, Seconds

LADDER = """
recipe = "wall/{rung}/{method}"
seeds = [0, 1, 2, 3]
select_seeds = [0, 1]
measure = "latched"
goals = "dataset"
[axes]
rung = ["lti1", "mlp-lti", "deep-adaln"]
method = ["lpwm", "lewm", "lpwm-mu1"]
"model.latent" = [384, 768, 1536]
"objective.lam" = [0.1, 1.0, 10.0]
"optim.lr" = [5e-5, 5e-4, 5e-3]
[eval.closed]
preset = "ladder"
[eval.open]
preset = "open"
"""


def bits(rate, planner_seeds, episodes, *key):
    seed = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")
    draw = np.random.default_rng(seed).random((planner_seeds, episodes)) < rate
    return ["".join("1" if b else "0" for b in line) for line in draw]


def record(cell, rates, dead="", active=0.4):
    """A done record; rates: {eval name: success rate, or exact strings of successes}."""
    evals = {}
    for name, e in cell.evals.items():
        cells = []
        for goals in e.goals:
            for h, r in e.pairs():
                budgets = {}
                for budget in e.budgets:
                    value = rates[name]
                    lines = (
                        bits(value, e.planner_seeds, e.episodes, cell.hash, name, goals)
                        if isinstance(value, float)
                        else value
                    )
                    rate = float(np.mean([[c == "1" for c in s] for s in lines]))
                    one = Measured(rate, tuple(lines), {"do nothing": 0.02, "random actions": 0.05, "oracle": 0.9})
                    budgets[str(budget)] = {"latched": one, "terminal": one}
                cells.append(Planned(goals, h, r, "d", e.episodes, budgets))
        evals[name] = tuple(cells)
    held = HeldOut(error_depth=(0.1,), copy_error_depth=(0.3,))
    result = CellResult("r", "d", dead, 10, {"active_fraction": active}, held, {} if dead else evals, Seconds(1.0, 1.0))
    return Record(
        hash=cell.hash,
        attempt=1,
        host="h",
        pid=1,
        lpwm="0.1.0",
        started=0.0,
        finished=2.0,
        cell=to_json(cell),
        result=to_json(result),
        files={},
    )


def sweep_of(grid, cells):
    return Sweep(
        name=grid.name,
        seeds=grid.seeds,
        select_seeds=grid.select_seeds,
        measure=grid.measure,
        goals=grid.goals,
        cells=tuple(c.hash for c in cells),
    )


def ladder(text=LADDER):
    """Sparse is ahead on MLP∘LTI by 40 points, the best λ is 1 and the best η 5e-4; η = 5e-3 kills it."""
    grid = parse_grid(text, "made-up")
    cells = expand(grid, recipe)
    records = []
    for cell in cells:
        c = cell.config
        rung, sparse = c.model.predictor.rung, c.model.link != "identity"
        top = {"lti1": 0.25, "mlp-lti": 0.8 if sparse else 0.4, "deep-adaln": 0.85}[rung]
        rate = top - 0.2 * abs(np.log10(c.objective.lam)) - 0.2 * abs(np.log10(c.optim.lr / 5e-4))
        dead = "this run is dead (made up)." if rung == "mlp-lti" and c.optim.lr == 5e-3 else ""
        records.append(record(cell, {"closed": float(max(rate, 0)), "open": float(max(rate - 0.15, 0))}, dead))
    return grid, cells, records
