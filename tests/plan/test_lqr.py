"""LQR against dense least squares written out, and on the real model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.model.config import PredictorConfig
from lpwm.model.encoder import EncoderConfig
from lpwm.model.world_model import ModelConfig, WorldModel
from lpwm.plan import CEM, LQR, CEMConfig, LatentProblem, LinearDynamics, LQRConfig
from lpwm.plan.lqr import dense_plan, riccati, riccati_plan


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
def test_dense_and_riccati_are_the_least_squares_plan(D, width, lags, context, horizon, control, path_discount, seed):
    dynamics = random_dynamics(D, width, lags, seed)
    g = generator("task", seed)
    z = torch.randn(2, context, D, generator=g, dtype=torch.float64)
    goal = torch.randn(2, D, generator=g, dtype=torch.float64)
    dense = dense_plan(dynamics, z, goal, horizon, control, path_discount)
    gains = riccati_plan(dynamics, z, goal, horizon, control, path_discount)
    for e in range(2):
        exact = least_squares(dynamics, z[e], goal[e], horizon, control, path_discount)
        np.testing.assert_allclose(dense[e].numpy(), exact, rtol=1e-6, atol=1e-8)
        ends = [roll(dynamics, z[e], a, every=True) for a in (exact, gains[e].numpy())]
        cost = [shares(horizon, path_discount) @ ((z_HD - goal[e].numpy()) ** 2).mean(1) for z_HD in ends]
        assert np.abs(gains[e].numpy()).max() < 1e3  # of several plans none is absurd
        if control:  # the minimizer is unique
            np.testing.assert_allclose(gains[e].numpy(), exact, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(cost[1], cost[0], rtol=1e-5, atol=1e-8)


def test_the_gains_are_a_feedback_law():
    """Pushed off the plan half way, the gains replan the rest: the tail of the problem solved from there."""
    dynamics, H, rho = random_dynamics(5, 2, 2, 3), 4, 0.1
    g = generator("push")
    z = torch.randn(1, 2, 5, generator=g, dtype=torch.float64)
    goal = torch.randn(1, 5, generator=g, dtype=torch.float64)
    x = torch.cat((z[0, 1] + 1, z[0, 0] + 1, torch.ones(1, dtype=torch.float64), goal[0]))
    action = -riccati(dynamics, H, rho)[2] @ x
    tail = dense_plan(dynamics, x[:10].view(1, 2, 5).flip(1), goal, 2, rho)
    torch.testing.assert_close(action, tail[0, 0], rtol=1e-11, atol=1e-11)


def world_model(rung="lti", link="identity", action_encoder="linear", latent=8, history=3):
    encoder = EncoderConfig(image_size=16, patch=8, width=8, depth=1, heads=1, head_dim=8, mlp=8)
    predictor = PredictorConfig(rung, history, heads=2, head_dim=8, mlp=16, head_hidden=16)
    config = ModelConfig(latent=latent, link=link, encoder=encoder, predictor=predictor, action_encoder=action_encoder)
    model = WorldModel(config, action_dim=4).double().eval()
    g = generator("weights", rung)
    with torch.no_grad():
        for p in (*model.predictor.parameters(), *model.embed_action.parameters()):
            p.copy_(0.5 * torch.randn(p.shape, generator=g, dtype=p.dtype) / p.shape[-1] ** 0.5)
    return model


@pytest.mark.parametrize("rung", ["lti", "lti1"])
@pytest.mark.parametrize("context", [1, 2, 3])
def test_the_real_models_maps_are_read_exactly(rung, context):
    model = world_model(rung)
    dynamics = LinearDynamics.from_model(model)
    assert len(dynamics.A) == (3 if rung == "lti" else 1)
    g = generator("probe")
    z = torch.randn(1, context, 8, generator=g, dtype=torch.float64)
    actions = torch.randn(1, 1, 6, 4, generator=g, dtype=torch.float64)
    past = torch.randn(1, context - 1, 4, generator=g, dtype=torch.float64) if context > 1 else None
    with torch.no_grad():
        true = model.rollout(z, actions, past, last_only=True)[0, 0]
    mine = roll(dynamics, z[0], actions[0, 0].numpy())
    np.testing.assert_allclose(mine, true.numpy(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("path_discount", [0.0, 0.7])
def test_lqr_is_at_least_as_good_as_cem_on_the_real_model(path_discount):
    model = world_model("lti")
    g = generator("goals")
    z, goal = torch.randn(3, 1, 8, generator=g).double(), torch.randn(3, 8, generator=g).double()
    problem = LatentProblem(model, z, goal, None, 2, path_discount=path_discount)
    cem = CEM(CEMConfig(100, 10, 15)).solve(problem).costs_B
    for method in ("dense", "riccati"):
        plan = LQR(LQRConfig(method)).solve(problem)
        assert (plan.costs_B <= cem + 1e-9).all()
    assert (LQR(LQRConfig(control=1.0)).solve(problem).actions_BHA.norm() < plan.actions_BHA.norm()).all()


def test_dynamics_that_ignore_the_action_plan_nothing():
    dynamics = LinearDynamics((torch.eye(3).double(),), torch.zeros(3, 2).double(), torch.zeros(3).double())
    z, goal = torch.ones(1, 1, 3).double(), torch.zeros(1, 3).double()
    for solve in (dense_plan, riccati_plan):
        assert torch.equal(solve(dynamics, z, goal, 3), torch.zeros(1, 3, 2).double())


@pytest.mark.parametrize(
    "wrong", [{"link": "reprelu"}, {"rung": "mlp-lti"}, {"action_encoder": "mlp"}, {"rung": "deep-adaln"}]
)
def test_other_models_are_refused_with_a_remedy(wrong):
    with pytest.raises(UserError, match="train with link 'identity'"):
        LinearDynamics.from_model(world_model(**wrong))


def test_lqr_refuses_what_is_not_a_latent_problem(linear_problem):
    from lpwm.plan import ConsensusProblem

    with pytest.raises(UserError, match="use CEM"):
        LQR().solve(ConsensusProblem([linear_problem()]))


@pytest.mark.parametrize("rung", ["deep-adaln", "mlp-ltv", "mlp-lti", "lti"])
def test_cem_plans_with_every_kind_of_real_model(rung):
    """The real rollout behind LatentProblem: a plan beats doing nothing, alone or in a batch."""
    model = world_model(rung, link="reprelu" if rung != "lti" else "identity")
    g = generator("real", rung)
    actions = torch.randn(3, 1, 3, 4, generator=g).double()
    z = torch.randn(3, 2, 8, generator=g).double()
    past = torch.randn(3, 1, 4, generator=g).double()
    with torch.no_grad():
        goal = model.rollout(z, actions, past, last_only=True)[:, 0]
    problem = LatentProblem(model, z, goal, past, 3)
    solver = CEM(CEMConfig(64, 8, 8))
    plan = solver.solve(problem, seed=1)
    with torch.no_grad():
        nothing = problem.value(torch.zeros_like(actions))[:, 0]
    assert (plan.costs_B < 0.5 * nothing).all() and not plan.costs_B.requires_grad
    alone = solver.solve(problem.select(slice(1, 2)), seed=1)
    torch.testing.assert_close(plan.actions_BHA[1:2], alone.actions_BHA, rtol=1e-8, atol=1e-10)
