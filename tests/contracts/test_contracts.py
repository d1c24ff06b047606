"""Everything registered keeps its contract."""

from dataclasses import asdict, dataclass, replace

import pytest
import torch
from predictors import EndlessGRU
from torch import nn

from lpwm import testing
from lpwm.model.predictors import PREDICTORS
from lpwm.model.predictors.linear import LTI
from lpwm.plan import CEMConfig
from lpwm.plan.config import SOLVERS
from lpwm.worlds import WORLDS, WorldSpec, row_keys
from lpwm.worlds.base import uniform_at

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


@dataclass(frozen=True)
class Line:
    """A point on a line that keeps every promise; subclasses break one each."""

    @property
    def spec(self):
        bounds = {"state_low": (-2.0,), "state_high": (2.0,)}
        names = {"state_names": ("x",), "action_names": ("push",), "factors": ("x",)}
        actions = {"action_low": (-1.0,), "action_high": (1.0,)}
        return WorldSpec("line", asdict(self), **names, **actions, **bounds, frame=16, episode=20, success_within=0.1)

    def sample_state(self, n, key, start=0):
        return uniform_at(row_keys((*key, "state"), n, start), 1) * 2 - 1

    def sample_goal(self, n, key, start=0):
        return self.sample_state(n, (*key, "goal"), start)

    def step(self, state, action):
        return (state + 0.1 * action).clamp(-2, 2)

    def render(self, state, size=None):
        return self.renderer(size)(state)

    def renderer(self, size=None, device="cpu"):
        size = size or 16
        return lambda state: (state * 60 + 128).to(torch.uint8)[:, :, None, None].expand(-1, 3, size, size).contiguous()

    def success(self, state, goal):
        return self.distance(state, goal) < 0.1

    def distance(self, state, goal):
        return (state - goal)[..., 0].abs()

    def factors(self, state):
        return {"x": state[:, 0]}


def broken(**methods):
    return dataclass(frozen=True)(type("Broken", (Line,), methods))()


def test_the_line_keeps_its_promises():
    testing.check_world(Line())


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ({"sample_state": lambda s, n, key, start=0: torch.rand(n, 1)}, r"row i of sample_state .*differ by up to 0"),
        ({"sample_state": lambda s, n, key, start=0: Line.sample_state(s, n, key, start).double()}, "float64"),
        ({"sample_state": lambda s, n, key, start=0: 9 * Line.sample_state(s, n, key, start)}, r"not in \[-2, 2\]"),
        ({"step": lambda s, x, a: x + a.mean()}, r"leading shape|its bounds"),
        ({"step": lambda s, x, a: x.add_(0.1 * a).clamp_(-2, 2)}, "must not change its argument"),
        ({"step": lambda s, x, a: x + 5}, r"entry 0 is in \[.*\] and not in \[-2, 2\]"),
        ({"render": lambda s, x, size=None: Line.render(s, x, size).float()}, r"must be uint8 of shape \(1, 3, 16, 16"),
        ({"render": lambda s, x, size=None: Line.render(s, x, 16)}, r"65\), not uint8 of shape \(1, 3, 16, 16\)"),
        ({"success": lambda s, x, g: s.distance(x, g) < 0.3}, r"success_within = 0\.1, and differs in \d+ of 200 rows"),
        ({"distance": lambda s, x, g: (x - g)[..., 0]}, "distance must not be negative"),
        ({"factors": lambda s, x: {"y": x[:, 0]}}, r"factors are \('y',\), and spec.factors says \('x',\)"),
        ({"spec": property(lambda s: replace(Line().spec, options={"g": 1}))}, "rebuilds it"),
        ({"policies": {"random": lambda world: Wild()}}, r"policy 'random' must stay in its bounds"),
    ],
)
def test_a_world_that_breaks_a_promise(methods, words):
    with pytest.raises(testing.ContractError, match=words) as caught:
        testing.check_world(broken(**methods))
    assert "\n" not in str(caught.value)


class Wild:
    def begin(self, state, goal, keys):
        return state.new_zeros((len(state), 0))

    def act(self, state, goal, carried, keys, t):
        return torch.full((len(state), 1), 7.0), carried


class Acausal(LTI):
    def __init__(self, config, latent):
        super().__init__(latent, config.history)

    def forward(self, z, e):
        return super().forward(z, e) + z.mean(1, keepdim=True)


class Wide(nn.Module):
    def __init__(self, config, latent):
        super().__init__()
        self.lags, self.out = config.history, nn.Linear(latent, latent + 1)

    def forward(self, z, e):
        return self.out(z + e)


class Unknown(nn.Module):
    """A weight that μP cannot know."""

    def __init__(self, config, latent):
        super().__init__()
        self.lags, self.W = config.history, nn.Parameter(torch.zeros(latent, latent))

    def forward(self, z, e):
        return (z + e) @ self.W


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (EndlessGRU, r"step differs from forward by \d\.\d+ .*window of 3 has slid: it remembers what left the window"),
        (Acausal, r"code at position 1 moves an earlier prediction by 0\.\d+"),
        (Wide, r"must be float64 of shape \(2, 1, 12\), not float64 of shape \(2, 1, 13\)"),
        (Unknown, "mup"),
        (lambda config, latent: 3, "must build a torch.nn.Module, not int"),
    ],
)
def test_a_predictor_that_breaks_a_promise(build, words):
    with pytest.raises(ValueError, match=words) as caught:
        testing.check_predictor(build)
    assert "\n" not in str(caught.value)


def test_a_solver_that_breaks_a_promise():
    honest = CEMConfig(samples=64, elites=8, iterations=8).build()

    class Crowded:
        def solve(self, problem, start=None, seed=0):
            return honest.solve(problem, start, seed + problem.batch)

    class Boastful:
        def solve(self, problem, start=None, seed=0):
            plan = honest.solve(problem, start, seed)
            return replace(plan, costs_B=plan.costs_B - 1)

    with pytest.raises(testing.ContractError, match=r"not on the rest of the batch \(they differ by up to"):
        testing.check_solver(Crowded())
    with pytest.raises(testing.ContractError, match=r"costs must be those of the actions returned .*up to 1\)"):
        testing.check_solver(Boastful())
