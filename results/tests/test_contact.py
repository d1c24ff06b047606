"""Support instability against effector, cube and contact: synthetic codes with a known answer, then whole runs."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from lpwm.core.errors import UserError
from lpwm.core.json import to_json
from lpwm.data.episodes import from_arrays
from lpwm.interpret.results import RunInfo, WorldInfo, results_of
from lpwm.worlds.base import WorldSpec
from results.tool import contact_figures
from results.tool.__main__ import main
from results.tool.contact import (
    FACTORS,
    Contact,
    ContactConfig,
    Track,
    contact_study,
    example,
    inspect_tracks,
    partial,
    pearson,
    sweep,
    table,
    tally,
    windows,
)

K, T, D = 5, 41, 120
QUICK = ContactConfig(resamples=400)


def factors(draw, tied=False):
    """Paths whose block motions, and contact, are independent of one another; `tied`: the cube moves in contact."""
    L = (T - 1) * K + 1
    contact = np.zeros(L, dtype=bool)
    for start in draw.integers(0, L - 30, 3):
        contact[start : start + int(draw.integers(10, 30))] = True
    share = np.array([contact[a : a + K + 1].mean() for a in range(0, L - 1, K)])

    def path(speed):
        step = draw.normal(size=(T - 1, 3))
        step *= (speed / np.linalg.norm(step, axis=1))[:, None] / K
        return np.concatenate((np.zeros((1, 3)), np.cumsum(np.repeat(step, K, axis=0), axis=0)))

    effector, cube = draw.gamma(2.0, 0.05, T - 1), draw.gamma(1.0, 0.05, T - 1)
    if tied:
        cube = cube * (share > 0.5)
    return path(effector), path(cube), contact, {"effector": effector, "cube": cube, "contact": share}


def coded(draw, drive, noise):
    """A support in which as many units flip at each block as `drive` (0…1) says, and some more by chance."""
    s = draw.random(D) < 0.4
    rows = [s]
    for v in drive:
        flip = draw.random(D) < np.clip(0.3 * v, 0, 0.6) + noise * draw.random()
        s = s ^ flip
        rows.append(s)
    return np.array(rows)


def tracks(weights, noise=0.0, tied=False, episodes=24, seed=0):
    draw, out = np.random.default_rng(seed), []
    for e in range(episodes):
        effector, cube, contact, value = factors(draw, tied)
        scaled = {name: v / {"effector": 0.3, "cube": 0.2, "contact": 1.0}[name] for name, v in value.items()}
        drive = sum(w * scaled[name] for name, w in weights.items()) if weights else np.full(T - 1, 0.3)
        out.append(Track(100 + e, coded(draw, drive, noise), effector, cube, contact, K))
    return out


@pytest.mark.parametrize("noise", [0.0, 0.08])
@pytest.mark.parametrize("factor", FACTORS)
def test_codes_of_one_factor_are_found_and_the_others_are_not(factor, noise):
    result = inspect_tracks(tracks({factor: 1.0}, noise), QUICK).correlations
    for name in FACTORS:
        r = result[name]
        assert r.low <= r.estimate <= r.high
        if name == factor:
            assert r.low > 0.55 and r.partial.low > 0.55, (name, r)
            assert abs(r.shuffled.estimate) < 0.15
        else:
            assert abs(r.estimate) < 0.12 and r.low < 0.04 and r.high > -0.04, (name, r)


def test_a_mixed_code_shows_both_of_its_factors_and_not_the_third():
    result = inspect_tracks(tracks({"effector": 0.7, "contact": 0.7}, 0.03), QUICK).correlations
    assert result["effector"].low > 0.3 and result["contact"].low > 0.3
    assert abs(result["cube"].estimate) < 0.12


def test_a_code_of_nothing_shows_nothing():
    result = inspect_tracks(tracks({}, 0.1), QUICK).correlations
    assert all(abs(result[name].estimate) < 0.12 for name in FACTORS)


def test_where_cube_and_contact_go_together_the_partial_correlation_tells_them_apart():
    result = inspect_tracks(tracks({"contact": 1.0}, 0.03, tied=True), QUICK).correlations
    assert result["cube"].estimate > 0.3  # an innocent bystander
    # not 0: 1 − J bends as more units flip, and what a straight line leaves goes with the cube
    assert abs(result["cube"].partial.estimate) < 0.2 < 0.5 < result["contact"].partial.low


def test_numbers_are_those_of_scipy_and_of_residuals():
    blocks = [t.blocks() for t in tracks({"effector": 0.6, "cube": 0.5}, 0.05, episodes=9, seed=4)]
    together, label = np.concatenate(blocks), np.repeat(np.arange(9), [len(b) for b in blocks])
    sums = tally(together, label)
    assert sums.shape == (9, 15)
    for k in (1, 2, 3):
        assert pearson(k)(sums.sum(0)) == pytest.approx(stats.pearsonr(together[:, 0], together[:, k])[0])
        others = [j for j in (1, 2, 3) if j != k]
        X = np.column_stack((np.ones(len(together)), together[:, others]))
        left = [y - X @ np.linalg.lstsq(X, y, rcond=None)[0] for y in (together[:, 0], together[:, k])]
        assert partial(k, others)(sums.sum(0)) == pytest.approx(stats.pearsonr(*left)[0], abs=1e-8)
    some = np.isin(label, (2, 5, 6))  # of any set of episodes
    assert pearson(1)(sums[[2, 5, 6]].sum(0)) == pytest.approx(stats.pearsonr(together[some, 0], together[some, 1])[0])


def test_blocks_by_hand():
    on = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 1]], dtype=bool)
    effector = np.zeros((5, 3))
    effector[2:, 0], effector[4, 1] = 3.0, 4.0
    cube = np.zeros((5, 3))
    contact = np.array([0, 1, 1, 0, 0], dtype=bool)
    got = Track(0, on, effector, cube, contact, 2).blocks()
    assert got.tolist() == [[0.5, 3.0, 0.0, pytest.approx(2 / 3)], [0.5, 4.0, 0.0, pytest.approx(1 / 3)]]
    assert windows(contact, 2) == ((0.5, 1.0),)
    assert windows(np.array([1, 1, 0, 1], dtype=bool), 1) == ((0.0, 1.0), (3.0, 3.0))


def test_the_interval_is_over_episodes_not_blocks():
    """Copies of every episode add nothing: the interval must not shrink as if the blocks were independent."""
    few = tracks({"effector": 0.4}, 0.1, episodes=10, seed=8)
    sizes = []
    for group in (few, few * 4):
        r = inspect_tracks(group, QUICK).correlations["effector"]
        sizes.append(r.high - r.low)
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=0.35)


def test_a_factor_that_never_varies_has_no_correlation():
    still = [
        Track(t.number, t.active_TD, t.effector_L3, t.cube_L3, np.zeros_like(t.contact_L), K)
        for t in tracks({"effector": 1.0})
    ]
    result = inspect_tracks(still, QUICK)
    assert result.correlations["contact"] is None and result.correlations["effector"].low > 0.5
    assert result.example.correlations["contact"] is None and result.example.windows == ()


def test_the_example_is_one_with_contact_windows():
    got = tracks({"contact": 1.0})
    shown = example(got)
    chosen = next(t for t in got if t.number == shown.episode)
    assert len(shown.windows) >= 1 and len(shown.instability) == T - 1
    assert np.allclose(shown.effector, chosen.blocks()[:, 1], atol=1e-6)
    assert sorted(shown.unit_order) == list(range(D))
    json.dumps(to_json(shown), allow_nan=False)


# Runs -------------------------------------------------------------------------------------------------------

SPEC = WorldSpec(
    name="toy cube",
    options={},
    state_names=tuple("abcdefg"),
    action_names=("a",),
    action_low=(-1.0,),
    action_high=(1.0,),
    frame=8,
    episode=40,
    factors=("effector_x", "effector_y", "effector_z", "cube_x", "cube_y", "cube_z", "contact"),
)


class ToyWorld:
    """Seven state entries that are the factors themselves, drawn as a frame that holds them."""

    spec = SPEC

    def factors(self, state):
        return {name: state[..., i] for i, name in enumerate(SPEC.factors)}

    def renderer(self, size=None, device="cpu"):
        return lambda state: (state.abs() * 50).clamp(0, 255).to(torch.uint8)[:, :, None, None].expand(-1, -1, 2, 2)


class ToyModel(torch.nn.Module):
    """Each unit is on where its own direction of the effector's place says so: motion-coded."""

    def __init__(self, seed=0):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.w = torch.nn.Parameter(torch.randn(3, D, generator=g))
        self.b = torch.nn.Parameter(2 * torch.rand(D, generator=g))

    def encode(self, frames):
        place = frames[:, :3, 0, 0].float() / 50
        return torch.relu(torch.sin(6 * place @ self.w + 6 * self.b))


