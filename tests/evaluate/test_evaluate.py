import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import spearmanr
from tools import refused

from lpwm.core.config import from_dict, to_dict
from lpwm.evaluate.config import PRESETS, EvalConfig, preset
from lpwm.evaluate.episodes import Store, run_episodes
from lpwm.evaluate.evaluate import Evaluator, evaluate
from lpwm.evaluate.gif import episode_gif
from lpwm.evaluate.goals import episode_sets
from lpwm.evaluate.measure import _weighted_spearman, distance_curve
from lpwm.evaluate.results import Evaluation, differences
from lpwm.evaluate.timing import COMPILE, compilations, times, worth_compiling
from lpwm.plan import CEMConfig

SMALL = {"samples": 24, "elites": 4, "iterations": 3}
QUICK = EvalConfig(
    goals=("random",), episodes=6, budgets=(25, 50), receding=(5,), planner_seeds=2, options=SMALL, curve=64
)


def solo(config, **changes):
    """Without controls and curve."""
    return replace(config, controls=(), curve=0, **changes)


def test_with_arrive_plans_end_with_the_episode_and_are_kept_apart(world, agent, tmp_path):
    config = replace(QUICK, budgets=(25,), horizons=(4,), receding=(1,), planner_seeds=1, controls=("oracle",), curve=0)
    store, horizons = Store(tmp_path), []
    assert evaluate([agent], world, config, store=store).cells[0].rows[0].stored_records == 0
    arriving = Evaluator(
        [agent], world, replace(config, arrive=True), episode_sets(world, config, None, 0, 5), store=store
    )
    jobs = arriving.jobs()
    assert not any(arriving.stored(job) for job in jobs)
    for job in jobs:
        actor = job.actor(None)
        solve = actor.mpc.plan
        actor.mpc.plan = lambda make, seed, mpc=actor.mpc, solve=solve: (
            horizons.append(mpc.horizon),
            solve(make, seed),
        )[1]
        run_episodes(world, job.episodes, actor, steps=25, frameskip=5)
    assert horizons == [4, 4, 3, 2, 1] * 2


@pytest.fixture(scope="module")
def result(world, data, agents_of):
    config = replace(QUICK, goals=("random", "dataset"), receding=(1, 5))
    return evaluate([agents_of(world)], world, config, data=data)


def test_every_cell_holds_the_method_and_three_controls(result):
    where = [(c.goals, c.horizon, c.receding) for c in result.cells]
    assert where == [("random", 5, 1), ("random", 5, 5), ("dataset", 5, 1), ("dataset", 5, 5)]
    for cell, played in zip(result.cells, result.played.records, strict=True):
        assert list(played) == [r.name for r in cell.rows]
        assert [r.name for r in cell.rows] == ["true", "do nothing", "random actions", "oracle"]
        assert [r.control for r in cell.rows] == [False, True, True, True]
        assert [r.success("latched", 50).shape for r in cell.rows] == [(1, 2, 6), (1, 1, 6), (1, 2, 6), (1, 1, 6)]
        for row in cell.rows:
            assert played[row.name][0][0].ids == result.episode_sets[cell.goals].ids
            for measure in ("latched", "terminal"):
                assert (row.success("latched", 50) >= row.success(measure, 50)).all()
            assert (row.success("latched", 25) <= row.success("latched", 50)).all()
        assert cell.rows[0].planner["receding"] == cell.receding == cell.rows[3].planner["receding"]


def test_the_json_is_json_and_tells_everything(result):
    text = json.dumps(result.to_json(), allow_nan=False)
    data = json.loads(text)
    assert Evaluation.from_json(data) == result and data["version"] == 2
    assert from_dict(EvalConfig, data["settings"]) == result.settings
    assert {"lpwm", "torch", "numpy", "python"} <= set(data["versions"])
    assert data["runs"][0]["weights"] and data["runs"][0]["normalization"]["std"] == [0.577, 0.577]
    assert data["episode_sets"]["random"]["ids"][0] == "random/0/0"
    row = data["cells"][0]["rows"][0]
    assert row["planner"]["options"]["samples"] == 24 and row["planner"]["solver"] == "cem"
    assert np.shape(row["budgets"]["50"]["success"]["terminal"]) == (1, 2, 6)
    rate = np.mean(row["budgets"]["50"]["success"]["terminal"])
    assert row["budgets"]["50"]["terminal"]["rate"] == pytest.approx(rate)
    assert row["budgets"]["50"]["terminal"]["low"] <= rate <= row["budgets"]["50"]["terminal"]["high"]
    assert data["wall_s"] > 0 and data["device"] == "cpu"


