"""CEM re-derived in NumPy, and its iteration as a compilable function."""

import numpy as np
import pytest
import torch

from lpwm.core.rng import fold, normal_at
from lpwm.plan import CEM, ICEM, MPPI, CEMConfig, ICEMConfig, MPPIConfig
from lpwm.plan.cem import refit
from lpwm.plan.icem import color


def numpy_score(problem, model, env):
    """The cost of one environment's candidates, one at a time."""
    A = [a.numpy() for a in model.A]
    B, bias = model.B.numpy(), model.bias.numpy()
    row = problem.env_ids.tolist().index(env)
    z0, goal = problem.z_BCD[row, -1].numpy(), problem.z_goal_BD[row].numpy()

    def score(plan):
        past = [z0]
        for a in plan:
            z = B @ a + bias
            for i, Ai in enumerate(A):
                if i < len(past):
                    z = z + Ai @ past[-1 - i]
            past.append(z)
        return np.mean((past[-1] - goal) ** 2)

    return score


def numpy_noise(env, seed, iteration, samples, shape):
    key = fold(fold(seed, torch.tensor([env])), torch.tensor(iteration))
    return normal_at(key, samples * int(np.prod(shape)), torch.float64).numpy().reshape(samples, *shape)


def numpy_cem(problem, model, env, seed, samples, elites, iterations, mean):
    """From the paper's text; a warm start moves the mean, and std begins at 1."""
    score, std = numpy_score(problem, model, env), np.ones_like(mean)
    for i in range(iterations):
        eps = numpy_noise(env, seed, i, samples, mean.shape)
        pool = [mean + std * e for e in eps]
        pool[0] = mean
        best = np.stack([pool[j] for j in np.argsort([score(p) for p in pool])[:elites]])
        mean, std = best.mean(0), best.std(0, ddof=1)
    return mean, std, score(mean)


