"""The recipes are the method's table: every PushT cell, at the authors' best λ and η."""

import pytest

from lpwm.api import configure
from lpwm.cli.train import parse
from lpwm.core.errors import UserError
from lpwm.recipes import RECIPES, recipe, recipes
from lpwm.train import DataConfig, prepare_data

# method §4, as it is written there: what holds at every D, and where another cell is best
LPWM = """
deep-adaln 0.5 1e-4
shallow-adaln 0.1 5e-4 ; 2048 1.0 5e-4 ; 4096 1.0 5e-4
mlp-ltv 1.0 5e-4
mlp-lti 1.0 5e-4 ; 384 0.1 5e-4
lti 0.1 5e-5 ; 2048 0.1 5e-4 ; 4096 0.1 5e-4
lti1 1.0 5e-4
"""
LEWM = """
deep-adaln 0.5 1e-4
shallow-adaln 0.1 5e-4 ; 2048 1.0 5e-4
mlp-ltv 0.1 5e-4 ; 768 10 5e-5 ; 2048 0.1 5e-5 ; 4096 0.1 5e-5
mlp-lti 0.01 5e-5 ; 4096 0.1 5e-4
lti 0.1 5e-4
lti1 0.1 5e-4
"""


def cells(text):
    for line in text.strip().splitlines():
        usual, *others = (part.split() for part in line.split(";"))
        rung, lam, lr = usual
        best = {int(width): (float(a), float(b)) for width, a, b in others}
        for width in (384, 768, 1536, 2048, 4096):
            yield rung, width, best.get(width, (float(lam), float(lr)))


@pytest.mark.parametrize(("methods", "text"), [(("lpwm", "relu"), LPWM), (("lewm",), LEWM)])
def test_pusht_cells_are_the_authors(methods, text):
    for rung, width, (lam, lr) in cells(text):
        for method in methods:
            c = recipe(f"pusht/{rung}/{method}", latent=width)
            assert (c.objective.lam, c.optim.lr, c.model.latent) == (lam, lr, width)
            assert (c.model.predictor.rung, c.model.predictor.history) == (rung, 3)
            assert c.model.link == {"lpwm": "reprelu", "relu": "relu", "lewm": "identity"}[method]
            assert (c.objective.rdmreg.slices, c.objective.rdmreg.p) == (8192, 2.0 if method == "lewm" else 1.0)
            assert (c.train.batch, c.model.encoder.image_size, c.data.episodes, c.data.steps) == (64, 224, 18_500, 0)
            assert c.optim.mup and c.optim.schedule == "constant"


def test_a_width_is_an_option():
    """On PushT it brings the authors' cell, from Python and on the command line; elsewhere the width alone changes."""
    for width in (768, 4096):
        cell = recipe(f"pusht-{width}/mlp-lti/lpwm")
        assert recipe("pusht/mlp-lti/lpwm", latent=width) == cell
        assert configure("pusht/mlp-lti/lpwm", overrides={"model.latent": width}) == cell
        for words in (["--model.latent", str(width)], [f"--model.latent={width}"]):
            assert parse(["pusht/mlp-lti/lpwm", *words])[1].run == cell
    own = parse(["pusht/mlp-lti/lpwm", "--model.latent", "768", "--objective.lam", "0.3"])[1].run
    assert (own.objective.lam, own.model.latent) == (0.3, 768)
    assert recipe("pusht/lti/lpwm", latent=500).objective == recipe("pusht/lti/lpwm").objective
    assert recipe("wall/lti/lpwm", latent=768).model.latent == 768


def test_the_list_is_short_and_patterns_find_the_rest():
    assert len(recipes()) <= 30 and set(recipes()) < set(RECIPES) == set(recipes("*"))
    worlds = {recipe(name).data.world for name in RECIPES}
    assert {recipe(name).data.world for name in recipes()} == worlds
    assert "pusht-768/lti/relu" in recipes("pusht-768/*")
    with pytest.raises(UserError, match="no recipe matches 'nothing\\*'"):
        recipes("nothing*")


def test_vicreg_is_run_on_three_rungs_and_reduced_recipes_are_smaller():
    with_vicreg = {n.split("/")[1] for n in RECIPES if n.startswith("pusht") and n.endswith("vicreg")}
    assert with_vicreg == {"deep-adaln", "mlp-ltv", "mlp-lti"}
    for name in [n for n in RECIPES if n.startswith("pusht-small/")]:
        small, full = recipe(name), recipe(name.replace("-small", ""))
        assert small.model.encoder.image_size < 224 and small.train.steps < full.train.steps
        assert small.data == full.data and small.model.latent == full.model.latent == 384
        assert (small.objective.lam, small.optim.lr) == (1.0, 5e-4)  # one cell for all methods: equal terms


def test_lengths_may_be_the_policys_own(tmp_path):
    pytest.importorskip("pymunk")
    data = prepare_data(DataConfig(world="pusht", episodes=6, steps=0), tmp_path)
    lengths = data.lengths - 1
    assert len(set(lengths.tolist())) > 1 and lengths.min() >= 100 and lengths.max() <= 300
