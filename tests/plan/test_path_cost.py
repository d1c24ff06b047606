"""The path cost: Σ_h w_h c_h with w_h ∝ path_discount^(H−h), for models and for true worlds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.data import ActionStats
from lpwm.evaluate.config import EvalConfig
from lpwm.evaluate.controls import Oracle
from lpwm.evaluate.episodes import run_episodes
from lpwm.evaluate.goals import random_goals
from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, WorldModel
from lpwm.model.predictors import PAPER_RUNGS
from lpwm.plan import CEMConfig, ConsensusProblem, LatentProblem, LiveOracleProblem, MPCConfig, OracleProblem
from lpwm.plan.graph import signature
from lpwm.plan.problem import block_weights
from lpwm.worlds import make

STATS = ActionStats((0.1, -0.2), (0.6, 0.7))


@given(horizon=st.integers(1, 12), path_discount=st.floats(0, 1))
def test_weights_fall_towards_the_present_and_sum_to_one(horizon, path_discount):
    w = np.array(block_weights(horizon, path_discount))
    assert w.sum() == pytest.approx(1) and w[-1] > 0
    np.testing.assert_allclose(w[:-1], path_discount * w[1:], rtol=1e-12, atol=1e-300)


def test_the_ends_of_the_scale():
    assert block_weights(4, 0.0) == [0, 0, 0, 1] and block_weights(4, 1.0) == [0.25] * 4
    np.testing.assert_allclose(block_weights(3, 0.5), np.array([1, 2, 4]) / 7)


@pytest.mark.parametrize("path_discount", [-0.1, 1.01, float("nan")])
def test_other_numbers_are_refused(path_discount, linear_model):
    makers = (
        lambda: MPCConfig(path_discount=path_discount),
        lambda: EvalConfig(path_discount=path_discount),
        lambda: LatentProblem(linear_model(), torch.zeros(1, 1, 4), torch.zeros(1, 4), path_discount=path_discount),
        lambda: OracleProblem(make("piecewise"), torch.zeros(1, 2), torch.zeros(1, 2), path_discount=path_discount),
    )
    for attempt in makers:
        with pytest.raises(UserError, match="the end of a plan alone counts"):
            attempt()


def tiny(rung):
    encoder = EncoderConfig(image_size=16, patch=8, width=8, depth=1, heads=1, head_dim=8, mlp=8)
    predictor = PredictorConfig(rung, heads=2, head_dim=16, mlp=64, head_hidden=64)
    model = WorldModel(ModelConfig(16, encoder=encoder, predictor=predictor), action_dim=6).eval()
    with torch.no_grad():  # as they are initialized, some rungs do not see actions
        for p in (*model.predictor.parameters(), *model.embed_action.parameters()):
            p.copy_(torch.randn(p.shape) / p.shape[-1] ** 0.5)
    return model


@pytest.mark.parametrize("path_discount", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rung", PAPER_RUNGS)
def test_the_cost_of_a_model_s_plan_is_the_weighted_sum_of_its_blocks(rung, path_discount):
    """Prepared or not, in tiles or not; the codes are those of the definition, window by window."""
    model, g = tiny(rung), generator("path_discount", rung)
    z, goal = torch.rand(3, 2, 16, generator=g), torch.rand(3, 16, generator=g)
    past, actions = torch.randn(3, 1, 6, generator=g), torch.randn(3, 400, 4, 6, generator=g)
    problem = LatentProblem(model, z, goal, past, 4, path_discount=path_discount)
    with torch.no_grad():
        z_BSHD = model.rollout(z, actions, past, cached=False).double().numpy()
        assert z_BSHD.std(1).min(axis=(0, 1)).max() > 1e-3  # candidates differ
        errors_BSH = ((z_BSHD - goal.double().numpy()[:, None, None]) ** 2).mean(-1)
        expected = sum(path_discount ** (3 - h) * errors_BSH[:, :, h] for h in range(4)) / sum(
            path_discount**i for i in range(4)
        )
        for scored in (problem, problem.prepared()):
            one = scored.select(slice(1, 2)).cost(actions[1:2])
            np.testing.assert_allclose(scored.cost(actions).numpy(), expected, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(one.numpy(), expected[1:2], rtol=1e-4, atol=1e-6)
    assert problem.value(actions.requires_grad_()).requires_grad


def test_members_of_a_vote_count_the_way_themselves():
    model = tiny("lti")
    z, goal = torch.rand(2, 1, 16), torch.rand(2, 16)
    members = [LatentProblem(model, z, goal, None, 3, path_discount=a) for a in (1.0, 1.0)]
    actions = torch.randn(2, 20, 3, 6)
    order = members[0].cost(actions).argsort(-1)
    assert torch.equal(ConsensusProblem(members).cost(actions).argsort(-1), order)
    end = LatentProblem(model, z, goal, None, 3).cost(actions).argsort(-1)
    assert not torch.equal(end, order)


def test_a_captured_plan_does_not_serve_another_cost():
    model, z, goal = tiny("lti"), torch.rand(2, 1, 16), torch.rand(2, 16)
    kinds = {signature(LatentProblem(model, z, goal, None, 3, path_discount=a)) for a in (0.0, 0.5, 1.0)}
    assert len(kinds) == 3


@pytest.mark.parametrize("path_discount", [0.0, 0.5, 1.0])
def test_the_oracle_counts_the_states_after_each_block(path_discount):
    world, g = make("piecewise"), generator("oracle path_discount")
    start, goal = (world.sample_state(3, (name,)) for name in ("start", "goal"))
    problem = OracleProblem(world, start, goal, 3, 5, STATS.mean, STATS.std, path_discount=path_discount)
    actions = torch.randn(3, 4, 3, 10, generator=g)
    weights = [path_discount**2, path_discount, 1.0]
    for b in range(3):
        for s in range(4):
            state, cost = start[b : b + 1], 0.0
            for block, weight in zip(actions[b, s], weights, strict=True):
                for raw in block.view(5, 2):
                    state = world.step(state, (torch.tensor(STATS.mean) + torch.tensor(STATS.std) * raw)[None])
                cost += weight * float(world.distance(state, goal[b : b + 1]).square())
            assert float(problem.cost(actions)[b, s]) == pytest.approx(cost / sum(weights), rel=1e-4)


class Branching:
    """Live simulators that add up their actions; a branch shows every raw step."""

    def __init__(self, states):
        self.states = states

    def branches(self, action):
        return self.states[:, None, None] + action.cumsum(2)


def test_live_simulators_are_read_after_each_block():
    world = make("piecewise")
    states, goal = torch.tensor([[50.0, 60.0], [70.0, 80.0]]), torch.tensor([[55.0, 60.0], [70.0, 70.0]])
    problem = LiveOracleProblem(Branching(states), world, states, goal, 2, 5, path_discount=1.0)
    actions = torch.ones(2, 1, 2, 10)
    # By 5 after the first block, by 10 after the second: (0, 5) and (5, 10) away, and (5, 15) and (10, 20).
    expected = [(25 + 125) / 2, (250 + 500) / 2]
    assert problem.cost(actions)[:, 0].tolist() == pytest.approx(expected)
    assert problem.select(torch.tensor([1])).cost(actions[1:]).item() == pytest.approx(expected[1])


def test_the_path_cost_stays_at_the_goal():
    """With the true world as the model and a plan after every block: aiming five blocks ahead passes the goal."""
    world = make("piecewise")
    episodes = random_goals(world, 12, seed=3)
    there = {}
    for path_discount in (0.0, 1.0):
        solver = CEMConfig(samples=64, elites=8, iterations=8).build()
        oracle = Oracle(world, STATS, 5, solver, MPCConfig(5, 1, path_discount=path_discount))
        found = run_episodes(world, episodes, oracle, steps=60, frameskip=5)
        there[path_discount] = found.terminal().mean()
    assert there[1.0] == 1 and there[0.0] < 0.8
