"""Costs by hand: the latent problem, the oracle and the vote."""

from __future__ import annotations

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from lpwm.core.errors import UserError
from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, WorldModel
from lpwm.model.predictors import PAPER_RUNGS
from lpwm.plan import CEM, CEMConfig, ConsensusProblem, LatentProblem, OracleProblem, Problem
from lpwm.plan.consensus import borda, median, ranks
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
def test_the_memory_of_a_candidate_is_bounded_within_reason(rung, path_discount):
    """By what scoring really has alive at once: chunks are made of this."""
    encoder = EncoderConfig(image_size=16, patch=8, width=8, depth=1, heads=1, head_dim=8, mlp=8)
    predictor = PredictorConfig(rung, heads=2, head_dim=16, mlp=64, head_hidden=64)
    model = WorldModel(ModelConfig(32, encoder=encoder, predictor=predictor), action_dim=6).eval()
    B, S = 2, 64
    about = torch.rand(B, 2, 32), torch.rand(B, 32), torch.rand(B, 1, 6), 5
    problem = LatentProblem(model, *about, path_discount=path_discount)
    with torch.no_grad(), Peak() as peak:
        problem.cost(torch.randn(B, S, 5, 6))
    assert 0.9 * peak.bytes < B * S * problem.candidate_bytes() < 5 * peak.bytes


def test_latent_cost_is_the_mean_square_to_the_goal(linear_model):
    model = linear_model(latent=2, lags=1)
    model.A = [torch.eye(2).double()]
    model.B = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double()
    model.bias = torch.zeros(2).double()
    problem = LatentProblem(model, torch.zeros(1, 1, 2).double(), torch.tensor([[3.0, 1.0]]).double(), None, 2)
    actions = torch.tensor([[[[1.0, 0.0], [1.0, 1.0]], [[3.0, 0.5], [0.0, 0.0]]]]).double()
    # z_2 = (2, 2) and (3, 1): mean((−1)², 1²) = 1 and 0.
    torch.testing.assert_close(problem.cost(actions), torch.tensor([[1.0, 0.0]]).double())
    assert (problem.batch, problem.horizon, problem.action_dim) == (1, 2, 2)


def test_low_precision_scoring_keeps_the_plans_type(linear_model):
    model = linear_model(dtype=torch.float32)
    z, goal = torch.zeros(2, 1, 4), torch.ones(2, 4)
    model.rollout = lambda z, a, past_BPA, last_only: a.sum(2) @ torch.ones(2, 4)
    plain = LatentProblem(model, z, goal, None, 2).cost(torch.full((2, 3, 2, 2), 0.337))
    low = LatentProblem(model, z, goal, None, 2, autocast=torch.bfloat16).cost(torch.full((2, 3, 2, 2), 0.337))
    assert low.dtype == torch.float32
    assert not torch.equal(plain, low)
    torch.testing.assert_close(plain, low, rtol=0.05, atol=0.01)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"horizon": 0}, "horizon is 0"),
        ({"goal": torch.zeros(2, 3)}, "do not match"),
        ({"past": torch.zeros(2, 2, 2)}, "past actions have shape"),
        ({"past": None}, "blocks executed between"),
        ({"ids": torch.zeros(3, dtype=torch.int64)}, "one int64 per environment"),
    ],
)
def test_latent_problems_that_do_not_fit_are_refused(change, says, linear_model):
    given = {"horizon": 2, "goal": torch.zeros(2, 4), "past": torch.zeros(2, 1, 2), "ids": None} | change
    with pytest.raises(UserError, match=says):
        LatentProblem(
            linear_model(), torch.zeros(2, 2, 4), given["goal"], given["past"], given["horizon"], env_ids=given["ids"]
        )


def test_a_model_in_training_mode_is_refused(linear_model):
    model = linear_model()
    model.training = True
    with pytest.raises(UserError, match=r"model\.eval\(\)"):
        LatentProblem(model, torch.zeros(1, 1, 4), torch.zeros(1, 4))


