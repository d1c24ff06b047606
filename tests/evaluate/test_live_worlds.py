"""Evaluation where the state is not all there is: a world with momentum that its states do not show, and PushT."""

import json
from dataclasses import replace

import pytest
import torch

from lpwm import worlds
from lpwm.data import ActionStats
from lpwm.evaluate.agent import Agent
from lpwm.evaluate.config import LIVE_ORACLE, EvalConfig
from lpwm.evaluate.controls import Nothing, Oracle
from lpwm.evaluate.episodes import Store, run_episodes
from lpwm.evaluate.evaluate import Evaluator, evaluate
from lpwm.evaluate.goals import random_goals
from lpwm.evaluate.measure import distance_curve
from lpwm.evaluate.results import Evaluation
from lpwm.evaluate.timing import times
from lpwm.plan import CEMConfig, LiveOracleProblem, MPCConfig
from lpwm.worlds.piecewise import Piecewise

STATS = ActionStats((0.1, -0.2), (0.577, 0.4))


class Slide:
    """Dots that also move by half of their last action: that is hidden."""

    def __init__(self, states):
        self.states, self.last, self.closed = states.clone(), torch.zeros(len(states), 2), False

    @staticmethod
    def move(state, action, last):
        return state + 3 * action + 1.5 * last

    def step(self, action):
        self.states, self.last = self.move(self.states, action, self.last), action
        return self.states

    def branches(self, action):
        n, m = action.shape[:2]
        state, last = (t[:, None].expand(n, m, 2) for t in (self.states, self.last))
        out = []
        for a in action.unbind(2):
            state, last = self.move(state, a, last), a
            out.append(state)
        return torch.stack(out, 2)

    def close(self):
        self.closed = True


class Sliding(Piecewise):
    opened: list[int | None]
    live: Slide

    def open(self, states, workers=1):
        self.__dict__.setdefault("opened", []).append(workers)
        self.__dict__["live"] = Slide(states)
        return self.__dict__["live"]

    def step(self, state, action):
        raise AssertionError("a world of live simulators has no step of its own")

    def goal_groups(self, start, goal):
        right = goal[:, 0] > start[:, 0]
        return {"right": right}


def problem(world, live, episodes, **more):
    return LiveOracleProblem(
        live, world, live.states, episodes.goal_BS, 2, 5, STATS.mean, STATS.std, env_ids=episodes.number_B, **more
    )


def test_candidates_branch_off_the_simulators_that_act():
    """The cost is where the very simulators end when they are sent the candidate, hidden momentum included."""
    world = Sliding()
    episodes = random_goals(world, 4, seed=1)
    live = world.open(episodes.start_BS)
    live.step(torch.full((4, 2), 0.7))  # momentum that `states` does not show
    actions = torch.randn(4, 3, 2, 10, generator=torch.Generator().manual_seed(0))
    cost = problem(world, live, episodes).cost(actions)
    before = live.states.clone()
    for i in range(4):
        for s in range(3):
            one = Slide(live.states[i : i + 1])
            one.last = live.last[i : i + 1]
            for raw in actions[i, s].reshape(10, 2):
                one.step(torch.tensor([STATS.mean]) + torch.tensor([STATS.std]) * raw)
            away = (one.states[0] - episodes.goal_BS[i]).square().sum()
            assert cost[i, s].item() == pytest.approx(away.item(), rel=1e-4)
    assert torch.equal(live.states, before)
    rows = torch.tensor([3, 1])  # a sub-batch asks about its own simulators
    part = problem(world, live, episodes).select(rows).cost(actions[rows])
    torch.testing.assert_close(part, cost[rows])


def test_the_oracle_plans_on_the_simulators_and_closes_them():
    world = Sliding()
    episodes = random_goals(world, 6, seed=2)
    rates = {}
    for name, actor in {
        "oracle": Oracle(world, STATS, 5, CEMConfig(64, 8, 8).build(), MPCConfig(5, 5)),
        "nothing": Nothing(world, 5),
    }.items():
        result = run_episodes(world, episodes, actor, steps=100, frameskip=5, workers=3)
        rates[name] = result.latched().mean()
        assert world.live.closed
    assert rates["oracle"] == 1 and rates["nothing"] < 0.5 and world.opened == [3, 3]