def test_the_table_shows_rates_controls_and_the_curve(result):
    text = result.table()
    assert max(map(len, text.splitlines())) <= 80
    for part in ("random goals, horizon 5, executes 1 (warm)", "executes 5 (cold)", "do nothing", "oracle", "50 steps"):
        assert part in text
    assert "latent distance by the distance of states" in text and "<10" in text
    row = result.cells[0].rows[0]
    assert row.at(50).terminal.interval.text().replace(" %", "") in text
    assert Evaluation.from_json(result.to_json()).table() == text
    ((name, curve),) = list(result.curves.items())[:1]
    nan = float("nan")
    dead = replace(curve, far=nan, spearman=nan, relative=(nan,) * len(curve.relative))
    lines = replace(result, curves={name: curve, "gone": dead}).table().splitlines()
    assert lines[-1] == "gone: all frames have the same code" and lines[-2].split() == ["gone"] + 6 * ["–"]
    assert lines[-3].split()[1:] == [f"{v:.2f}" for v in (*curve.relative, curve.spearman)]


def test_the_ladder_reads_success_at_the_ends_of_plans(world, agent):
    step, plan = (evaluate([agent], world, replace(QUICK, test=t, controls=())) for t in ("step", "plan"))
    a, b = (e.played.records[0]["true"][0][0] for e in (step, plan))
    np.testing.assert_array_equal(a.states_BTS, b.states_BTS)
    np.testing.assert_array_equal(b.latched(50), a.success_BT[:, [24, 49]].any(1))
    assert (a.tested, b.tested) == (1, 25) and set(b.steps_to_success(50)) <= {-1, 25, 50}
    refused("ends before one plan of 25", evaluate, [agent], world, replace(QUICK, test="plan", budgets=(20,)))


def test_presets_are_the_papers(world):
    paper = PRESETS["paper"]
    assert paper.build_solver().config == CEMConfig(samples=300, elites=30, iterations=30)
    assert (paper.episodes, paper.planner_seeds, paper.budgets) == (50, 3, (50, 100))
    assert paper.pairs() == [(5, 1), (5, 5)] and paper.warm and paper.context == 0
    ladder = PRESETS["ladder"]
    assert (ladder.test, ladder.budgets, ladder.pairs(), ladder.context) == ("plan", (250,), [(5, 5)], 1)
    assert PRESETS["open"].budgets == (25,)
    sweep = PRESETS["horizons"].pairs()
    assert sweep == [(1, 1)] + [(h, r) for h in range(2, 11) for r in (1, h)]
    for config in PRESETS.values():
        assert from_dict(EvalConfig, json.loads(json.dumps(to_dict(config)))) == config


def test_a_model_with_the_path_cost_is_another_planner_and_stays(world, agent, tmp_path):
    """Under other names in the store, named in the table; with the true world as its model it stays at its goals."""
    config = replace(QUICK, receding=(1,), planner_seeds=1, budgets=(60,), controls=("oracle",), curve=0)
    store, there = Store(tmp_path), {}
    for path_discount in (0.0, 1.0):
        result = evaluate([agent], world, replace(config, path_discount=path_discount), store=store)
        there[path_discount] = [row.success("terminal", 60).mean() for row in result.cells[0].rows]
        assert ("path discount 1" in result.table()) == (path_discount == 1)
        assert result.to_json()["settings"]["path_discount"] == path_discount
    assert len(list(tmp_path.glob("*.npz"))) == 4
    assert there[1.0] == [1, 1] and max(there[0.0]) < 1
    assert (PRESETS["path"].path_discount, PRESETS["path"].pairs()) == (1, [(5, 1)])
    assert preset("stay") is PRESETS["path"]


