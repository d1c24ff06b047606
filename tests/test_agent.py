"""The agent's goals, its time budget, and what it says about its plans."""

import itertools
import time

import numpy as np
import pytest
import torch

import lpwm
from lpwm.agent import Agent
from lpwm.core.errors import UserError
from lpwm.core.rng import generator
from lpwm.data import ActionStats
from lpwm.interpret.factors import Factors
from lpwm.interpret.results import FactorScore
from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, WorldModel
from lpwm.plan import MPCConfig
from lpwm.train.pretrained import unpack

VIT = EncoderConfig(image_size=16, patch=8, width=16, depth=1, heads=1, head_dim=16, mlp=16)
SMALL = lpwm.CEMConfig(samples=64, elites=8, iterations=6)


@pytest.fixture(scope="module")
def model():
    made = WorldModel(ModelConfig(latent=8, encoder=VIT, predictor=PredictorConfig("mlp-lti")), 6).eval()
    g = generator("agent")
    with torch.no_grad():
        for p in (*made.predictor.parameters(), *made.embed_action.parameters()):
            p.copy_(0.7 * torch.randn(p.shape, generator=g) / p.shape[-1] ** 0.5)
    return made


@pytest.fixture
def make(model):
    """Two raw actions in a block of three."""
    stats, config = ActionStats((0.0, 0.5), (0.5, 1.0)), MPCConfig(4, 1, context=3)
    return lambda **more: Agent(
        model, stats, 3, (-1.0, -0.2), (1.0, 2.0), **{"solver": SMALL.build(), "config": config, **more}
    )


def frame(k, size=16):
    return torch.randint(0, 256, (size, size, 3), generator=generator("frame", k), dtype=torch.uint8).numpy()