def run_of(tmp_path, link="reprelu", spec=SPEC, holdout=0.5, weight=0.0, episodes=24):
    draw, states, actions = np.random.default_rng(1), [], []
    for _ in range(episodes):
        effector, cube, contact, _ = factors(draw)
        states.append(np.column_stack((effector, cube, contact)).astype(np.float32))
        actions.append(np.zeros((len(effector) - 1, 1), dtype=np.float32))
    config = SimpleNamespace(
        model=SimpleNamespace(sparse=link != "identity", link=link), objective=SimpleNamespace(tj_weight=weight)
    )
    data = from_arrays(states, actions, spec=spec)
    return SimpleNamespace(
        model=ToyModel(),
        config=config,
        spec=spec,
        world=ToyWorld(),
        frameskip=K,
        image=2,
        run_hash="ab12",
        step=3,
        path=tmp_path / "toy-ab12",
        holdout=holdout,
        episodes=lambda: data,
    )


@pytest.fixture
def described(monkeypatch):
    """A toy run has no real config to digest."""

    def info(loaded):
        about = {"seed": 0, "step": 3, "sparse": True, "link": "reprelu", "latent": D}
        return RunInfo(name=loaded.path.name, hash=loaded.run_hash, method="toy", **about)

    monkeypatch.setattr("results.tool.contact.made", lambda loaded: {"run": info(loaded)})


