"""Receding horizon: the shift, the context, and the true Piecewise world driven to random goals."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tools import refused

from lpwm.core.rng import generator
from lpwm.model import register_predictor
from lpwm.model.predictors.linear import LTI
from lpwm.plan import CEM, LQR, MPC, CEMConfig, LatentProblem, LinearDynamics, LQRConfig, MPCConfig, Plan, Solver
from lpwm.plan.lqr import dense_plan


class Scripted(Solver):
    """Returns 1, 2, 3, … and remembers its arguments."""

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


def drive(mpc, make_problem, plans, batch=2, blocks=None):
    mpc.begin(torch.zeros(batch, 4), blocks)
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


def test_no_plan_reaches_beyond_the_end(make_problem):
    solver = Scripted()
    drive(MPC(solver, MPCConfig(horizon=4, receding=1)), make_problem, 6, blocks=5)
    assert [p.horizon for p in solver.problems] == [4, 4, 3, 2, 1, 1]
    starts = [None if s is None else s[0, :, 0].tolist() for s in solver.starts]
    assert starts[:4] == [None, [2.0, 3.0, 4.0, 0.0], [12.0, 13.0, 14.0], [22.0, 23.0]] and starts[5] is None
    solver = Scripted()
    blocks = drive(MPC(solver, MPCConfig(horizon=4, receding=3)), make_problem, 2, blocks=5)
    assert [b.shape[1] for b in blocks] == [3, 2]


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


def test_misuse_is_one_sentence(make_problem):
    mpc = MPC(Scripted(), MPCConfig(horizon=3, receding=1))
    for call in (lambda: mpc.plan(make_problem, 0), lambda: mpc.observe(torch.zeros(1), torch.zeros(1))):
        refused("call begin", call)
    mpc.begin(torch.zeros(1, 4))
    refused("the problem plans 2 blocks", mpc.plan, lambda f, p, h: make_problem(f, p, 2), 0)


def random_dynamics(D, width, lags, seed):
    g = generator("dynamics", seed)
    A = tuple(torch.randn(D, D, generator=g, dtype=torch.float64) / D**0.5 for _ in range(lags))
    B, bias = (torch.randn(D, n, generator=g, dtype=torch.float64) for n in (width, 1))
    return LinearDynamics(A, B, bias[:, 0])


def roll(dynamics, z_CD, actions_HA, every=False):
    """One environment, one step at a time, in NumPy: the end, or all blocks (H, D)."""
    past = list(z_CD.numpy())
    for a in actions_HA:
        z = dynamics.B.numpy() @ a + dynamics.bias.numpy()
        for i, A in enumerate(dynamics.A):
            if i < len(past):
                z = z + A.numpy() @ past[-1 - i]
        past.append(z)
    return np.stack(past[len(z_CD) :]) if every else past[-1]


def shares(horizon, path_discount):
    """What each block counts: 1 for the last, `path_discount` times as much for each one earlier, together 1."""
    w = np.array([float(path_discount) ** (horizon - 1 - i) for i in range(horizon)])
    return w / w.sum()


def least_squares(dynamics, z_CD, goal_D, horizon, control, path_discount):
    """min Σ_h w_h ‖z_h(a) − goal‖²/D + ρ‖a‖² with the z_h's matrix found by simulating every unit action."""
    D, width = dynamics.B.shape
    n = horizon * width
    w_HD = np.repeat(np.sqrt(shares(horizon, path_discount) / D)[:, None], D, 1)
    free = roll(dynamics, z_CD, np.zeros((horizon, width)), every=True)
    moved = [roll(dynamics, z_CD, e.reshape(horizon, width), every=True) - free for e in np.eye(n)]
    G = np.stack([(w_HD * m).ravel() for m in moved], 1)
    rows = np.concatenate((G, np.sqrt(control) * np.eye(n)))
    target = np.concatenate(((w_HD * (goal_D.numpy() - free)).ravel(), np.zeros(n)))
    return np.linalg.lstsq(rows, target, rcond=None)[0].reshape(horizon, width)


