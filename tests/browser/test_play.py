"""The page that plans, in Chromium: its codes, costs, plans and successes against Python's, and what a reader does."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from lpwm.core.rng import fold
from lpwm.model import WorldModel
from lpwm.plan import CEM, CEMConfig
from lpwm.plan.problem import LatentProblem
from lpwm.plan.solver import noise
from lpwm.report import page
from lpwm.report.gather import gather
from lpwm.train.pretrained import shipped
from lpwm.worlds.piecewise import Piecewise

pytestmark = pytest.mark.soak
WORLD = Piecewise(g=2)
BUDGET = {"samples": 128, "iterations": 10, "horizon": 5, "receding": 5, "path": False, "budget": 50}


def _browser_class():
    spec = importlib.util.spec_from_file_location("browser_of_pages", Path(__file__).with_name("test_browser.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    root = tmp_path_factory.mktemp("play")
    folders = [shutil.copytree(shipped() / name, root / name) for name in ("lpwm", "lewm")]
    path = page.write(root / "report.html", gather(folders))
    assert path.stat().st_size < 6_000_000
    made = _browser_class()(path.as_uri(), root / "profile")
    made.driver.set_script_timeout(300)
    made.ask("window.engine = lpwmEngine(); window.players = lpwm.data.play.map((p) => engine.player(p))")
    yield made
    made.driver.quit()


@pytest.fixture(params=[0, 1], ids=["sparse", "dense"])
def pair(request):
    """(number in the page, the same model in Python)"""
    return request.param, WorldModel.from_pretrained(shipped() / ("lpwm", "lewm")[request.param])


def states(n, seed):
    return WORLD.sample_state(n, (seed, "play"))


@torch.no_grad()
def test_codes_and_costs_are_pythons(browser, pair):
    number, model = pair
    places = states(40, 1)
    frames = WORLD.render(places, 32)
    z = model.encode(frames)
    drawn, codes = browser.ask(
        "const p = players[arguments[0]], f = arguments[1].map((s) => p.world.render(s));"
        "return [f.map((x) => Array.from(x)), f.map((x) => Array.from(p.model.encode(x)))]",
        number,
        places.tolist(),
    )
    np.testing.assert_array_equal(np.array(drawn, np.uint8), frames.flatten(1).numpy())
    np.testing.assert_allclose(codes, z.numpy(), atol=1e-4)
    actions = torch.randn(1, 64, 5, 10, generator=torch.Generator().manual_seed(1))
    costs = browser.ask(
        "const p = players[arguments[0]], c = p.model.rollout(arguments[1], Float64Array.from(arguments[3]), 64, 5);"
        "return [false, true].map((path) => Array.from(p.model.costs(c, arguments[2], 64, path)))",
        number,
        z[0].tolist(),
        z[1].tolist(),
        actions.flatten().tolist(),
    )
    for cost, discount in zip(costs, (0.0, 1.0), strict=True):
        problem = LatentProblem(model, z[:1, None], z[1:2], path_discount=discount)
        np.testing.assert_allclose(cost, problem.value(actions)[0].numpy(), atol=1e-4)


@torch.no_grad()
def test_plans_cost_what_pythons_cost(browser, pair):
    number, model = pair
    z = model.encode(WORLD.render(states(200, 2), 32))
    problem = LatentProblem(model, z[:100, None], z[100:], env_ids=torch.zeros(100, dtype=torch.int64))  # one noise
    ours = CEM(CEMConfig(samples=128, elites=13, iterations=10)).solve(problem, seed=3).costs_B.numpy()
    key = fold(torch.tensor(3), problem.env_ids[:1])
    normals = torch.cat([noise(problem.select(slice(0, 1)), key, torch.tensor(i), 128).flatten() for i in range(10)])
    theirs = browser.ask(
        "const m = players[arguments[0]].model, given = arguments[4];"
        "const draw = () => { let k = 0; return { normal: () => given[k++] }; };"
        "return arguments[1].map((z, i) => engine.cem(m, z, arguments[2][i], arguments[3], null, draw()).cost)",
        number,
        z[:100].tolist(),
        z[100:].tolist(),
        BUDGET,
        normals.tolist(),
    )
    assert abs(np.median(np.array(theirs) / ours) - 1) < 0.01


def test_episodes_reach_as_many_goals_as_pythons(browser, pair, tmp_path):
    import lpwm

    number, _ = pair
    start, goal = states(50, 4), WORLD.sample_goal(50, (5, "play"))
    reached = browser.ask(
        "const p = players[arguments[0]];"
        "return arguments[1].map((s, i) => [...p.episode(s, arguments[2][i], arguments[3], i, 0)].pop().reached)",
        number,
        start.tolist(),
        goal.tolist(),
        BUDGET,
    )
    agent = lpwm.load(
        shipped() / ("lpwm", "lewm")[number], solver=CEMConfig(128, 13, 10), horizon=5, receding=5, seed=1
    )
    agent.reset(goal=WORLD.render(goal, 32).permute(0, 2, 3, 1))
    state, ever = start, WORLD.success(start, goal)
    for _ in range(50):
        action = agent.act(WORLD.render(state, 32).permute(0, 2, 3, 1))
        state = WORLD.step(state, torch.as_tensor(action))
        ever = ever | WORLD.success(state, goal)
    print(f"reached in the page {sum(reached)}, in Python {int(ever.sum())} of 50")
    assert abs(sum(reached) - int(ever.sum())) <= 5


def test_a_reader_drags_plans_and_stops(browser):
    from selenium.webdriver import ActionChains

    browser.ask("document.getElementById('play').scrollIntoView({behavior: 'instant'})")
    dot = browser.find("#play-panels .dot")
    before = browser.ask("return lpwm.play.start")
    ActionChains(browser.driver).drag_and_drop_by_offset(dot, 40, 30).perform()
    after = browser.ask("return lpwm.play.start")
    assert after[0] > before[0] + 5 and after[1] > before[1] + 5
    browser.ask("document.querySelector('#play-panels .goal').focus()")
    goal = browser.ask("return lpwm.play.target")
    browser.keys("ARROW_LEFT", "ARROW_UP")
    assert browser.ask("return lpwm.play.target") == [goal[0] - 6, goal[1] - 6]
    browser.keys("ENTER")
    assert browser.find("#play-go").text == "Stop"
    browser.wait("return lpwm.play.panels.every((p) => p.done)")
    assert browser.find("#play-go").text == "Plan and go"
    shown = [e.text for e in browser.driver.find_elements("css selector", "#play-panels .status")]
    assert sum("after 50 steps." in text for text in shown) == 2
    assert [sum(words in text for text in shown) for words in ("units are on.", "64 of 64 units are not zero.")] == [
        1,
        1,
    ]
    browser.find("#play-go").click()
    browser.find("#play-go").click()  # stops
    assert browser.find("#play-go").text == "Plan and go"
    browser.find("#play-new").click()
    assert browser.ask("return lpwm.play.start") != after
    assert browser.complaints() == []