def test_a_run_is_read_from_its_states_and_frames(tmp_path, described):
    loaded = run_of(tmp_path)
    result = contact_study(loaded, QUICK)
    assert Contact.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False))) == result
    assert result.episodes == 12 and result.blocks == 12 * (T - 1)
    r = result.correlations
    assert r["effector"].low > 0.4 and abs(r["cube"].estimate) < 0.15 and abs(r["contact"].estimate) < 0.15
    text = table([result])
    assert "toy-ab12" in text and "+0." in text and max(map(len, text.splitlines())) <= 80
    other = replace(result, tj_weight=0.1)
    assert [s.tj_weight for s in sweep([other, result])] == [0.0, 0.1]
    with pytest.raises(UserError, match="compare the runs of one world"):
        sweep([result, replace(result, world=WorldInfo("cube"))])


def test_recorded_frames_are_read_where_there_are_some(tmp_path, described):
    """Frames that hold the cube's place in the effector's channels: the code then follows the cube."""
    loaded = run_of(tmp_path)
    drawn = loaded.episodes()
    swapped = drawn.states.clone()
    swapped[:, :3] = drawn.states[:, 3:6]
    frames = ToyWorld().renderer()(swapped).permute(0, 2, 3, 1).numpy()[..., :3]
    seen = contact_study(loaded, QUICK, data=type(drawn)(**{**vars(drawn), "pixels": frames}))
    assert seen.correlations["cube"].low > 0.4 and abs(seen.correlations["effector"].estimate) < 0.15


def test_too_few_episodes_are_one_sentence(tmp_path, described):
    with pytest.raises(UserError, match="has 5 held-out episodes, too few for an interval"):
        contact_study(run_of(tmp_path, holdout=0.2), QUICK)


def test_an_episode_is_drawn_for_each_weight_and_without_a_factor_that_varies(tmp_path, described):
    result = contact_study(run_of(tmp_path), QUICK)
    still = replace(result, correlations={**result.correlations, "cube": None}, tj_weight=0.1)
    titles = [axis.get_title() for axis in contact_figures.episode([still, replace(still), result]).axes]
    assert [title.split(",")[0] for title in titles] == [f"temporal-Jaccard weight {w}" for w in ("0", "0.1")]


def test_the_command_writes_numbers_and_figures(tmp_path, described, monkeypatch, capsys):
    monkeypatch.setattr("results.tool.__main__.load", lambda path, device: run_of(path))
    out, figures = tmp_path / "a.json", tmp_path / "figures"
    assert main(["contact", str(tmp_path), "--out", str(out), "--figures", str(figures), "--device", "cpu"]) == 0
    assert "given the other two" in capsys.readouterr().out
    (reading,) = results_of(json.loads(out.read_text()))
    assert isinstance(reading, Contact) and reading.settings == ContactConfig()
    names = ["contact-episode.pdf", "contact-episode.png", "contact-raster.pdf", "contact-raster.png"]
    assert sorted(p.name for p in figures.iterdir()) == names


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spec": replace(SPEC, factors=("contact",))}, "which does not tell effector_x"),
        ({"link": "identity"}, "is dense (link identity), so it has no support"),
    ],
)
def test_runs_without_factors_or_a_support_are_one_sentence(tmp_path, monkeypatch, capsys, changes, words):
    monkeypatch.setattr("results.tool.__main__.load", lambda path, device: run_of(path, **changes))
    assert main(["contact", str(tmp_path), "--out", str(tmp_path / "a.json"), "--device", "cpu"]) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "a.json").exists()