def agent_of(world, data=None):
    """An agent that wants nothing: enough to be compared with its controls."""

    class Blind(torch.nn.Module):
        action_dim, history = 10, 1

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def encode(self, frames):
            return frames.float().mean((-1, -2)) * self.weight.detach()

        def rollout(self, z_BCD, actions_BSHA, past_BPA=None, last_only=False):
            z = z_BCD[:, -1][:, None].expand(-1, actions_BSHA.shape[1], -1)
            return z if last_only else z[:, :, None].expand(-1, -1, actions_BSHA.shape[2], -1)

    return Agent("blind", Blind().eval(), 32, STATS, 5)


SMALL = EvalConfig(
    goals=("random",),
    episodes=6,
    budgets=(25,),
    receding=(5,),
    planner_seeds=1,
    curve=0,
    options={"samples": 4, "elites": 2, "iterations": 1},
    live_oracle_options={"samples": 16, "elites": 4, "iterations": 3},
)


def test_the_reduced_ceiling_is_stated_kept_and_its_groups_are_apart(tmp_path):
    world, store = Sliding(), Store(tmp_path)
    result = evaluate([agent_of(world)], world, SMALL, store=store, workers=2)
    assert [row.name for row in result.cells[0].rows] == ["blind", "do nothing", "random actions", "oracle"]
    assert Evaluation.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False))) == result
    oracle = result.cells[0].rows[-1]
    assert {k: oracle.planner["options"][k] for k in LIVE_ORACLE} == {"samples": 16, "elites": 4, "iterations": 3}
    right = result.cells[0].groups["right"]
    episodes = result.played.sets["random"]
    assert right.episodes == int((episodes.goal_BS[:, 0] > episodes.start_BS[:, 0]).sum())
    text = " ".join(result.table().split())
    assert "oracle: another budget than the methods', cem samples=16, elites=4, iterations=3" in text
    assert f"only right: {right.episodes} episodes" in text
    assert set(world.opened) == {2}
    calls = len(world.opened)
    again = evaluate([agent_of(world)], world, SMALL, store=store)
    assert len(world.opened) == calls and again.cells[0].rows[-1].stored_records == 1


@pytest.mark.parametrize(("cost", "iterations"), [(1.0, 4), (3.0, 2)])
def test_the_predicted_time_counts_the_slow_oracle(monkeypatch, cost, iterations):
    """By a clock that only simulators advance: one plan of 16 candidates of 25 steps per iteration, 25 steps each of
    the model's episodes and the oracle's."""
    clock, stepping = [0.0], 7.0

    class Slow(Slide):
        def step(self, action):
            clock[0] += stepping
            return super().step(action)

        def branches(self, action):
            clock[0] += cost * action.shape[1] * action.shape[2]
            return super().branches(action)

    monkeypatch.setattr(Sliding, "open", lambda self, states, workers=1: Slow(states))
    monkeypatch.setattr("lpwm.evaluate.timing.time.perf_counter", lambda: clock[0])
    world = Sliding()
    budget = {"samples": 16, "elites": 4, "iterations": iterations}
    config = replace(SMALL, controls=("oracle",), live_oracle_options=budget)
    runner = Evaluator([agent_of(world)], world, config, {"random": random_goals(world, 6)})
    # from one iteration and the plan itself, which is scored once more
    assert sum(times(runner)) == pytest.approx(cost * iterations * (16 + 1) * 25 + 2 * 25 * stepping)


def test_actions_come_to_the_host_once_a_plan(monkeypatch):
    """Each trip waits for the device: 25 raw steps in plans of 5 are 5 of them, and a few before and after."""
    trips, plain = [], torch.Tensor.cpu

    def counted(tensor, *args, **options):
        trips.append(tuple(tensor.shape))
        return plain(tensor, *args, **options)

    monkeypatch.setattr(torch.Tensor, "cpu", counted)
    world = Sliding()
    run_episodes(world, random_goals(world, 6), Nothing(world, 5), steps=25, frameskip=5)
    block = (6, 5, world.spec.action_dim)
    assert trips.count(block) == 5 and len(trips) < 12


def test_the_curve_takes_quantiles_where_no_two_states_are_close():
    world = worlds.make("pusht")
    curve = distance_curve(lambda state: state[:, :4], world, states=64)
    assert all(curve.pairs) and curve.spearman > 0.99


def test_a_plan_in_pusht_minds_the_angle():
    world = worlds.make("pusht")
    state = world.sample_state(1, (0,))
    turned = state.clone()
    turned[:, 4] += 0.5
    assert world.distance(state, turned).item() == 0
    costs = []
    for entry, by in ((0, 20.0), (3, 20.0), (4, torch.pi / 9)):
        other = state.clone()
        other[:, entry] += by
        costs.append(world.plan_cost(state, other).item())
    assert costs == pytest.approx([40.0, 400.0, 400.0], rel=1e-4)