def actions(agent, goal, count=4):
    agent.reset(goal=goal)
    return np.stack([agent.act(frame(t // 3)) for t in range(count)])


def test_a_picture_its_code_and_its_cost_are_one_goal(make, model):
    code = model.encode(torch.from_numpy(frame(9)).permute(2, 0, 1)[None])[0].detach()
    seen = actions(make(), frame(9))
    for goal in (code, code.numpy(), code[None], lambda z: (z - code).square().mean(-1)):
        np.testing.assert_array_equal(actions(make(), goal), seen)
    assert not np.array_equal(actions(make(), frame(8)), seen)


PROBES = Factors(
    tuple(FactorScore(n, n == "turn", 0.9, 0.8, 1.0, 0.0, 2.0, -9.0, 9.0, 100) for n in ("x", "y", "turn")),
    *(torch.randn(s, generator=generator("probe", *s)) for s in ((8, 4), (4,))),
    step=0,
)


@pytest.fixture
def factors(tmp_path):
    PROBES.save(tmp_path)
    return tmp_path


def test_wanted_values_of_factors(make, model, factors):
    """The same plan as with the cost spelled out; one goal per environment is planned as that one alone."""
    wanted = [{"x": 0.5, "turn": 3.0}, {"y": 0.4}]
    own = [actions(make(), PROBES.cost(goal)) for goal in wanted]
    for goal, expected in zip(wanted, own, strict=True):
        np.testing.assert_allclose(actions(make(folder=factors), goal), expected, atol=1e-5)
    batch = make(folder=factors)
    batch.reset(goal=wanted)
    both = batch.act(np.stack([frame(0)] * 2))
    np.testing.assert_allclose(both[0], own[0][0], atol=1e-5)
    left = PROBES.cost(wanted[0])(batch.plan.codes_BHD[0])
    torch.testing.assert_close(batch.plan.distances_BH[0], left)


def test_a_plan_says_what_it_expects(make, model):
    agent = make()
    assert agent.plan is None and agent.distance is None
    sent = actions(agent, frame(9), count=3)
    plan = agent.plan
    assert agent.plan is plan and plan.raw_BTA.shape == (1, 12, 2)
    np.testing.assert_array_equal(plan.raw_BTA[0, :3].numpy(), sent)
    with torch.no_grad():
        z = model.encode(torch.from_numpy(frame(0)).permute(2, 0, 1)[None])
        goal = model.encode(torch.from_numpy(frame(9)).permute(2, 0, 1)[None])
        codes = model.rollout(z[:, None], plan.actions_BHA[:, None], cached=False)[:, 0]
    torch.testing.assert_close(plan.codes_BHD, codes, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(plan.distances_BH, (codes - goal).square().mean(-1).sqrt(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(agent.distance, (z - goal).square().mean(-1).sqrt(), rtol=1e-5)
    torch.testing.assert_close(plan.distances_BH[:, -1].square(), plan.costs_B, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("solver", ["cem", "icem", "mppi", "gradient"])
def test_a_time_budget_takes_as_many_iterations_as_fit(make, solver, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock) / 1000)  # each look at the clock takes 1 ms
    done = {}
    for seconds in (1e-6, 0.05, 60.0):
        agent = make(solver=lpwm.plan.make_solver(solver, iterations=40 if seconds > 1 else 1000), seconds=seconds)
        agent.reset(goal=frame(9))
        agent.act(frame(0))
        done[seconds] = int(agent.plan.info["iterations"][0])
    assert done[1e-6] == 1 and 40 < done[0.05] < 50 and done[60.0] in (40, 41)


def test_with_steps_no_plan_reaches_beyond_the_end(make):
    agent = make()
    for steps, horizons in ((7, [3, 2, 1]), (None, [4, 4, 4])):
        agent.reset(goal=frame(9), steps=steps)
        seen = []
        for t in range(9):
            agent.act(frame(t // 3))
            seen.append(agent.plan.raw_BTA.shape[1] // 3)
        assert seen[::3] == horizons
    with pytest.raises(UserError, match="at least 1"):
        agent.reset(goal=frame(9), steps=0)


def test_choices_come_as_numbers(model):
    """Of three actions, the first called 1."""
    stats = ActionStats((1 / 3,) * 2, (0.5,) * 2)
    agent = Agent(model, stats, 3, (0.0, 0.0), (1.0, 1.0), solver=SMALL.build(), choices=(1, 2))
    agent.reset(goal=frame(9))
    one = agent.act(frame(0))
    assert type(one) is int and one in (1, 2)
    agent.reset(goal=frame(9))
    both = agent.act(np.stack([frame(0), frame(1)]))
    assert both.shape == (2,) and both[0] == one


def test_actions_stay_within_the_bounds(make):
    agent = make(solver=lpwm.CEMConfig(samples=64, elites=8, iterations=6, std=20.0).build())
    sent = np.concatenate([actions(agent, frame(k), count=6) for k in range(4)])
    low, high = sent.min(0), sent.max(0)
    assert low[0] == -1 and high[0] == 1 and low[1] == np.float32(-0.2) and high[1] == 2


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (np.zeros(5), "the goal is a code of 5 numbers, and codes of model have 8"),
        (torch.zeros(2, 9), "a code of 9 numbers"),
        (lambda z: z, r"returned shape \(2, 3, 8\) for codes"),
        (lambda z: 3.0, "returned float"),
        ({"x": 1.0, "tur": 2.0}, "unknown factor 'tur': did you mean 'turn'"),
        ({"x": float("nan")}, "give a finite number"),
        ({"x": "far"}, "give a finite number"),
        ({}, "no factor is wanted"),
        ("picture.png", "the goal is str, not an array"),
    ],
)
def test_wrong_goals_are_one_sentence(make, factors, goal, words):
    agent = make(folder=factors)
    with pytest.raises(UserError, match=words) as caught:
        agent.reset(goal=goal)
    assert "\n" not in str(caught.value)


def test_other_mistakes_are_one_sentence(make, tmp_path):
    agent = make()
    agent.reset(goal=frame(9))
    agent.act(frame(0))
    for _ in range(2):
        agent.act(frame(0))
    with pytest.raises(UserError, match="2 frames, and the episode began with 1"):
        agent.act(np.stack([frame(0)] * 2))
    with pytest.raises(UserError, match="does not know its run"):
        agent.reset(goal={"x": 1.0})
    with pytest.raises(UserError, match="more than 0"):
        make(seconds=0.0)
    with pytest.raises(UserError, match=f"run lpwm interpret --what factors {tmp_path}"):
        make(folder=tmp_path).reset(goal={"x": 1.0})
    folder = unpack("lpwm", tmp_path)
    with pytest.raises(UserError, match="horizon is 0: give at least 1"):
        lpwm.load(folder, horizon=0)
    with pytest.raises(UserError, match="unknown precision 'float16'"):
        lpwm.load(folder, precision="float16")


@pytest.mark.gpu
def test_on_a_gpu_compiled_or_not(make, model):
    code = model.encode(torch.from_numpy(frame(9)).permute(2, 0, 1)[None])[0].detach()
    expected = actions(make(), frame(9))
    try:
        model.cuda()
        for goal, options in ((frame(9), {}), (frame(9), {"compile": True}), (code, {"compile": True})):
            np.testing.assert_allclose(actions(make(**options), goal), expected, rtol=1e-3, atol=1e-3)
        on_gpu = code.cuda()
        cost = actions(make(compile=True), lambda z: (z - on_gpu).square().mean(-1))
        np.testing.assert_allclose(cost, expected, rtol=1e-3, atol=1e-3)
    finally:
        model.cpu()
