"""What solvers do beyond `lpwm.testing.check_solver`: accuracy, warm starts, costs that are not finite, chunks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tools import refused

from lpwm.plan import Problem, chunked, make_solver
from lpwm.plan.solver import chunk_size

SMALL = {
    "cem": {"samples": 64, "elites": 8, "iterations": 10},
    "icem": {"samples": 64, "elites": 8, "iterations": 10, "decay": 1.2},
    "mppi": {"samples": 64, "iterations": 20},
    "gradient": {"restarts": 3, "iterations": 60},
    "lqr": {},
}
SAMPLERS = ("cem", "icem", "mppi", "gradient")


class Bowl(Problem):
    """cost = Σ (a − target_e)²; NaN where told."""

    rows = ("env_ids", "target_BHA", "bad_B")

    def __init__(self, batch=3, horizon=2, width=3, bad=(), dtype=torch.float64):
        self.env_ids = torch.arange(batch)
        self.horizon, self.action_dim, self.dtype = horizon, width, dtype
        wave = torch.sin(torch.arange(batch * horizon * width, dtype=dtype))
        self.target_BHA = 0.5 * wave.view(batch, horizon, width)
        self.bad_B = torch.tensor([e in bad for e in range(batch)])
        self.calls = 0

    def cost(self, actions_BSHA):
        self.calls += 1
        cost = (actions_BSHA - self.target_BHA[:, None]).square().sum((-1, -2))
        return torch.where(self.bad_B[:, None], torch.nan, cost)


@pytest.mark.parametrize("name", SAMPLERS)
def test_finds_the_bottom_of_a_bowl(name):
    problem = Bowl()
    budget = {"restarts": 3, "iterations": 300} if name == "gradient" else {"samples": 300, "iterations": 30}
    plan = make_solver(name, **budget).solve(problem, seed=3)
    # iCEM returns its best candidate, not a mean, and MPPI's last noise is 0.9³⁰: both stop a little short.
    tolerance = {"mppi": 0.05, "icem": 0.05}.get(name, 0.005)
    torch.testing.assert_close(plan.actions_BHA, problem.target_BHA, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_warm_start_is_where_the_search_begins(name):
    problem = Bowl()
    options = SMALL[name] | {"iterations": 1, "std": 1e-6}
    plan = make_solver(name, **options).solve(problem, start=problem.target_BHA, seed=0)
    torch.testing.assert_close(plan.actions_BHA, problem.target_BHA, atol=1e-4, rtol=0)
    refused("warm start has shape", make_solver(name, **options).solve, problem, start=torch.zeros(3, 1, 3))


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_environment_without_a_finite_candidate_is_one_sentence(name):
    solver = make_solver(name, **SMALL[name])
    refused(r"1 of 3 environments \(first: 1\).*non-finite", solver.solve, Bowl(bad=(1,)))


class Holed(Bowl):
    """Half of space costs NaN, −inf or +inf: never to be chosen."""

    def cost(self, actions_BSHA):
        cost = super().cost(actions_BSHA)
        x = actions_BSHA[..., 0, 0]
        cost = torch.where(x > 0.1, torch.nan, cost)
        cost = torch.where(x < -0.8, -torch.inf, cost)
        return torch.where(actions_BSHA[..., 0, 1] > 0.9, torch.inf, cost)


@pytest.mark.parametrize("name", SAMPLERS)
def test_non_finite_candidates_are_never_chosen(name):
    plan = make_solver(name, **SMALL[name]).solve(Holed(), seed=1)
    assert plan.actions_BHA.isfinite().all() and plan.costs_B.isfinite().all()
    assert (plan.actions_BHA[:, 0, 0] <= 0.1).all() and (plan.actions_BHA[:, 0, 0] >= -0.8).all()


@settings(max_examples=20)
@given(batch=st.integers(1, 64), budget=st.integers(0, 200))
def test_chunks_are_level_and_fit(batch, budget):
    problem, solver = Bowl(batch), make_solver("cem", samples=10, elites=2)
    unit = 10 * problem.candidate_bytes()
    size = chunk_size(problem, solver, budget * unit)
    assert 1 <= size <= max(1, min(batch, budget))
    assert size * -(-batch // max(1, min(batch, budget))) >= batch


def test_running_out_of_cuda_memory_halves_the_chunk():
    problem, solver, seen = Bowl(7), make_solver("cem", samples=10, elites=2, iterations=2), []
    honest = solver.solve

    def tight(part, *rest):
        seen.append(part.batch)
        if part.batch > 2:
            raise torch.cuda.OutOfMemoryError("no room")
        return honest(part, *rest)

    solver.solve = tight
    plan = chunked(problem, solver, seed=1)
    assert seen == [7, 4, 2, 2, 2, 1]
    assert torch.equal(plan.actions_BHA, honest(problem, None, 1).actions_BHA)
    solver.solve = lambda *_: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError("none"))
    refused("use fewer samples", chunked, problem, solver)


def test_an_empty_batch_and_a_wrong_start_are_one_sentence():
    solver = make_solver("cem")
    refused("no environment", chunked, Bowl(3).select(slice(0, 0)), solver)
    refused("2 environments, the problem has 3", chunked, Bowl(3), solver, start=torch.zeros(2, 2, 3))


@pytest.mark.parametrize("name", SAMPLERS)
def test_chunks_take_their_own_rows_of_the_warm_start(name):
    problem, solver = Bowl(5), make_solver(name, **(SMALL[name] | {"iterations": 2}))
    start = problem.target_BHA + torch.arange(5.0, dtype=torch.float64)[:, None, None]
    in_chunks = chunked(problem, solver, budget_bytes=0, start=start, seed=1)
    assert torch.equal(in_chunks.actions_BHA, solver.solve(problem, start, seed=1).actions_BHA)


def test_gradient_walks_as_torchs_adam():
    """The bias corrections, the momenta and the step, on a bowl that it goes down all the way."""
    problem = Bowl(2)
    options = {"lr": 0.02, "beta1": 0.8, "beta2": 0.95}
    plan = make_solver("gradient", restarts=1, iterations=7, **options).solve(problem)
    a = torch.zeros_like(problem.target_BHA).requires_grad_()
    adam = torch.optim.Adam([a], lr=0.02, betas=(0.8, 0.95), eps=1e-8)
    for _ in range(7):
        adam.zero_grad()
        problem.value(a[:, None]).sum().backward()
        adam.step()
    torch.testing.assert_close(plan.actions_BHA, a.detach())


def test_gradient_keeps_the_best_it_saw_not_the_last():
    problem = Bowl()
    wild = make_solver("gradient", lr=50.0, restarts=1, iterations=5)
    start = problem.target_BHA + 0.1  # the first step leaps 50 past the bottom
    assert torch.equal(wild.solve(problem, start, seed=0).actions_BHA, start)


class Kinked(Bowl):
    """An infinite slope times zero: one entry of the gradient is NaN at the origin."""

    def cost(self, actions_BSHA):
        return super().cost(actions_BSHA) + 0 * actions_BSHA[..., 0, 0].abs().sqrt()


def test_gradient_steps_past_an_undefined_slope():
    problem = Kinked()
    plan = make_solver("gradient", restarts=1, iterations=200).solve(problem)
    expected = problem.target_BHA.clone()
    expected[:, 0, 0] = 0
    torch.testing.assert_close(plan.actions_BHA, expected, atol=0.01, rtol=0)
