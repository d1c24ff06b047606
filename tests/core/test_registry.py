"""Names that are imported late, and registries that others add to."""

import importlib
import subprocess
import sys

import pytest

from lpwm.core.errors import UserError
from lpwm.core.registry import Registry


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "a_house").mkdir()
    (tmp_path / "a_house" / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from lpwm.core.lazy import lazy\n"
        "from a_house.wall import Wall\n"
        "if TYPE_CHECKING:\n    from a_house.door import Door, Door as opening\n"
        "__getattr__, __dir__, __all__ = lazy(__name__, ['door'])\n"
    )
    (tmp_path / "a_house" / "door.py").write_text("class Door: ...\n")
    (tmp_path / "a_house" / "wall.py").write_text("class Wall: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("a_house")
    for name in ("a_house", "a_house.door", "a_house.wall"):
        sys.modules.pop(name, None)


def test_names_are_found_in_their_modules_and_kept(package):
    assert package.__all__ == ["Door", "Wall", "door", "opening"] and "opening" in dir(package)
    assert "a_house.door" not in sys.modules and "Door" not in vars(package)
    assert package.Door is package.opening is package.door.Door
    assert vars(package)["Door"] is package.Door
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


def test_an_entry_is_an_object_or_a_place_that_is_imported_late():
    registry = Registry("predictor", {"late": "lpwm.core.errors:UserError"})
    registry.register("gru", 3)
    assert registry.names() == ("late", "gru") == tuple(registry) and len(registry) == 2 and "gru" in registry
    assert registry.get("late") is UserError and registry.get("gru") == 3


def test_wrong_names_are_one_sentence():
    registry = Registry("predictor", {"gru": 1})
    with pytest.raises(UserError, match=r"unknown predictor 'gro': did you mean 'gru'\?"):
        registry.get("gro")
    with pytest.raises(UserError, match="did you mean 'gru'"):
        registry.check("gro")
    with pytest.raises(UserError, match="'gru' is already registered"):
        registry.register("gru", 2)
    registry.register("gru", 1)  # the same again: a plugin that is imported twice
    with pytest.raises(UserError, match="needs a name"):
        registry.register("", 2)


def test_configs_and_registries_do_not_import_torch():
    code = """
import sys
import lpwm.core.lazy, lpwm.core.registry
import lpwm.losses, lpwm.model, lpwm.optim, lpwm.train
lpwm.model.ModelConfig(), lpwm.losses.ObjectiveConfig(), lpwm.optim.OptimConfig(), lpwm.train.TrainConfig()
sys.exit(str({"torch", "scipy", "numpy"} & set(sys.modules)) if "torch" in sys.modules else 0)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