def test_the_oracle_undoes_the_z_scoring_and_steps_the_world():
    world = make("piecewise", g=1, scale=0.0)  # p' = clamp(p + 5·clip(a, ±1))
    state, goal = torch.tensor([[100.0, 100.0]]), torch.tensor([[120.0, 90.0]])
    problem = OracleProblem(world, state, goal, 2, 2, mean=(0.1, 0.0), std=(0.5, 2.0))
    assert problem.action_dim == 4
    actions = torch.tensor([[[[0.0, 0.0, 1.0, 0.25], [-0.2, -5.0, 9.0, 0.0]]]])
    # raw (0.1, 0), (0.6, 0.5), (0, −10→−1), (4.6→1, 0): the dot ends at (108.5, 97.5).
    torch.testing.assert_close(problem.cost(actions), torch.tensor([[11.5**2 + 7.5**2]]))
    with pytest.raises(UserError, match="do not match"):
        OracleProblem(world, state, goal[0])
    with pytest.raises(UserError, match="frameskip"):
        OracleProblem(world, state, goal, 2, 0)


def test_ranks_share_ties():
    cost = torch.tensor([[3.0, 1.0, 2.0, 1.0], [5.0, 5.0, 5.0, float("inf")]])
    assert ranks(cost).tolist() == [[3.0, 0.5, 2.0, 0.5], [1.0, 1.0, 1.0, 3.0]]


def test_borda_and_median_by_hand():
    members = [Table([[10.0, 20.0, 30.0]]), Table([[0.3, 0.1, 0.2]]), Table([[7.0, 8.0, 9.0]])]
    actions = torch.zeros(1, 3, 1, 1).double()
    # ranks 0 1 2 / 2 0 1 / 0 1 2
    borda_cost = ConsensusProblem(members, "borda").cost(actions)
    torch.testing.assert_close(borda_cost, torch.tensor([[2 / 3, 2 / 3, 5 / 3]]).double())
    assert ConsensusProblem(members, "median").cost(actions).tolist() == [[0.0, 1.0, 2.0]]
    value = ConsensusProblem(members).value(actions)
    torch.testing.assert_close(value, torch.tensor([[17.3, 28.1, 39.2]]).double() / 3)
    even = torch.tensor([[[0.0]], [[4.0]], [[1.0]], [[9.0]]])
    assert median(even).item() == 2.5 and borda(even).item() == 3.5


def test_one_members_scale_does_not_count_more():
    """A checkpoint whose costs are a thousand times larger has one vote like the others."""
    members = [Table([[1.0, 2.0]]), Table([[1.0, 2.0]]), Table([[9000.0, 1000.0]])]
    cost = ConsensusProblem(members).cost(torch.zeros(1, 2, 1, 1).double())
    assert cost[0, 0] < cost[0, 1]


def test_non_finite_votes():
    nan, inf = float("nan"), float("inf")
    vote = ConsensusProblem([Table([[nan, 1.0, 2.0]]), Table([[0.0, 1.0, 2.0]])])
    actions = torch.zeros(1, 3, 1, 1).double()
    assert vote.cost(actions).tolist() == [[1.0, 0.5, 1.5]]  # ranked last by one, first by the other
    both = ConsensusProblem([Table([[nan, 1.0, 2.0]]), Table([[inf, 1.0, 2.0]])])
    assert both.cost(actions).tolist() == [[inf, 0.0, 1.0]]
    broken = ConsensusProblem([Table([[nan, nan, nan]]), Table([[0.0, 1.0, 2.0]])])
    assert broken.cost(actions).tolist() == [[inf, inf, inf]]


def test_a_consensus_is_split_like_any_problem(linear_problem, linear_model):
    members = [linear_problem(batch=5, model=linear_model(seed=s), context=2) for s in range(3)]
    vote = ConsensusProblem(members, "median")
    solver = CEM(CEMConfig(40, 8, 5))
    whole, part = solver.solve(vote, seed=1), solver.solve(vote.select(torch.tensor([3, 1])), seed=1)
    assert torch.equal(whole.actions_BHA[[3, 1]], part.actions_BHA)
    assert vote.candidate_bytes() == members[0].candidate_bytes() > 0


def test_consensus_members_must_fit(linear_problem):
    with pytest.raises(UserError, match="at least one member"):
        ConsensusProblem([])
    with pytest.raises(UserError, match="differ"):
        ConsensusProblem([linear_problem(horizon=2), linear_problem(horizon=3)])
    with pytest.raises(UserError, match="did you mean 'borda'"):
        ConsensusProblem([linear_problem()], "bordo")