def test_a_horizon_sweep_shares_the_controls_that_do_not_plan(world, agent):
    config = replace(QUICK, horizons=(1, 2), receding=(1, 0), curve=0, planner_seeds=1, budgets=(20,))
    runner = Evaluator([agent], world, config, episode_sets(world, config, None, 0.1, 5))
    assert len(runner.jobs()) == 3 + 3 + 2  # the model and the oracle for three pairs, nothing and random once
    pairs = {(c.horizon, c.receding) for c in evaluate([agent], world, config).cells}
    assert pairs == {(1, 1), (2, 1), (2, 2)}


def test_eight_seeds_may_have_a_winner_and_seven_may_not(world, agents_of, tmp_path):
    """A model that sees sharply against one whose sight is off by half the room, paired on seeds."""
    config = solo(
        replace(
            QUICK, planner_seeds=1, episodes=16, budgets=(50,), options={"samples": 64, "elites": 8, "iterations": 6}
        )
    )
    agents = [agents_of(world, f"good-{s}", s, "good", noise=1e-3 * s) for s in range(8)]
    agents += [agents_of(world, f"bad-{s}", s, "bad", noise=80.0 + s) for s in range(8)]
    all_of_them = evaluate(agents, world, config, store=Store(tmp_path)).cells[0]
    assert [r.seeds for r in all_of_them.rows] == [tuple(range(8))] * 2
    (pair,) = all_of_them.compared("latched", 50).differences
    assert (pair.verdict, pair.seeds) == ("a ahead", 8) and pair.difference > 0.3
    fewer = evaluate([a for a in agents if a.seed != 3], world, config, store=Store(tmp_path))
    (pair,) = fewer.cells[0].compared("latched", 50).differences
    assert pair.verdict == "exploratory: fewer than 8 seeds"
    assert "exploratory" in fewer.table()


def test_single_checkpoints_of_other_seeds_are_not_compared(world, agents_of):
    agents = [agents_of(world, "a", 0, "a"), agents_of(world, "b", 1, "b", noise=30.0)]
    result = evaluate(agents, world, solo(QUICK))
    compared = result.cells[0].compared("terminal", 50)
    assert "train both on the same seeds" in compared.refused
    assert "train both on the same seeds" in " ".join(result.table().split())
    assert Evaluation.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False))) == result


def test_what_was_run_is_kept_and_a_changed_weight_is_not_confused_with_it(world, agents_of, tmp_path):
    agent, store = agents_of(world), Store(tmp_path)
    first = evaluate([agent], world, QUICK, store=store)
    again = evaluate([agent], world, QUICK, store=store)
    assert [r.stored_records for r in first.cells[0].rows] == [0, 0, 0, 0]
    assert [r.stored_records for r in again.cells[0].rows] == [2, 1, 2, 1]
    assert differences(first, again) == []
    other = evaluate([agents_of(world, noise=3.0)], world, QUICK, store=store)
    assert [r.stored_records for r in other.cells[0].rows] == [0, 1, 2, 1]
    longer = evaluate([agent], world, replace(QUICK, episodes=7), store=store)
    assert [r.stored_records for r in longer.cells[0].rows] == [0, 0, 0, 0]


def test_a_model_without_weights_is_never_kept(world, agent, tmp_path):
    model = agent.model
    bare = replace(agent, model=SimpleNamespace(history=1, encode=model.encode, rollout=model.rollout))
    for _ in range(2):
        assert evaluate([bare], world, solo(QUICK), store=Store(tmp_path)).cells[0].rows[0].stored_records == 0
    assert not list(tmp_path.iterdir())


def test_progress_counts_plans_and_time_is_predicted_for_what_is_not_kept(world, agent, tmp_path):
    store, seen = Store(tmp_path), []
    sets = episode_sets(world, QUICK, None, 0.1, 5)
    runner = Evaluator([agent], world, QUICK, sets, store=store)
    assert sum(j.plans for j in runner.jobs()) == 6  # 50 raw steps are 2 plans of 25: 2 planner seeds, 1 oracle
    assert sum(times(runner)) > 0
    evaluate([agent], world, QUICK, store=store, progress=seen.append)
    assert seen == sorted(seen) and seen[-1] == 6
    assert sum(times(runner)) == 0


