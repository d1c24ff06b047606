"""stable-worldmodel's contracts, with structural stand-ins for its solver and its models."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tools import refused

from lpwm.agent import Agent
from lpwm.core.errors import UserError
from lpwm.core.rng import generator, seed_of
from lpwm.data import ActionStats
from lpwm.interop import ActionProcess, CostProblem, SwmModel, SwmPolicy, SwmSolver
from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, WorldModel
from lpwm.plan import CEM, CEMConfig, LatentProblem, MPCConfig, chunked

TINY = ModelConfig(
    latent=8,
    encoder=EncoderConfig(image_size=16, patch=8, width=16, depth=1, heads=1, head_dim=16, mlp=16),
    predictor=PredictorConfig("shallow-adaln", heads=2, head_dim=4, mlp=8, head_hidden=8),
)
A, B, S, T = 4, 3, 5, 4


class Space:
    shape = (B, 2)


class Config:
    horizon, action_block = T, 2


@pytest.fixture
def model():
    net = WorldModel(TINY, A).double()
    g = generator("interop")
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return SwmModel(net, ActionStats((0.5, -1.0), (2.0, 3.0)))


def frames(*shape, seed=0):
    return torch.randint(0, 256, (*shape, 16, 16, 3), generator=generator("frames", seed), dtype=torch.uint8)


def actions(*shape, seed=0):
    return torch.randn(*shape, A, generator=generator("actions", seed), dtype=torch.float64)


def info(context=1):
    """As its environments give it: one row per environment, channels last."""
    return {"pixels": frames(B, context), "goal": frames(B, 1, seed=1), "state": np.zeros((B, 1, 2))}


def with_candidates(entries, samples=S):
    """As its solvers hand it to a model."""
    return {
        k: v[:, None].expand(B, samples, *v.shape[1:]) if torch.is_tensor(v) else np.repeat(v[:, None], samples, 1)
        for k, v in entries.items()
    }


def first_channels(x):
    return x.movedim(-1, -3)


def test_encode_adds_codes_and_embeddings(model):
    given = {"pixels": frames(B, 2), "action": actions(B, 2)}
    out = model.encode(given)
    assert out is given and out["emb"].shape == (B, 2, 8) and out["act_emb"].shape == (B, 2, 8)
    torch.testing.assert_close(out["emb"], model.model.encode(first_channels(given["pixels"])))
    torch.testing.assert_close(out["act_emb"], model.model.embed_action(given["action"]))
    raw = model.encode({"pixels": frames(B, 2), "action": torch.zeros(B, 2, 2)})  # raw actions, not whole blocks
    assert "act_emb" not in raw


def test_a_context_of_several_frames_takes_the_blocks_between_them(model):
    entries, past, a = info(context=3), actions(B, 2, seed=3), actions(B, S, T)
    with torch.no_grad():
        out = model.rollout(with_candidates(entries | {"action": past}), a)["predicted_emb"]
        z = model.model.encode(first_channels(entries["pixels"]))
        expected = model.model.rollout(z, a, past, cached=False)
    assert out.shape == (B, S, 3 + T, 8)
    torch.testing.assert_close(out[:, :, :3], z[:, None].expand(B, S, 3, 8))
    torch.testing.assert_close(out[:, :, 3:], expected, rtol=1e-5, atol=1e-6)
    refused("2 action blocks", model.get_cost, with_candidates(entries), a)


@pytest.mark.parametrize("path_discount", [0.0, 0.5])
def test_cost_is_ours_and_frames_are_encoded_once(model, monkeypatch, path_discount):
    model = SwmModel(model.model, model.stats, path_discount)
    calls = []
    encode = model.model.encode
    monkeypatch.setattr(model.model, "encode", lambda f: (calls.append(f.shape), encode(f))[1])
    shared, a = with_candidates(info()), actions(B, S, T)
    with torch.inference_mode():
        cost = model.get_cost(shared, a)
        again = model.get_cost(shared, a)
    assert cost.shape == (B, S) and torch.equal(cost, again)
    assert calls == [(B, 1, 3, 16, 16), (B, 1, 3, 16, 16)]  # the context and the goal, no candidate axis
    z, goal = encode(first_channels(info()["pixels"])), encode(first_channels(info()["goal"])[:, 0])
    with torch.no_grad():
        torch.testing.assert_close(
            cost,
            LatentProblem(model.model, z, goal, None, T, path_discount=path_discount).value(a),
            rtol=1e-5,
            atol=1e-7,
        )
    ours = model.problem(info(), T)
    torch.testing.assert_close(ours.cost(a), cost, rtol=1e-5, atol=1e-7)
    rolled = model.rollout(with_candidates(info()), a)
    torch.testing.assert_close(model.criterion(rolled), cost, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("encoded", [False, True])
def test_a_plan_never_has_stale_weights(model, encoded):
    """In a new dictionary, in one that `encode` has filled, and in the middle of a plan."""
    a, given = actions(B, S, T), info()
    with torch.no_grad():
        before = model.get_cost(with_candidates(info()), a)
        model.model.predictor.head[-1].weight.mul_(2)
        plan = with_candidates(model.encode(given) if encoded else given)
        after = model.get_cost(plan, a)
        expected = model.problem(info(), T).value(a)
        torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-7)
        assert not torch.allclose(before, after)
        model.model.predictor.head[-1].weight.mul_(2)
        expected = model.problem(info(), T).value(a)
        torch.testing.assert_close(model.get_cost(plan, a), expected, rtol=1e-5, atol=1e-7)


def test_gradient_solvers_get_the_links_own_gradient(model):
    a = actions(B, S, T).requires_grad_()
    (got,) = torch.autograd.grad(model.get_cost(with_candidates(info()), a).sum(), a)
    z = model.model.encode(first_channels(info()["pixels"])).detach()
    goal = model.model.encode(first_channels(info()["goal"])[:, 0]).detach()
    (expected,) = torch.autograd.grad(LatentProblem(model.model, z, goal, None, T).value(a).sum(), a)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pixels": frames(B, 1).float()}, "without an image transform"),
        ({"pixels": frames(B, 1)[..., :2]}, "three channels"),
        ({"goal": None}, "no 'goal'"),
        ({"pixels": torch.zeros(B, 1, 8, 8, 3, dtype=torch.uint8)}, "resize"),
    ],
)
def test_wrong_frames_are_one_sentence(model, change, says):
    entries = {k: v for k, v in (info() | change).items() if v is not None}
    refused(says, model.get_cost, with_candidates(entries), actions(B, S, T))


def test_wrong_blocks_and_missing_statistics_are_one_sentence(model):
    refused("action_block", model.get_cost, with_candidates(info()), actions(B, S, T)[..., :2])
    with pytest.raises(UserError, match="action statistics"):
        _ = SwmModel(WorldModel(TINY, A)).process


def test_statistics_come_with_a_saved_model():
    net = WorldModel(TINY, A)
    net.meta = {"normalization": {"mean": [0.5, -1.0], "std": [2.0, 3.0]}}
    x = np.array([[1.5, 2.0], [0.0, 0.0]], dtype=np.float32)
    process = SwmModel(net).process
    np.testing.assert_allclose(process.transform(x), (x - [0.5, -1.0]) / [2.0, 3.0], rtol=1e-6)
    np.testing.assert_allclose(process.inverse_transform(process.transform(x)), x, rtol=1e-6, atol=1e-7)
    assert isinstance(process, ActionProcess)


class Stranger:
    """A model of its kind: cost = Σ (a − target)², with something left in the dictionary for the next call."""

    def __init__(self):
        self.calls = []

    def get_cost(self, entries, a):
        self.calls.append(("cached" in entries, entries["state"].shape, tuple(entries["target"].shape)))
        entries["cached"] = True
        assert isinstance(entries["state"], np.ndarray)
        return (a - entries["target"]).square().sum((-1, -2))


def stranger_info():
    target = 0.5 * torch.sin(torch.arange(B * T * A, dtype=torch.float32)).view(B, T, A)
    return {"target": target, "state": np.zeros((B, 2)), "name": ["x"] * B}


def test_our_solvers_plan_with_any_get_cost():
    stranger, entries = Stranger(), stranger_info()
    problem = CostProblem(stranger, entries, T, A)
    plan = CEM(CEMConfig(samples=300, elites=30, iterations=20)).solve(problem, seed=1)
    torch.testing.assert_close(plan.actions_BHA, entries["target"], atol=0.05, rtol=0)
    assert stranger.calls[0] == (False, (B, 300, 2), (B, 300, T, A))
    assert all(cached for cached, *_ in stranger.calls[1:20])  # one dictionary for the whole plan
    alone = chunked(problem, CEM(CEMConfig(samples=300, elites=30, iterations=20)), budget_bytes=0, seed=1)
    assert torch.equal(alone.actions_BHA, plan.actions_BHA)


def test_a_model_without_costs_or_a_ragged_dictionary_is_one_sentence():
    refused("no get_cost", CostProblem, object(), stranger_info(), T, A)
    refused("one row per environment", CostProblem, Stranger(), stranger_info() | {"more": torch.zeros(B + 1)}, T, A)

    class Wrong:
        def get_cost(self, entries, a):
            return torch.zeros(a.shape[0])

    refused("returned shape", CEM(CEMConfig(8, 2, 1)).solve, CostProblem(Wrong(), stranger_info(), T, A))


def test_our_solver_under_its_protocol(model):
    cem = CEM(CEMConfig(samples=20, elites=4, iterations=3))
    solver = SwmSolver(cem, model, seed=7)
    with pytest.raises(UserError, match="configure"):
        _ = solver.horizon
    solver.configure(action_space=Space, n_envs=B, config=Config)
    assert (solver.action_dim, solver.n_envs, solver.horizon) == (A, B, T)
    first = solver(info())
    second = solver.solve(info(), init_action=first["actions"][:, 1:])
    problem = model.problem(info(), T)
    expected = cem.solve(problem, seed=seed_of(7, "plan", 0))
    assert torch.equal(first["actions"], expected.actions_BHA) and len(first["costs"]) == B
    start = torch.cat((first["actions"][:, 1:], torch.zeros(B, 1, A, dtype=torch.float64)), 1)
    expected = cem.solve(problem, start, seed=seed_of(7, "plan", 1))
    assert torch.equal(second["actions"], expected.actions_BHA)


def test_an_agent_under_its_policy_protocol():
    """Every environment for itself: one that was reset plans anew, one that has ended is left alone."""
    about = WorldModel(TINY, A).eval(), ActionStats((0.0, 0.0), (1.0, 1.0)), 2, (-1, -1), (1, 1)
    agent = Agent(*about, solver=CEM(CEMConfig(16, 4, 2)), config=MPCConfig(3, 1))
    policy, given = SwmPolicy(agent), {"pixels": frames(B, 1).numpy(), "goal": frames(B, 1, seed=1).numpy()}
    refused("set_policy", policy.get_action, given)
    policy.set_env(SimpleNamespace(num_envs=B, action_space=Space))
    first, second = (policy.get_action(given) for _ in range(2))  # a block of two
    assert first.shape == (B, 2) and first.dtype == np.float32 and np.abs(first).max() <= 1
    alone = agent.fork(1)
    alone.reset(goal=given["goal"][1, 0])
    np.testing.assert_array_equal(first[1], alone.act(given["pixels"][1, 0]))
    third = policy.get_action(given | {"_needs_flush": np.array([False, True, False]), "terminated": [0, 0, 1]})
    np.testing.assert_array_equal(third[1], first[1])  # anew
    assert not np.array_equal(third[0], first[0]) and np.isnan(third[2]).all() and np.isfinite(second).all()
    own = SwmPolicy(agent, goal=lambda z: z.square().mean(-1))
    own.set_env(SimpleNamespace(num_envs=B, action_space=Space))
    assert own.get_action({"pixels": given["pixels"]}).shape == (B, 2)
    refused("no 'goal'", policy.get_action, {"pixels": given["pixels"]})
