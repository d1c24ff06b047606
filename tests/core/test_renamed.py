"""Names of 0.1.0: what files may call by its old name, options may too."""

from lpwm.core.config import RENAMED, RENAMED_OPTIONS
from lpwm.recipes import recipe
from lpwm.train.run_config import override


def test_every_renamed_field_is_a_renamed_option():
    fields = {pair for name, table in RENAMED.items() if name.endswith("Config") for pair in table.items()}
    options = {(old.rpartition(".")[2], new.rpartition(".")[2]) for old, new in RENAMED_OPTIONS.items()}
    assert fields == options


def test_overrides_take_the_old_name():
    base = recipe("tiny/lpwm")
    assert override(base, {"model.encoder.image": 32}) == override(base, {"model.encoder.image_size": 32}) != base