def test_jobs_of_one_agent_share_a_solver_and_so_its_captured_graphs(world, agent, agents_of):
    runner = Evaluator([agent, agents_of(world, "other", 1)], world, QUICK, episode_sets(world, QUICK, None, 0.1, 5))
    first, second = (
        [runner.agent_job(a, "random", 5, 5, seed).actor(None).mpc.solver for seed in (0, 1)] for a in runner.agents
    )
    assert first[0] is first[1] and second[0] is second[1] and first[0] is not second[0]


def test_compiling_pays_from_twice_its_cost_on_and_only_on_cuda(world, agent, agents_of):
    """Contexts of 1, 2 and 3 frames with R=1, of 1 and 3 with R=5; models of equal shapes count once."""
    other = agents_of(world, "other", seed=1, history=3)
    config = replace(QUICK, receding=(1, 5), budgets=(50,))
    sets = episode_sets(world, config, None, 0.1, 5)

    def runner(agents, **changes):
        return Evaluator(agents, world, replace(config, **changes), sets)

    assert compilations(runner([agent])) == 1  # it reads one frame
    assert compilations(runner([agent, other])) == 3  # of equal shapes
    assert compilations(runner([other], receding=(5,))) == 2
    assert compilations(runner([other], horizons=(5, 6))) == 6
    assert compilations(runner([other], budgets=(5,), receding=(1,))) == 1  # a single plan
    here = runner([other])
    assert not worth_compiling(here, 1e6)
    here.device = torch.device("cuda")
    assert [worth_compiling(here, 2 * 3 * COMPILE + x) for x in (-1, 1)] == [False, True]
    here.solver = replace(config, solver="gradient", options={}).build_solver()
    assert not worth_compiling(here, 1e6)  # it does not search by a compiled step


def test_rank_correlations_with_ties_are_those_of_scipy():
    x, y = np.random.default_rng(3).integers(0, 9, (2, 60)).astype(float)
    ours = _weighted_spearman(x, y + x / 2, np.ones(60))
    assert ours == pytest.approx(spearmanr(x, y + x / 2).statistic, abs=1e-12) and abs(ours) > 0.1


