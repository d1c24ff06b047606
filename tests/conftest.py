"""What holds for all tests.

Ctrl-C reaches the programs that tests start, also when the tests themselves run in the background of a shell, which
starts such jobs with the signal ignored. Tests marked gpu are skipped where torch finds none.

Every test begins with random numbers of its own, the same in every run, so that what fails once fails again. With
LPWM_TEST_SEED=n they are others, and so are hypothesis' examples: a test that fails for some n has a bound that luck
can break.
"""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import threading
import zlib

import hypothesis
import numpy as np
import pytest
import torch

from lpwm.model.predictors import PREDICTORS, TITLES
from lpwm.worlds import WORLDS

SEED = os.environ.get("LPWM_TEST_SEED", "")
hypothesis.settings.register_profile("lpwm", deadline=None, derandomize=not SEED)
hypothesis.settings.load_profile("lpwm")

if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def begin(name):
    """The generators that torch, numpy and Python share."""
    seed = zlib.crc32(f"{SEED} {name}".encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if torch.get_num_threads() != THREADS:  # a command in this process chose others: two workers would spin
        torch.set_num_threads(THREADS)


THREADS = torch.get_num_threads()
begin("collection")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    begin(item.nodeid)


# Files of few and long tests. Two workers take whole files in this order, so that neither ends with a long one alone.
FIRST = (
    *("test_docs.py", "test_v010.py", "test_outside.py", "test_demo.py", "test_docs_interpret.py", "test_run.py"),
    *("test_engines.py", "test_sweep_cli.py", "test_gym_world.py", "test_sim_worlds.py", "test_cube.py"),
    *("test_fuzz.py", "test_extremes.py", "test_collecting.py", "test_streamed.py", "test_interpret_verb.py"),
)


def pytest_configure(config):
    config.option.loadscopereorder = False  # pytest-xdist would begin with the files of most tests


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs CUDA"))


@pytest.fixture(autouse=True)
def registered():
    """What a test registers is gone after it."""
    registries = (WORLDS._entries, PREDICTORS._entries, TITLES)
    before = [dict(entries) for entries in registries]
    yield
    for entries, kept in zip(registries, before, strict=True):
        for name in set(entries) - set(kept):
            del entries[name]


@pytest.fixture
def interpreted():
    """Runs a script in Triton's interpreter, in a process of its own: it is right if it ends by saying "right"."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")

    # NumPy 2.4 refuses the loops to a number that a kernel is given of Triton 3.6's interpreter, which also takes
    # annotations by the name that they have in the source.
    patched = """
from triton.runtime import interpreter, jit

plain, named = interpreter._patch_lang_tensor, jit._normalize_ty
jit._normalize_ty = lambda kind: "constexpr" if kind == "C" else named(kind)

def with_index(tensor, scope):
    plain(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

interpreter._patch_lang_tensor = with_index
"""

    def run(script):
        environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [sys.executable, "-c", patched + script], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.stdout.strip().endswith("right"), done.stderr[-2000:]

    return run
