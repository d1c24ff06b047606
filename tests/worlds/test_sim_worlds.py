"""What every world of live simulators promises beyond `lpwm.testing.check_world`, over all of them."""

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
from tools import refused

from lpwm.core.errors import UserError
from lpwm.worlds import POLICIES, WORLDS, Live, PushT, make, make_policy, rollout, row_keys
from lpwm.worlds.pool import Snapshot, _sendable, open_live
from lpwm.worlds.pusht.physics import Simulator

NAMES = [name for name in WORLDS if hasattr(WORLDS.get(name), "open")]
N, T = 6, 12


@pytest.fixture(params=NAMES)
def world(request):
    return make(request.param)


def actions_of(world, n=N, steps=T, seed=0):
    """A heading that is kept, so that things are met: (n, steps, A)."""
    low, high = torch.tensor(world.spec.action_low), torch.tensor(world.spec.action_high)
    draw = torch.Generator().manual_seed(seed)
    heading = torch.rand((n, 1, len(low)), generator=draw)
    return low + (high - low) * (0.8 * heading + 0.2 * torch.rand((n, steps, len(low)), generator=draw))


def run(live, actions):
    return torch.stack([live.step(a) for a in actions.unbind(1)], 1)


def test_states_are_given_out_as_copies_and_closed_is_closed(world):
    live = world.open(world.sample_state(N, (0,)))
    assert isinstance(live, Live) and live.states.dtype == torch.float32
    states = run(live, actions_of(world))
    live.states.zero_()
    assert torch.equal(live.states, states[:, -1])
    live.close()
    refused("closed", live.step, actions_of(world)[:, 0])


def test_results_do_not_depend_on_the_workers(world):
    start, actions = world.sample_state(N, (5,)), actions_of(world)
    alone = world.open(start)
    first = run(alone, actions)
    rows = torch.tensor([5, 0, 2])
    alone.restart(rows, start[rows])
    half = alone.step(actions[rows, 0], rows)
    branches = alone.branches(actions[:, None, :3])
    live = world.open(start, workers=2)
    try:
        assert torch.equal(run(live, actions), first)
        live.restart(rows, start[rows])
        assert torch.equal(live.step(actions[rows, 0], rows), half)
        assert torch.equal(live.branches(actions[:, None, :3]), branches)
        assert torch.equal(live.states, alone.states)
        copy = world.open(live.snapshot(), workers=1)
        assert torch.equal(copy.step(actions[:, 1]), live.step(actions[:, 1]))
    finally:
        live.close()


def test_every_policy_is_keyed_by_row(world):
    start, goal = world.sample_state(N, (6,)), world.sample_goal(N, (6,))
    low, high = torch.tensor(world.spec.action_low), torch.tensor(world.spec.action_high)
    for name in POLICIES[world.spec.name]:
        policy, keys = make_policy(world, name), row_keys((6,), N)
        steps = torch.tensor([9, 3, 12, 12, 1, 7])
        states, actions = rollout(world, policy, start, goal, keys, steps)
        assert states.shape[:2] == (N, 13) and actions.shape[:2] == (N, 12)
        for i, own in enumerate(steps.tolist()):
            assert torch.isfinite(states[i, : own + 1]).all() and torch.isnan(states[i, own + 1 :]).all()
            assert torch.isfinite(actions[i, :own]).all() and torch.isnan(actions[i, own:]).all()
            one = slice(i, i + 1)
            alone = rollout(world, policy, start[one], goal[one], keys[one], own)
            assert torch.equal(alone[0][0], states[i, : own + 1])
            assert torch.equal(alone[1][0], actions[i, :own])
            assert (alone[1] >= low).all() and (alone[1] <= high).all()
        other = rollout(world, policy, start, goal, row_keys((7,), N), steps)[1]
        assert not torch.equal(other.nan_to_num(), actions.nan_to_num())


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


def test_any_simulator_will_do():
    live = open_live(Counter, torch.tensor([[1.0], [5.0]]))
    assert live.step(torch.tensor([[2.0], [3.0]])).tolist() == [[3.0], [8.0]]
    assert live.step(torch.tensor([[1.0]]), torch.tensor([1])).tolist() == [[9.0]]
    assert live.branches(torch.ones(2, 1, 2, 1)).flatten().tolist() == [4.0, 5.0, 10.0, 11.0]
    assert live.snapshot() == Snapshot(((3.0,), (9.0,)))
    with live, pytest.raises(ArithmeticError):
        live.step(torch.tensor([[13.0], [0.0]]))
    refused("closed", live.snapshot)
    assert open_live(Counter, torch.zeros(0, 1)).states.shape[0] == 0


def test_what_cannot_be_sent_is_refused_before_any_process():
    class Local(Counter):
        pass

    refused("define it in a module", open_live, Local, torch.zeros(2, 1), workers=2)


def test_a_mistake_in_a_worker_comes_back():
    with pytest.raises(ValueError, match="unpack") as caught:
        open_live(Simulator, np.zeros((2, 3)), workers=2)
    assert "worker process" in str(caught.value.__cause__)


def test_a_dead_worker_is_one_sentence():
    live = WORLD.open(WORLD.sample_state(4, (0,)), workers=2)
    os.kill(live._workers[1].process.pid, signal.SIGKILL)
    with pytest.raises(UserError, match="died"):
        for _ in range(3):
            live.step(torch.zeros(4, 2))
    assert not live._workers
    pickle.dumps(WORLD)


class Awkward(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_errors_that_cannot_travel_are_told_in_words():
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


def _alive(session):
    """Processes of a session that run: workers, their fork server, whatever else was started."""
    result = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(of) == session and state != "Z":
                    result.append(int(folder.name))
    return result


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks processes up in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["stepping", "busy"])
def test_no_worker_outlives_its_parent(tmp_path, how, when):
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