def test_the_curve_of_a_true_code_is_straight_and_of_a_saturated_one_flat(world):
    straight = distance_curve(lambda s: s, world, states=300)
    assert straight.edges[1:5] == (10, 25, 50, 100) and straight.spearman > 0.999
    middle = [6.7, 18.5, 39, 76]  # mean distances of pairs in these bins, roughly: density grows like r
    far = straight.far * math.sqrt(2)
    np.testing.assert_allclose(np.array(straight.relative[:4]) * far, middle, rtol=0.08)
    assert straight.relative[4] == 1 and straight.saturates is None

    def cells(s):  # one-hot of a 20-px grid: distance is the same for all but neighbors
        index = (s[:, 0] // 20).long() * 12 + (s[:, 1] // 20).long()
        return torch.nn.functional.one_hot(index, 144).float()

    flat = distance_curve(cells, world, states=300)
    assert flat.relative[2] > 0.99 and flat.saturates == 37.5 and flat.spearman < straight.spearman
    dead = distance_curve(lambda s: torch.zeros(len(s), 4), world, states=64)
    assert math.isnan(dead.far)
    refused("non-finite codes", distance_curve, lambda s: s * torch.nan, world, states=64)


def test_where_states_never_lie_far_apart_the_bins_are_quantiles(world):
    class Near:
        """All states within a few pixels: no pair is as far apart as the last border."""

        spec, distance = world.spec, staticmethod(world.distance)

        def sample_goal(self, n, key):
            return 100 + world.sample_goal(n, key) * 0.05

    curve = distance_curve(lambda s: s, Near(), states=200)
    assert curve.edges[-1] < 6.25 * world.spec.success_within and list(curve.edges) == sorted(curve.edges)
    state = Near().sample_goal(200, (0, "curve"))
    i, j = np.triu_indices(200, 1)
    expected = np.quantile((state[i] - state[j]).double().norm(dim=-1).numpy(), [0.01, 0.05, 0.2, 0.5])
    np.testing.assert_allclose(curve.edges[1:5], expected, rtol=1e-6)
    assert min(curve.pairs) > 100 and curve.spearman > 0.99


def test_groups_of_goals_are_reported_apart(agent):
    from lpwm.worlds.piecewise import Piecewise

    class Grouped(Piecewise):
        def goal_groups(self, start, goal):
            return {"far goals": self.distance(start, goal) > 60, "no goals": torch.zeros(len(start), dtype=torch.bool)}

    world = Grouped()
    result = evaluate([agent], world, replace(QUICK, curve=0))
    episodes = result.played.sets["random"]
    which = (world.distance(episodes.start_BS, episodes.goal_BS) > 60).numpy()
    assert 0 < which.sum() < 6
    row = result.cells[0].rows[0]
    apart = result.cells[0].groups["far goals"]
    assert apart.episodes == which.sum() and result.cells[0].groups["no goals"].rates == {}
    rate = pytest.approx(row.success("latched", 50)[:, :, which].mean())
    assert apart.rates["true"]["50"]["latched"].rate == rate
    assert result.to_json()["cells"][0]["groups"]["far goals"]["true"]["50"]["latched"]["rate"] == rate
    assert f"only far goals: {which.sum()} episodes" in result.table()


def test_a_gif_shows_every_step(world, result, tmp_path):
    played, sets = result.played.records[0], result.played.sets
    record = played["true"][0][0]
    path = episode_gif(tmp_path / "new" / "a.gif", world, sets["random"], record, 1, every=10)
    with Image.open(path) as image:
        assert (image.n_frames, image.size[0] > 400) == (6, True)
        first = np.array(image.convert("RGB")).astype(int)
        image.seek(5)
        last = np.array(image.convert("RGB")).astype(int)
    start = sets["random"].start_BS[1]
    # The red dot stands where the episode starts (pictures begin at (8, 20)), and has moved at the end.
    x, y = (round(float(v)) for v in start)
    assert first[y + 20, x + 8, 0] - first[y + 20, x + 8, 1] > 150
    assert np.abs(first[20:244, 8:232] - last[20:244, 8:232]).max() > 100
    blue = (np.abs(last[256:] - np.array([30, 90, 200])).sum(-1) < 60).sum()
    assert blue > 30
    control = played["do nothing"][0][0]
    episode_gif(tmp_path / "b.gif", world, sets["random"], control, 0, every=25)
    av = pytest.importorskip("av")
    with av.open(str(episode_gif(tmp_path / "b.mp4", world, sets["random"], record, 1, every=10))) as film:
        shown = [frame.to_ndarray(format="rgb24").astype(int) for frame in film.decode(video=0)]
    assert len(shown) == 6 + 3 and np.abs(shown[0] - first).mean() < 6 and np.abs(shown[-1] - last).mean() < 6
    refused("no episode 6", episode_gif, tmp_path / "c.gif", world, sets["random"], record, 6)


def test_bad_settings_are_one_sentence_each(world, data, agent):
    refused("5 blocks are to be executed of plans of 3", replace, QUICK, horizons=(3,), receding=(5,))
    far = replace(QUICK, goals=("dataset",), horizons=(21,), receding=(1,))
    refused("planning horizon of 105 raw steps is longer than the held-out", evaluate, [agent], world, far, data=data)
    twice = [replace(agent, method="m"), replace(agent, method="m", name="other")]
    for agents, config, words in (
        ([agent], replace(QUICK, goals=("dataset",)), "need the data set"),
        ([], QUICK, "at least one run"),
        (twice, QUICK, "twice with training seed 0"),
        ([replace(agent, name="oracle")], QUICK, "name of a control"),
    ):
        refused(words, evaluate, agents, world, config)


def test_costs_that_are_not_finite_are_one_sentence(world, agents_of):
    agent = agents_of(world)
    agent.model.rollout = lambda z, a, past_BPA=None, last_only=False: torch.full((*a.shape[:2], 2), torch.nan)
    refused(r"every candidate plan of 6 of 6 environments .* non-finite", evaluate, [agent], world, solo(QUICK))


def test_a_model_in_training_mode_and_one_with_proprioception_are_refused(world, agents_of):
    agent = agents_of(world)
    agent.model.train()
    refused("training mode", evaluate, [agent], world, solo(QUICK))
    agent.model.eval().proprio_dim = 2
    refused("proprioception", evaluate, [agent], world, solo(QUICK))
