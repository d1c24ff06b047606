"""Costs by hand: the latent problem and the oracle."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from lpwm.core.rng import generator
from lpwm.data import ActionStats
from lpwm.model.predictors import PAPER_RUNGS
from lpwm.plan import LatentProblem, LiveOracleProblem, OracleProblem, Problem
from lpwm.plan.problem import block_weights
from lpwm.worlds import make


class Table(Problem):
    """Costs read from a table: candidate s of environment b costs table[b][s]."""

    rows = ("env_ids", "table")

    def __init__(self, table):
        self.table = torch.tensor(table, dtype=torch.float64)
        self.env_ids = torch.arange(len(table))
        self.horizon, self.action_dim, self.dtype = 1, 1, torch.float64

    def cost(self, actions_BSHA):
        return self.table


class Peak(TorchDispatchMode):
    """The most bytes that operations under it had made and not yet given back."""

    def __init__(self):
        super().__init__()
        self.alive, self.bytes = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                self.alive[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self.alive = {at: (ref, n) for at, (ref, n) in self.alive.items() if not ref.expired()}
        self.bytes = max(self.bytes, sum(n for _, n in self.alive.values()))
        return out


@pytest.mark.parametrize("path_discount", [0.0, 1.0])
@pytest.mark.parametrize("rung", PAPER_RUNGS)
def test_the_memory_of_a_candidate_is_bounded_within_reason(rung, path_discount, real_model):
    """By what scoring really has alive at once: chunks are made of this."""
    model, B, S = real_model(rung, 32, 6, head_dim=16, mlp=64, head_hidden=64), 2, 64
    about = torch.rand(B, 2, 32), torch.rand(B, 32), torch.rand(B, 1, 6), 5
    problem = LatentProblem(model, *about, path_discount=path_discount)
    with torch.no_grad(), Peak() as peak:
        problem.cost(torch.randn(B, S, 5, 6))
    assert 0.9 * peak.bytes < B * S * problem.candidate_bytes() < 5 * peak.bytes


def test_low_precision_scoring_keeps_the_plans_type(linear_model):
    model = linear_model(dtype=torch.float32)
    z, goal = torch.zeros(2, 1, 4), torch.ones(2, 4)
    model.rollout = lambda z, a, past_BPA, last_only: a.sum(2) @ torch.ones(2, 4)
    plain = LatentProblem(model, z, goal, None, 2).cost(torch.full((2, 3, 2, 2), 0.337))
    low = LatentProblem(model, z, goal, None, 2, autocast=torch.bfloat16).cost(torch.full((2, 3, 2, 2), 0.337))
    assert low.dtype == torch.float32
    assert not torch.equal(plain, low)
    torch.testing.assert_close(plain, low, rtol=0.05, atol=0.01)


STATS = ActionStats((0.1, -0.2), (0.6, 0.7))


@given(horizon=st.integers(1, 12), path_discount=st.floats(0, 1))
def test_weights_fall_towards_the_present_and_sum_to_one(horizon, path_discount):
    w = np.array(block_weights(horizon, path_discount))
    assert w.sum() == pytest.approx(1) and w[-1] > 0
    np.testing.assert_allclose(w[:-1], path_discount * w[1:], rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(block_weights(3, 0.5), np.array([1, 2, 4]) / 7)


@pytest.mark.parametrize("path_discount", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rung", PAPER_RUNGS)
def test_the_cost_of_a_model_s_plan_is_the_weighted_sum_of_its_blocks(rung, path_discount, real_model):
    """Prepared or not, in tiles or not; the codes are those of the definition, window by window."""
    model, g = real_model(rung, 16, 6), generator("path_discount", rung)
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
