"""Worker processes of simulators: mistakes come back as they are, and nobody outlives the parent."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from lpwm.core.errors import UserError
from lpwm.worlds import PushT
from lpwm.worlds.pool import Snapshot, _sendable, open_live

WORLD = PushT()


class Counter:
    """A simulator that adds what it is told, and breaks on 13."""

    def __init__(self, start):
        self.state = list(start)

    def step(self, action):
        if action[0] == 13:
            raise ArithmeticError("thirteen")
        self.state = [self.state[0] + action[0]]

    def snapshot(self):
        return tuple(self.state)

    def branch(self, actions):
        return np.cumsum(actions, axis=1).astype(np.float32) + self.state[0]


def test_any_simulator_will_do() -> None:
    live = open_live(Counter, torch.tensor([[1.0], [5.0]]))
    assert live.step(torch.tensor([[2.0], [3.0]])).tolist() == [[3.0], [8.0]]
    assert live.step(torch.tensor([[1.0]]), torch.tensor([1])).tolist() == [[9.0]]
    assert live.branches(torch.ones(2, 1, 2, 1)).flatten().tolist() == [4.0, 5.0, 10.0, 11.0]
    assert live.snapshot() == Snapshot(((3.0,), (9.0,)))
    with live, pytest.raises(ArithmeticError):
        live.step(torch.tensor([[13.0], [0.0]]))
    with pytest.raises(UserError, match="closed"):  # one of them has moved and another not
        live.snapshot()
    assert open_live(Counter, torch.zeros(0, 1)).states.shape[0] == 0


def test_what_cannot_be_sent_is_refused_before_any_process() -> None:
    class Local(Counter):
        pass

    with pytest.raises(UserError, match="define it in a module"):
        open_live(Local, torch.zeros(2, 1), workers=2)


def test_a_mistake_in_a_worker_comes_back() -> None:
    with pytest.raises(ValueError, match="unpack") as caught:
        open_live(type(WORLD.open(WORLD.sample_state(1, (0,)))._bank.simulators[0]), np.zeros((2, 3)), workers=2)
    assert "worker process" in str(caught.value.__cause__)


def test_a_dead_worker_is_one_sentence() -> None:
    live = WORLD.open(WORLD.sample_state(4, (0,)), workers=2)
    os.kill(live._workers[1].process.pid, signal.SIGKILL)
    with pytest.raises(UserError, match="died"):
        for _ in range(3):
            live.step(torch.zeros(4, 2))
    assert not live._workers
    pickle.dumps(WORLD)


class Awkward(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_errors_that_cannot_travel_are_told_in_words() -> None:
    assert isinstance(_sendable(ValueError("x")), ValueError)
    told = _sendable(Awkward(1, 2))
    assert type(told) is RuntimeError and "1 and 2" in str(told)


SCRIPT = """
    import os, sys, time
    import torch
    from lpwm.worlds import PushT

    if __name__ == "__main__":
        world = PushT()
        live = world.open(world.sample_state(8, (0,)), workers=2)
        print(*(w.process.pid for w in live._workers), flush=True)
        while True:
            if sys.argv[1] == "busy":
                live.branches(torch.zeros(8, 400, 50, 2))
            live.step(torch.zeros(8, 2))
"""


def _alive(session: int) -> list[int]:
    """Processes of a session that run: workers, their fork server, whatever was started beside them."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(of) == session and state != "Z":
                    found.append(int(folder.name))
    return found


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks processes up in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["stepping", "busy"])
def test_no_worker_outlives_its_parent(tmp_path: Path, how: signal.Signals, when: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(SCRIPT))
    parent = subprocess.Popen(
        [sys.executable, script, when],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    time.sleep(0.5)
    assert len(workers) == 2 and {*workers, parent.pid} <= set(_alive(parent.pid))
    if how == signal.SIGINT:
        os.killpg(parent.pid, how)  # as a terminal does: everybody hears it
    else:
        parent.send_signal(how)
    error = parent.communicate(timeout=60)[1]
    assert parent.returncode != 0
    for _ in range(100):
        if not _alive(parent.pid):
            break
        time.sleep(0.1)
    assert not _alive(parent.pid)
    if how == signal.SIGINT:
        assert error.count("KeyboardInterrupt") == 1  # the parent's own and nobody else's