@settings(max_examples=25)
@given(
    D=st.integers(1, 8),
    width=st.integers(1, 4),
    lags=st.integers(1, 3),
    context=st.integers(1, 4),
    horizon=st.integers(1, 5),
    control=st.sampled_from([0.0, 1e-3, 0.3]),
    path_discount=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
# Where the last actions reach everything, nothing is left for those before but rounding.
@example(D=1, width=3, lags=3, context=2, horizon=9, control=0.0, path_discount=0.0, seed=2)
@example(D=1, width=3, lags=3, context=2, horizon=9, control=0.0, path_discount=1.0, seed=2)
@example(D=5, width=3, lags=2, context=2, horizon=2, control=0.0, path_discount=0.0, seed=0)
def test_the_plan_is_that_of_least_squares(D, width, lags, context, horizon, control, path_discount, seed):
    dynamics = random_dynamics(D, width, lags, seed)
    g = generator("task", seed)
    z = torch.randn(2, context, D, generator=g, dtype=torch.float64)
    goal = torch.randn(2, D, generator=g, dtype=torch.float64)
    dense = dense_plan(dynamics, z, goal, horizon, control, path_discount)
    for e in range(2):
        exact = least_squares(dynamics, z[e], goal[e], horizon, control, path_discount)
        np.testing.assert_allclose(dense[e].numpy(), exact, rtol=1e-6, atol=1e-8)


@pytest.fixture
def world_model(real_model):
    def make(rung="lti", link="identity", action_encoder="linear"):
        return real_model(rung, dtype=torch.float64, scale=0.5, model=dict(link=link, action_encoder=action_encoder))

    return make


class Residual(LTI):
    def __init__(self, config, latent):
        super().__init__(latent, config.history)

    def forward(self, z_BKD, e_BKD):
        return z_BKD + super().forward(z_BKD, e_BKD)


@pytest.mark.parametrize("rung", ["lti", "lti1", "residual"])
@pytest.mark.parametrize("context", [1, 2, 3])
def test_the_maps_of_linear_models_are_exact(rung, context, world_model):
    register_predictor("residual", Residual)
    model = world_model(rung)
    dynamics = LinearDynamics.from_model(model)
    assert len(dynamics.A) == (1 if rung == "lti1" else 3)
    g = generator("probe")
    z = torch.randn(1, context, 8, generator=g, dtype=torch.float64)
    actions = torch.randn(1, 1, 6, 4, generator=g, dtype=torch.float64)
    past = torch.randn(1, context - 1, 4, generator=g, dtype=torch.float64) if context > 1 else None
    with torch.no_grad():
        true = model.rollout(z, actions, past, last_only=True)[0, 0]
    mine = roll(dynamics, z[0], actions[0, 0].numpy())
    np.testing.assert_allclose(mine, true.numpy(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("path_discount", [0.0, 0.7])
def test_lqr_is_at_least_as_good_as_cem_on_the_real_model(path_discount, world_model):
    model = world_model("lti")
    g = generator("goals")
    z, goal = torch.randn(3, 1, 8, generator=g).double(), torch.randn(3, 8, generator=g).double()
    problem = LatentProblem(model, z, goal, None, 2, path_discount=path_discount)
    cem = CEM(CEMConfig(100, 10, 15)).solve(problem).costs_B
    plan = LQR().solve(problem)
    assert (plan.costs_B <= cem + 1e-9).all()
    assert (LQR(LQRConfig(control=1.0)).solve(problem).actions_BHA.norm() < plan.actions_BHA.norm()).all()


def test_dynamics_that_ignore_the_action_plan_nothing():
    dynamics = LinearDynamics((torch.eye(3).double(),), torch.zeros(3, 2).double(), torch.zeros(3).double())
    z, goal = torch.ones(1, 1, 3).double(), torch.zeros(1, 3).double()
    assert torch.equal(dense_plan(dynamics, z, goal, 3), torch.zeros(1, 3, 2).double())


@pytest.mark.parametrize(
    "wrong", [{"link": "reprelu"}, {"rung": "mlp-lti"}, {"action_encoder": "mlp"}, {"rung": "deep-adaln"}]
)
def test_other_models_are_refused_with_a_remedy(wrong, world_model):
    refused("train with link 'identity'", LinearDynamics.from_model, world_model(**wrong))
