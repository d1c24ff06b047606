"""The same contracts with stable-worldmodel itself; skipped where it is not installed.

    PYTHONPATH=. PEER_PYTHON -m pytest tests/interop/test_swm_real.py

The world model here sees the red disc of its Piecewise environment and knows the true dynamics, so that a plan which
survives frames, goal, blocks and normalization reaches its goal, and one mix-up anywhere does not.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lpwm.agent import Agent
from lpwm.data import ActionStats
from lpwm.interop import SwmModel, SwmPolicy, SwmSolver
from lpwm.plan import CEM, CEMConfig, MPCConfig
from lpwm.worlds import make

swm = pytest.importorskip("stable_worldmodel")

ENVS, IMAGE, BLOCK, HORIZON, OFFSET, BUDGET = 4, 64, 5, 5, 25, 50
STATS = ActionStats((0.1, -0.2), (0.5, 0.7))


class Seer(nn.Module):
    """encode: where the red disc is, in pixels of the 224² frame; rollout: the world itself."""

    def __init__(self):
        super().__init__()
        self.world = make("piecewise")
        self.action_dim, self.meta, self.history = 2 * BLOCK, {}, 1
        self.kind = nn.Parameter(torch.zeros(()))

    def encode(self, frames):
        f = frames.float()
        red = (f[..., 0, :, :] - f[..., 1, :, :]).clamp(min=0)
        at = (torch.arange(IMAGE) + 0.5) * 224 / IMAGE - 0.5
        x = (red * at).sum((-1, -2)) / red.sum((-1, -2))
        y = (red * at[:, None]).sum((-1, -2)) / red.sum((-1, -2))
        return torch.stack((x, y), -1)

    def frozen(self, dtype):
        return None

    def rollout(self, z_BCD, actions_BSHA, past_BPA=None, last_only=False):
        z = z_BCD[:, -1:].expand(-1, actions_BSHA.shape[1], -1)
        out = []
        for block in actions_BSHA.unbind(2):
            for raw in block.unflatten(-1, (BLOCK, 2)).unbind(2):
                z = self.world.step(z, STATS.denormalize(raw))
            out.append(z)
        return z if last_only else torch.stack(out, 2)


class Episodes:
    """A data set of its kind: `load_chunk` and `column_names`."""

    column_names = ("pixels", "state")

    def __init__(self, world):
        self.data = []
        policy = swm.policy.RandomPolicy(seed=0)
        world.set_policy(policy)
        world.reset(seed=5)
        world.envs.action_space.seed(0)
        rows = [(world.infos["pixels"][:, 0].copy(), world.infos["state"][:, 0].copy())]
        for _ in range(OFFSET):
            world.envs.step(0.2 + 0.5 * world.envs.action_space.sample())
            rows.append((world.infos["pixels"][:, 0].copy(), world.infos["state"][:, 0].copy()))
        for e in range(ENVS):
            pixels = torch.from_numpy(np.stack([p[e] for p, _ in rows])).permute(0, 3, 1, 2)
            self.data.append({"pixels": pixels, "state": np.stack([s[e] for _, s in rows])})

    def load_chunk(self, episodes, start, end):
        return [{k: v[a:b] for k, v in self.data[e].items()} for e, a, b in zip(episodes, start, end, strict=True)]


def environments():
    world = swm.World("swm/Piecewise-v0", num_envs=ENVS, image_shape=(IMAGE, IMAGE), max_episode_steps=200)
    return world, Episodes(world)


def evaluate(solver, horizon=HORIZON):
    world, data = environments()
    config = swm.policy.PlanConfig(horizon, horizon, action_block=BLOCK)
    process = {"action": SwmModel(Seer(), STATS).process}
    world.set_policy(swm.policy.WorldModelPolicy(solver, config, process=process))
    return evaluated(world, data)


def evaluated(world, data):
    return world.evaluate(
        dataset=data,
        episodes_idx=list(range(ENVS)),
        start_steps=[0] * ENVS,
        goal_offset=OFFSET,
        eval_budget=BUDGET,
        callables=[
            {"method": "_set_state", "args": {"state": {"value": "state"}}},
            {"method": "_set_goal_state", "args": {"goal_state": {"value": "goal_state"}}},
        ],
    )


def test_its_cem_and_its_world_drive_our_model():
    model = SwmModel(Seer(), STATS)
    solver = swm.solver.CEMSolver(model, num_samples=100, n_steps=10, topk=10, batch_size=2)
    assert evaluate(solver)["success_rate"] == 100


def test_our_cem_in_its_world_with_our_model():
    solver = SwmSolver(CEM(CEMConfig(samples=100, elites=10, iterations=10)), SwmModel(Seer(), STATS))
    assert evaluate(solver)["success_rate"] == 100
    assert isinstance(solver, swm.solver.Solver)


class OfItsKind(nn.Module):
    """A model as its users write them: only get_cost is known of it."""

    def __init__(self):
        super().__init__()
        self.inner = SwmModel(Seer(), STATS)

    def get_cost(self, info, candidates):
        return self.inner.get_cost(info, candidates)


def test_our_cem_in_its_world_with_a_model_of_its_kind():
    solver = SwmSolver(CEM(CEMConfig(samples=100, elites=10, iterations=10)), OfItsKind())
    assert evaluate(solver)["success_rate"] == 100


def test_our_agent_is_its_policy():
    """As one of its own: frames, goals, blocks and bounds; an environment that is reset begins anew."""
    model = Seer().eval()
    model.config = SimpleNamespace(latent=2, encoder=SimpleNamespace(image_size=IMAGE))
    cem = CEM(CEMConfig(samples=100, elites=10, iterations=10))
    agent = Agent(model, STATS, BLOCK, (-1, -1), (1, 1), solver=cem, config=MPCConfig(HORIZON, 1, path_discount=1.0))
    world, data = environments()
    world.set_policy(SwmPolicy(agent))
    assert evaluated(world, data)["success_rate"] == 100


def test_doing_nothing_does_not_succeed():
    """The control: the goals are not where the environments start."""
    still = SwmSolver(CEM(CEMConfig(samples=2, elites=2, iterations=1, std=1e-6)), SwmModel(Seer(), STATS))
    assert evaluate(still)["success_rate"] < 100


@pytest.mark.parametrize("name", ["CEMSolver", "ICEMSolver", "MPPISolver", "PredictiveSamplingSolver"])
def test_its_other_samplers_take_our_world_model(name):
    from gymnasium.spaces import Box

    from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, WorldModel

    encoder = EncoderConfig(image_size=16, patch=8, width=16, depth=1, heads=1, head_dim=16, mlp=16)
    net = WorldModel(ModelConfig(latent=8, encoder=encoder, predictor=PredictorConfig("mlp-lti")), 10)
    kind = getattr(swm.solver, name, None)
    if kind is None:
        pytest.skip(f"this version has no {name}")
    solver = kind(model=SwmModel(net, STATS), num_samples=40)
    space, config = Box(-1, 1, (3, 2)), swm.policy.PlanConfig(4, 4, action_block=BLOCK)
    solver.configure(action_space=space, n_envs=3, config=config)
    frames = torch.randint(0, 256, (3, 1, 16, 16, 3), dtype=torch.uint8)
    plan = solver.solve({"pixels": frames, "goal": frames.flip(0)})
    assert plan["actions"].shape == (3, 4, 10) and plan["actions"].isfinite().all()


def test_our_cem_on_its_lewm_finds_our_plans(monkeypatch):
    """Its LeWM as released, with the weights of one of our models: the same function, hence the same plan."""
    import importlib.util
    from pathlib import Path

    from lpwm.interop import CostProblem
    from lpwm.plan import chunked

    path = Path(__file__).parents[2] / "bench" / "cem_peer.py"
    spec = importlib.util.spec_from_file_location("cem_peer", path)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    monkeypatch.setattr(bench, "ENVIRONMENTS", 3)
    ours = bench.make("mlp-lti", 192)
    theirs = bench.peer_model(ours.model, "mlp-lti")
    theirs.__class__ = swm.wm.lewm.LeWM  # without the bench's fix
    info = {"pixels": ours.z_BCD, "goal": ours.z_goal_BD[:, None], "action": torch.zeros(3, 1, 10)}
    cem, problem = CEM(CEMConfig(50, 10, 8)), CostProblem(theirs, info, 5, 10)
    with torch.no_grad():
        plan = chunked(problem, cem, budget_bytes=0, seed=0)  # it cannot take several environments at once
        torch.testing.assert_close(plan.actions_BHA, cem.solve(ours, seed=0).actions_BHA, rtol=1e-3, atol=1e-3)
