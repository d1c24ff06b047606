"""Which models travel in a page."""

import json
import shutil
from dataclasses import replace

import pytest

from lpwm.core.json import from_json
from lpwm.report.play import Carried, carried, first_of_each
from lpwm.train.pretrained import shipped
from lpwm.train.weights import read_config


@pytest.fixture
def model():
    return from_json(Carried, read_config(shipped() / "lpwm").record, "config")


def test_the_packaged_models_travel_once_for_each_kind():
    folders = [shipped() / name for name in ("lpwm", "lpwm", "lewm")]
    assert list(first_of_each(folders, [True, True, False])) == [0, 2]
    assert json.dumps(carried(folders[0]), allow_nan=False)


@pytest.mark.parametrize(
    "change",
    [
        {"world": {"name": "wall"}},
        {"world": {"options": {"g": 2, "scale": 2.0, "visible": True}}},
        {"model": {"encoder": {"pixels": "imagenet"}}},
        {"model": {"encoder": {"image_size": 224}}},
        {"model": {"projector": {"norm": "batch"}}},
        {"model": {"predictor": {"rung": "deep-adaln"}}},
        {"proprio_dim": 2},
    ],
)
def test_what_the_script_does_not_compute_stays_out(model, change):
    def changed(value, fields):
        if not isinstance(fields, dict) or not hasattr(value, "__dataclass_fields__"):
            return fields
        return replace(value, **{name: changed(getattr(value, name), new) for name, new in fields.items()})

    assert model.runs and not changed(model, change).runs


def test_a_damaged_or_missing_model_leaves_the_section_out(tmp_path):
    folder = shutil.copytree(shipped() / "lpwm", tmp_path / "run")
    (folder / "config.json").write_text("{")
    assert carried(folder) is None and carried(tmp_path) is None
