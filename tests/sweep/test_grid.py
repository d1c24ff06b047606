"""Grids: what a file means, and that a bad one is refused with its line before anything starts."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools import refused

from lpwm.cli.sweep import check_fits, cost_of
from lpwm.core.config import to_dict
from lpwm.core.errors import UserError
from lpwm.core.json import dump_json, from_json
from lpwm.recipes import recipe
from lpwm.sweep import expand, read_grid
from lpwm.sweep.engines import EngineConfig
from lpwm.sweep.grid import Cell, parse_grid

GOOD = """recipe = "tiny/{method}"
seeds = [0, 1]

[axes]
method = ["lpwm", "lewm"]
"model.latent" = [16, 32]

[fixed]
"train.steps" = 20

[eval.quick]
preset = "quick"
episodes = 4
"""


def cells_of(text, **options):
    return expand(parse_grid(text, "g", "g.toml", **options), recipe)


def refusal(text, **options):
    with pytest.raises(UserError) as caught:
        cells_of(text, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_a_grid_is_the_product_of_its_axes():
    cells = cells_of(GOOD)
    assert len(cells) == 8 and len({c.hash for c in cells}) == 8
    assert {c.name for c in cells} == {"tiny/lpwm", "tiny/lewm"}
    for cell in cells:
        assert cell.config.model.latent == cell.where["model.latent"]
        assert (cell.config.model.link == "identity") == (cell.where["method"] == "lewm")
        assert cell.config.train.steps == 20 and cell.evals["quick"].episodes == 4
        assert cell.evals["quick"].planner_seeds == 1  # the preset's
        again = from_json(Cell, json.loads(dump_json(cell)))
        assert to_dict(again.config) == to_dict(cell.config) and again.hash == cell.hash


def test_bare_dotted_keys_json_and_linked_axes():
    bare = GOOD.replace('"model.latent"', "model.latent").replace('"train.steps"', "train.steps")
    assert [c.hash for c in cells_of(bare)] == [c.hash for c in cells_of(GOOD)]
    data = {
        "recipe": "tiny/lpwm",
        "axes": {"objective.lam, optim.lr": [[0.5, 1e-4], [0.1, 5e-4]]},
        "eval": {"preset": "quick"},
    }
    cells = cells_of(json.dumps(data), is_json=True)
    assert [(c.config.objective.lam, c.config.optim.lr) for c in cells] == [(0.5, 1e-4), (0.1, 5e-4)]
    assert list(cells[0].evals) == ["eval"]


def test_a_changed_config_is_another_cell():
    hashes = {c.hash for c in cells_of(GOOD)}
    for old, new in (("= 20", "= 21"), ("episodes = 4", "episodes = 5"), ('preset = "quick"', 'preset = "paper"')):
        assert not hashes & {c.hash for c in cells_of(GOOD.replace(old, new))}


# What is wrong, the line it is on, and words of the sentence.
BAD = [
    ('"model.latent" = [16, 32]', '"model.latnt" = [16, 32]', 6, "model.latnt"),
    ('"model.latent" = [16, 32]', '"modle.latent" = [16, 32]', 6, "modle.latent"),
    ('"model.latent" = [16, 32]', '"model.latent" = []', 6, "empty"),
    ('"model.latent" = [16, 32]', '"model.latent" = [16, 16]', 6, "same hash"),
    ('"model.latent" = [16, 32]', '"model.latent" = [16, 0]', 6, "model.latent = 0"),
    ('"model.latent" = [16, 32]', '"model.latent" = [16, "wide"]', 6, "must be of type int"),
    ('"model.latent" = [16, 32]', '"model.latent" = 16', 6, "must be a list"),
    ('"model.latent" = [16, 32]', '"objective.lam, optim.lr" = [[1.0, 1e-3], [2.0]]', 6, "2 fields together"),
    ('"model.latent" = [16, 32]', '"train.seed" = [1, 2]', 6, "seeds ="),
    ('method = ["lpwm", "lewm"]', 'metod = ["lpwm", "lewm"]', 5, "metod"),
    ('method = ["lpwm", "lewm"]', 'method = ["lpwm", "nosuch"]', 1, "tiny/nosuch"),
    ('"train.steps" = 20', '"train.stesp" = 20', 9, "train.stesp"),
    ('"train.steps" = 20', '"model.latent" = 64', 9, "also an axis"),
    ('"train.steps" = 20', '"train.steps" = 0', 9, "at least 1"),
    ("episodes = 4", "epsiodes = 4", 13, "epsiodes"),
    ('preset = "quick"', 'preset = "quik"', 12, "quik"),
    ("seeds = [0, 1]", "seeds = [0, 0]", 2, "seeds"),
    ("seeds = [0, 1]", "seds = [0, 1]", 2, "seds"),
    ("seeds = [0, 1]", "seeds = [0, 1]\nselect_seeds = [0, 1]", 3, "none is left"),
    ("seeds = [0, 1]", "seeds = [0, 1]\nselect_seeds = [7]", 3, "seed 7"),
    ('recipe = "tiny/{method}"', 'recipe = "tiny/{methode}"', 5, "method"),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), BAD)
def test_bad_grids_are_refused_with_their_line(old, new, line, words):
    assert old in GOOD
    sentence = refusal(GOOD.replace(old, new))
    assert sentence.startswith(f"g.toml, line {line}: "), sentence
    assert words in sentence


def test_two_recipes_that_make_the_same_run_are_refused():
    """Not the same value twice, but the same config: 1 and 1.0 as λ, or a field set to what the recipe has."""
    sentence = refusal(
        'recipe = "tiny/lpwm"\n[axes]\n"objective.lam" = [1.0, 2.0]\n"optim.lr, data.holdout" = '
        "[[1e-3, 0.1], [0.001, 0.10]]\n"
    )
    assert "line 4" in sentence and "same hash" in sentence
    twice = 'recipe = "{r}"\n[axes]\nr = ["a", "b"]\n'
    refused(r"line 3: .*same run", expand, parse_grid(twice, "g", "g.toml"), lambda name: recipe("tiny/lpwm"))


def test_fields_that_only_clash_together_are_told_together():
    text = 'recipe = "tiny/lewm"\n[axes]\n"objective.tj_weight" = [0.0, 0.1]\n'
    assert "line 3" in refusal(text) and "non-negative link" in refusal(text)


def test_broken_files_and_unknown_names(tmp_path):
    assert "not valid TOML" in refusal("recipe = ")
    assert "line 1" in refusal("recipe = \nseeds = [0]\n")
    assert "is not JSON" in refusal("{", is_json=True)
    refused("did you mean 'cpu-mini'", read_grid, "cpu-mni")
    refused("no file", read_grid, tmp_path / "none.toml")
    (tmp_path / "mine.toml").write_text(GOOD)
    assert read_grid(tmp_path / "mine.toml").name == "mine"
    data = {"recipe": "tiny/lpwm", "axes": {"model.latent": [16], "model.link": []}}
    assert "line 7" in refusal(json.dumps(data, indent=1), is_json=True)


def test_a_width_that_does_not_fit_is_refused_with_its_line():
    grid = parse_grid(GOOD.replace("[16, 32]", "[16, 40000]"), "g", "g.toml")
    cells = expand(grid, recipe)
    need = max(cost_of(c)["cpu_gib"] for c in cells)
    check_fits(grid, cells, EngineConfig(memory_gib=1.01 * need, device="cpu"))
    with pytest.raises(UserError, match=r"g.toml, line 6: .*latent 40000.*GiB"):
        check_fits(grid, cells, EngineConfig(memory_gib=0.99 * need, device="cpu"))


@given(
    widths=st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True),
    lams=st.lists(st.floats(0.01, 10, allow_nan=False), min_size=1, max_size=3, unique=True),
    seeds=st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
)
@settings(max_examples=10)
def test_every_point_once(widths, lams, seeds):
    text = f'recipe = "tiny/lpwm"\nseeds = {seeds}\n[axes]\n"model.latent" = {widths}\n"objective.lam" = {lams}\n'
    points = [(c.config.model.latent, c.config.objective.lam, c.config.train.seed) for c in cells_of(text)]
    assert points == [(w, v, s) for w in widths for v in lams for s in seeds]
