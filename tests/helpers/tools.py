"""What several test files need."""

import importlib.util
import os
from pathlib import Path

import pytest

from lpwm.core.errors import UserError

ROOT = Path(__file__).parents[2]


def load(path):
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def refused(words, call, *args, **options):
    """The call is refused in one sentence that holds these words, a pattern."""
    with pytest.raises(UserError, match=words) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
