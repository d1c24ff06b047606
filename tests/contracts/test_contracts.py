"""Everything registered keeps its contract."""

import pytest

from lpwm import testing
from lpwm.model.predictors import PREDICTORS
from lpwm.plan import SOLVERS
from lpwm.worlds import WORLDS

OPTIONS = {
    "piecewise": [{}, {"g": 3, "scale": 4.0, "visible": True}],
    "two_room": [{}, {"doors": (60, 170), "thickness": 21}],
    "wall": [{}, {"wall": 20, "door": 48}],
}
SMALL = {
    "cem": {"samples": 64, "elites": 8, "iterations": 10},
    "icem": {"samples": 64, "elites": 8, "iterations": 10, "decay": 1.2},
    "mppi": {"samples": 64, "iterations": 20},
    "gradient": {"restarts": 3, "iterations": 60},
}


@pytest.mark.parametrize(("name", "options"), [(n, o) for n in WORLDS for o in OPTIONS.get(n, [{}])])
def test_worlds(name, options):
    needs = {"cube": "mujoco", "pusht": "pymunk"}
    if name in needs:
        pytest.importorskip(needs[name])
    testing.check_world(name, **options)


@pytest.mark.parametrize("history", [1, 2, 3, 4])
@pytest.mark.parametrize("name", PREDICTORS)
def test_predictors(name, history):
    testing.check_predictor(name, history=history)


@pytest.mark.parametrize("name", SOLVERS)
def test_solvers(name):
    testing.check_solver(name, **SMALL.get(name, {}))
