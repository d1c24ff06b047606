"""What holds for all tests.

Ctrl-C reaches the programs that tests start, also when the tests themselves run in the background of a shell, which
starts such jobs with the signal ignored. Tests marked gpu are skipped where torch finds none.
"""

import signal
import threading

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
