"""What holds for all tests.

Ctrl-C reaches the programs that tests start, also when the tests themselves run in the background of a shell, which
starts such jobs with the signal ignored. Tests marked gpu are skipped where torch finds none.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch

if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs CUDA"))


@pytest.fixture
def interpreted() -> Callable[..., None]:
    """Runs a script in Triton's interpreter, in a process of its own: it is right if it ends by saying "right"."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")

    def run(script: str, *arguments: str) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.stdout.strip().endswith("right"), done.stderr[-2000:]

    return run
