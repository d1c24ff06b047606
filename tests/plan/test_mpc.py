"""Receding horizon: the shift, the context, and the true Piecewise world driven to random goals."""

from __future__ import annotations

import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.core.rng import fold, normal_at
from lpwm.plan import CEM, MPC, CEMConfig, LatentProblem, MPCConfig, OracleProblem, Plan, Solver
from lpwm.worlds import make


class Scripted(Solver):
    """Returns 1, 2, 3, … and remembers what it was asked."""

    def __init__(self):
        self.starts, self.seeds, self.problems = [], [], []

    def solve(self, problem, start=None, seed=0, compile=False):
        self.starts.append(start), self.seeds.append(seed), self.problems.append(problem)
        shape = (problem.batch, problem.horizon, problem.action_dim)
        steps = torch.arange(1.0, problem.horizon + 1) + 10 * (len(self.seeds) - 1)
        return Plan(steps[None, :, None].expand(shape), torch.zeros(problem.batch))


@pytest.fixture
def make_problem(linear_model):
    model = linear_model(dtype=torch.float32)
    return lambda frames, past, h: LatentProblem(model, frames, torch.zeros_like(frames[:, 0]), past, h)


def drive(mpc, make_problem, plans, batch=2):
    mpc.begin(torch.zeros(batch, 4))
    out, t = [], 0
    for _ in range(plans):
        blocks = mpc.plan(make_problem, seed=3)
        out.append(blocks)
        for block in blocks.unbind(1):
            t += 1
            mpc.observe(torch.full((batch, 4), float(t)), block)
    return out


def test_the_warm_start_is_the_shifted_tail(make_problem):
    solver = Scripted()
    blocks = drive(MPC(solver, MPCConfig(horizon=4, receding=1)), make_problem, 3)
    assert [b[0, :, 0].tolist() for b in blocks] == [[1.0], [11.0], [21.0]]
    assert solver.starts[0] is None
    assert solver.starts[1][0, :, 0].tolist() == [2.0, 3.0, 4.0, 0.0]
    assert solver.starts[2][1, :, 1].tolist() == [12.0, 13.0, 14.0, 0.0]
    assert len(set(solver.seeds)) == 3
    solver = Scripted()
    drive(MPC(solver, MPCConfig(horizon=5, receding=3)), make_problem, 2)
    assert solver.starts[1][0, :, 0].tolist() == [4.0, 5.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("config", [MPCConfig(4, 1, warm=False), MPCConfig(4, 4, warm=True)])
def test_cold_starts(config, make_problem):
    solver = Scripted()
    drive(MPC(solver, config), make_problem, 3)
    assert solver.starts == [None, None, None]


def test_the_context_is_the_real_history(make_problem):
    solver = Scripted()
    drive(MPC(solver, MPCConfig(horizon=2, receding=1, context=3)), make_problem, 5)
    seen = [p.z_BCD[0, :, 0].tolist() for p in solver.problems]
    assert seen == [[0.0], [0.0, 1.0], [0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]
    blocks = [[] if p.past_BPA is None else p.past_BPA[0, :, 0].tolist() for p in solver.problems]
    assert blocks == [[], [1.0], [1.0, 11.0], [11.0, 21.0], [21.0, 31.0]]
    solver = Scripted()
    drive(MPC(solver, MPCConfig(horizon=2, receding=2)), make_problem, 3)
    assert [p.z_BCD[0, :, 0].tolist() for p in solver.problems] == [[0.0], [2.0], [4.0]]


def test_begin_forgets(make_problem):
    solver = Scripted()
    mpc = MPC(solver, MPCConfig(horizon=3, receding=1, context=2))
    drive(mpc, make_problem, 2, batch=4)
    first = solver.seeds[0]
    drive(mpc, make_problem, 1)
    assert solver.starts[-1] is None and solver.seeds[-1] == first
    assert solver.problems[-1].z_BCD.shape[1] == 1


def test_the_std_starts_again_from_one(linear_problem):
    """A warm CEM explores as widely as a cold one: with all samples elite its std is that of the raw noise."""
    problem = linear_problem(batch=1, horizon=2)
    start = torch.full((1, 2, 2), 0.7, dtype=torch.float64)
    plan = CEM(CEMConfig(samples=50, elites=50, iterations=1)).solve(problem, start, seed=8)
    eps = normal_at(fold(fold(8, torch.tensor([0])), torch.tensor(0)), 200, torch.float64).view(50, 2, 2)
    eps[0] = 0
    torch.testing.assert_close(plan.info["std"][0], eps.std(0))
    torch.testing.assert_close(plan.actions_BHA[0], 0.7 + eps.mean(0))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"horizon": 0}, "horizon is 0"),
        ({"receding": 0}, "receding is 0"),
        ({"horizon": 3, "receding": 4}, "lengthen the horizon"),
        ({"context": 0}, "context is 0"),
    ],
)
def test_bad_controllers_are_one_sentence(options, says):
    with pytest.raises(UserError, match=says):
        MPCConfig(**options)


def test_misuse_is_one_sentence(make_problem):
    mpc = MPC(Scripted(), MPCConfig(horizon=3, receding=1))
    for call in (lambda: mpc.plan(make_problem, 0), lambda: mpc.observe(torch.zeros(1), torch.zeros(1))):
        with pytest.raises(UserError, match="call begin"):
            call()
    mpc.begin(torch.zeros(1, 4))
    with pytest.raises(UserError, match="the problem plans 2 blocks"):
        mpc.plan(lambda f, p, h: make_problem(f, p, 2), 0)


STD = 3**-0.5  # of raw actions uniform on [−1, 1]


def reached(receding, warm, episodes, seed=0, steps=50, frameskip=5):
    """Latched success of the true Piecewise world as the model, random goals, the paper's CEM."""
    world = make("piecewise", g=2)
    state, goal = world.sample_state(episodes, ("oracle",)), world.sample_goal(episodes, ("oracle",))
    mpc = MPC(CEM(), MPCConfig(5, receding, warm))
    mpc.begin(state)
    done = world.success(state, goal)
    for _ in range(steps // (receding * frameskip)):
        for block in mpc.plan(
            lambda f, _, h: OracleProblem(world, f[:, -1], goal, h, frameskip, (0.0,), (STD,)), seed
        ).unbind(1):
            for raw in STD * block.unflatten(-1, (frameskip, 2)).transpose(0, 1):
                state = world.step(state, raw)
                done = done | world.success(state, goal)
            mpc.observe(state, block)
    return done.float().mean()


def test_the_true_world_as_the_model():
    """Ten goals at the paper's budget: R=5 and warm R=1 arrive, cold R=1 dawdles (method §5)."""
    assert reached(5, True, 10) >= 0.95
    assert reached(1, True, 10) >= 0.9 > 0.75 >= reached(1, False, 10)