@pytest.mark.parametrize("warm", [False, True])
def test_cem_is_the_papers(warm, linear_problem, linear_model):
    model = linear_model(latent=5, lags=2, seed=1)
    problem = linear_problem(batch=2, horizon=4, model=model, first=6)
    start = torch.linspace(-1, 1, 16, dtype=torch.float64).view(2, 4, 2) * warm
    plan = CEM(CEMConfig(samples=40, elites=7, iterations=6)).solve(problem, start if warm else None, seed=9)
    for row, env in enumerate((6, 7)):
        mean, std, cost = numpy_cem(problem, model, env, 9, 40, 7, 6, start[row].numpy())
        np.testing.assert_allclose(plan.actions_BHA[row].numpy(), mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(plan.info["std"][row].numpy(), std, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(float(plan.costs_B[row]), cost, rtol=1e-9)


def test_mppi_weighs_every_candidate(linear_problem, linear_model):
    """exp(−(c − min c)/(λ·sd c)), the mean itself among the candidates, noise that fades."""
    model = linear_model(latent=5, lags=2, seed=1)
    problem = linear_problem(batch=2, horizon=4, model=model, first=6)
    plan = MPPI(MPPIConfig(samples=30, iterations=5, std=0.8, temperature=0.3, decay=0.7)).solve(problem, seed=9)
    for row, env in enumerate((6, 7)):
        score, mean = numpy_score(problem, model, env), np.zeros((4, 2))
        for i in range(5):
            pool = mean + 0.8 * 0.7**i * numpy_noise(env, 9, i, 30, mean.shape)
            pool[0] = mean
            cost = np.array([score(p) for p in pool])
            weight = np.exp(-(cost - cost.min()) / (0.3 * cost.std()))
            mean = np.einsum("s,sha->ha", weight / weight.sum(), pool)
        np.testing.assert_allclose(plan.actions_BHA[row].numpy(), mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(float(plan.info["best"][row]), cost.min(), rtol=1e-9)


def test_iterations_trace_into_one_graph_that_new_problems_share(linear_problem, linear_model):
    """What compile=True hands to the compiler on CUDA, here through the tracing half alone."""
    model = linear_model()
    for solver in (CEM(CEMConfig(20, 5, 3)), ICEM(ICEMConfig(20, 5, 3)), MPPI(MPPIConfig(20, 3))):
        torch._dynamo.reset()
        graphs = []

        def backend(graph, _inputs, graphs=graphs):
            graphs.append(graph)
            return graph.forward

        step = torch.compile(type(solver).iterate, backend=backend, fullgraph=True, dynamic=False)
        for first in (0, 3, 6):
            problem = linear_problem(batch=3, model=model, first=first)
            key = fold(4, problem.env_ids)
            state = solver.first(problem, torch.zeros(3, 3, 2, dtype=torch.float64))
            plain = state
            with torch.no_grad():
                for i in range(3):
                    state = step(solver.config, problem, state, key, torch.tensor(i))
                    plain = solver.iterate(solver.config, problem, plain, key, torch.tensor(i))
            for a, b in zip(state, plain, strict=True):
                torch.testing.assert_close(a, b)
        assert len(graphs) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("solver", [CEM(), ICEM(), MPPI()], ids=["cem", "icem", "mppi"])
def test_compiled_plans_are_the_plain_ones(solver, linear_problem, linear_model):
    model = linear_model()
    model.A, model.B, model.bias = [A.cuda() for A in model.A], model.B.cuda(), model.bias.cuda()
    for first in (0, 5):
        cpu = linear_problem(batch=5, first=first)
        problem = cpu.with_tensors([t.cuda() for t in cpu.tensors()])
        problem.model = model
        plain, fast = (solver.solve(problem, seed=2, compile=c) for c in (False, True))
        torch.testing.assert_close(plain.actions_BHA, fast.actions_BHA, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(plain.costs_B.cpu(), solver.solve(cpu, seed=2).costs_B, rtol=1e-6, atol=1e-8)


def test_colored_noise_has_the_spectrum_it_says():
    for horizon in (1, 2, 5, 8, 9):
        L = color(horizon, 2.0)
        assert L.shape == (horizon, horizon)
        torch.testing.assert_close(L.square().sum(1), torch.ones(horizon, dtype=torch.float64))
        white = color(horizon, 0.0)
        torch.testing.assert_close(white @ white.T, torch.eye(horizon, dtype=torch.float64))
    # E|x̂_f|² of L·white, by the covariance: falls as f^−β.
    H, beta = 16, 2.0
    L = color(H, beta).to(torch.complex128)
    W = torch.fft.fft(torch.eye(H, dtype=torch.complex128), norm="ortho")
    power = torch.einsum("fi,ij,fj->f", W, L @ L.mH, W.conj()).real
    f = torch.arange(1, H // 2, dtype=torch.float64)
    torch.testing.assert_close(power[1 : H // 2] / power[1], f**-beta)


def test_icem_keeps_its_best_and_shrinks(linear_problem):
    problem = linear_problem(batch=2)
    seen = []
    cost = problem.cost

    def recorded(actions):
        seen.append((actions.shape[1], cost(actions).amin(1)))
        return cost(actions)

    problem.cost = recorded
    config = ICEMConfig(samples=100, elites=10, iterations=8, decay=1.5)
    plan = ICEM(config).solve(problem, seed=1)
    assert [n for n, _ in seen[:8]] == [max(20, int(100 * 1.5**-i)) for i in range(8)]
    best = torch.stack([b for _, b in seen[:8]])
    assert (best[1:] <= best[:-1] + 1e-12).all()  # the best elite stays in the population
    torch.testing.assert_close(plan.costs_B, best[-1])


def test_the_refit_counts_finite_elites_alone():
    """Three, two, one and none of three candidates have a cost."""
    g = torch.Generator().manual_seed(0)
    elites, mean, std = (torch.randn(4, *n, 2, 1, generator=g) for n in ((3,), (), ()))
    cost = torch.zeros(4, 3)
    cost[1, 0] = cost[2, :2] = torch.inf
    cost[3] = torch.nan
    got_mean, got_std, alive = refit(elites, cost, mean, std)
    for e, some in enumerate((elites[0], elites[1, 1:], elites[2, 2:], elites[3, 3:])):
        torch.testing.assert_close(got_mean[e], some.mean(0) if len(some) else mean[e])
        torch.testing.assert_close(got_std[e], some.std(0) if len(some) > 1 else std[e])
    assert alive.tolist() == [True, True, True, False]
