"""Collecting: what lands in the file, who made it does not matter, and nothing interrupts it for good."""

import json
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass

import h5py
import numpy as np
import pytest
import torch
from tools import refused

from lpwm import worlds
from lpwm.core.errors import UserError
from lpwm.core.lock import Busy, one_writer
from lpwm.data import collect, read
from lpwm.data.collecting import SHARD
from lpwm.worlds import Piecewise

WORLD = worlds.make("piecewise", g=3)


def test_the_file_holds_what_the_world_does(tmp_path):
    collect(WORLD, tmp_path / "a.h5", episodes=7, steps=9, seed=3, pixels=True)
    with h5py.File(tmp_path / "a.h5") as f:
        assert f["ep_len"][:].tolist() == [10] * 7 and f["ep_offset"][:].tolist() == list(range(0, 70, 10))
        state, action, pixels = (torch.from_numpy(f[n][:]) for n in ("state", "action", "pixels"))
        np.testing.assert_array_equal(f["proprio"][:], state)
        spec = json.loads(f.attrs["world"])
        assert spec["name"] == "piecewise" and spec["options"]["g"] == 3
        assert f.attrs["seed"] == 3 and f.attrs["policy"] == b"random" and 0 < f.attrs["coverage"] < 0.3
    for row in range(70):
        if row % 10 == 9:
            assert torch.isnan(action[row]).all()
        else:
            expected = WORLD.step(state[row : row + 1], action[row : row + 1])[0]
            assert torch.equal(expected, state[row + 1])
        assert torch.equal(pixels[row].permute(2, 0, 1), WORLD.render(state[row : row + 1])[0])
    starts = state.view(7, 10, 2)[:, 0]
    assert len({tuple(s.tolist()) for s in starts}) == 7
    assert action[:9].abs().max() <= 1 and action[:9].std() > 0.3


def test_contents_do_not_depend_on_the_workers(tmp_path, monkeypatch):
    monkeypatch.setattr("lpwm.data.collecting.SHARD", 8)  # here alone: workers have it from the plan
    kw = dict(episodes=2 * 8 + 5, steps=3, pixels=True, size=8)
    alone = collect(WORLD, tmp_path / "a.h5", workers=1, **kw)
    assert collect(WORLD, tmp_path / "b.h5", workers=3, **kw) == alone
    assert collect(WORLD, tmp_path / "c.h5", workers=None, **kw) == alone
    assert collect(WORLD, tmp_path / "d.h5", seed=1, **kw) != alone
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "b.h5", "c.h5", "d.h5"]


def test_episode_i_is_a_function_of_the_seed_and_i(tmp_path):
    collect(WORLD, tmp_path / "few.h5", episodes=10, steps=4)
    collect(WORLD, tmp_path / "many.h5", episodes=SHARD + 10, steps=4)
    few, many = read(tmp_path / "few.h5"), read(tmp_path / "many.h5")
    assert torch.equal(few.states, many.states[:50])
    assert len(many.states[many.offsets].unique(dim=0)) == SHARD + 10  # no shard begins like another
    firsts = many.actions[many.offsets]
    assert len(firsts.unique(dim=0)) == SHARD + 10


KILLED = """
    import os, signal, sys
    from importlib import import_module
    from lpwm import worlds
    c = import_module("lpwm.data.collecting")
    die = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
    where, out, workers, name = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    if where == "shard":
        really, seen = c.hash_episodes, []
        def hash_episodes(*args):
            seen.append(0)
            return die() if len(seen) > 1.3 * c.SHARD else really(*args)
        c.hash_episodes = hash_episodes
    if where == "merge":
        really = c.Coverage.add
        c.Coverage.add = lambda self, s, n=[]: die() if n else (n.append(0), really(self, s))
    progress = (lambda done: die() if done >= c.SHARD else None) if where == "between" else None
    if __name__ == "__main__":
        c.collect(worlds.make(name), out, episodes=3 * c.SHARD, steps=3, pixels=True, size=8, workers=workers,
                  progress=progress)
"""


@pytest.mark.parametrize(
    ("where", "workers", "name"),
    [
        ("shard", 1, "piecewise"),
        ("merge", 1, "piecewise"),
        ("between", 2, "piecewise"),
        pytest.param("between", 2, "pusht", marks=pytest.mark.soak),
    ],
)
def test_killed_and_resumed_gives_the_same_file(tmp_path, where, workers, name):
    script, out = tmp_path / "killed.py", tmp_path / "a.h5"
    script.write_text(textwrap.dedent(KILLED))
    ended = subprocess.run([sys.executable, script, where, out, str(workers), name], capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not out.exists() and list((tmp_path / "a.h5.partial").glob("shard-*.h5"))
    made, kw = [], dict(episodes=3 * SHARD, steps=3, pixels=True, size=8)
    resumed = collect(worlds.make(name), out, progress=made.append, **kw)
    assert made[0] >= SHARD  # what was stored was not made again
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "killed.py"]
    assert resumed == collect(worlds.make(name), tmp_path / "whole.h5", **kw)


def _interrupt(out, **kw):
    def stop(done):
        if done >= SHARD:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(WORLD, out, episodes=2 * SHARD, steps=3, progress=stop, **kw)


def test_interrupted_by_hand(tmp_path):
    whole = collect(WORLD, tmp_path / "whole.h5", episodes=2 * SHARD, steps=3)
    _interrupt(tmp_path / "a.h5")
    assert not (tmp_path / "a.h5").exists()
    (shard,) = (tmp_path / "a.h5.partial").glob("shard-000000-*.h5")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1  # a single bit: the shard is made again
    shard.write_bytes(content)
    assert collect(WORLD, tmp_path / "a.h5", episodes=2 * SHARD, steps=3) == whole


def test_an_unfinished_collection_of_another_kind_is_not_mixed_in(tmp_path):
    _interrupt(tmp_path / "a.h5")
    for change in (dict(seed=1), dict(steps=4), dict(pixels=True, size=8)):
        kw = dict(episodes=2 * SHARD, steps=3) | change
        with pytest.raises(UserError, match=f"differs in {next(iter(change))}"):
            collect(WORLD, tmp_path / "a.h5", **kw)
    refused("differs in world", collect, worlds.make("piecewise"), tmp_path / "a.h5", episodes=2 * SHARD, steps=3)
    fresh = collect(WORLD, tmp_path / "b.h5", episodes=2 * SHARD, steps=3, seed=1)
    assert collect(WORLD, tmp_path / "a.h5", episodes=2 * SHARD, steps=3, seed=1, overwrite=True) == fresh


def test_two_at_once_are_kept_apart(tmp_path):
    with one_writer(tmp_path / "a.h5.partial", "another"), pytest.raises(Busy, match=r"in use by another \(process"):
        collect(WORLD, tmp_path / "a.h5", episodes=2, steps=3)


FULL = """
    import resource, sys
    from lpwm import cli
    if __name__ == "__main__":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), -1))
        sys.exit(cli.main(["collect", "piecewise", "--episodes", "600", "--steps", "100", "--out", *sys.argv[2:]]))
"""


@pytest.mark.parametrize(("limit", "workers", "kept"), [(200_000, 1, 0), (900_000, 2, 3)])
def test_a_disk_that_fills_up(tmp_path, limit, workers, kept):
    """A shard is 417,000 bytes and the whole 2,700,000: the first limit stops a shard, the second the merge."""
    script, out = tmp_path / "full.py", tmp_path / "a.h5"
    script.write_text(textwrap.dedent(FULL))
    command = [sys.executable, script, str(limit), out, "--workers", str(workers)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("lpwm: cannot write") and ended.stderr.count("\n") == 1
    assert "free some space" in ended.stderr
    assert not out.exists()
    left = sorted(p.name for p in (tmp_path / "a.h5.partial").iterdir())
    assert len([name for name in left if name.endswith(".h5")]) == kept
    assert not [name for name in left if name.endswith(".tmp")]
    made = []
    digest = collect(worlds.make("piecewise"), out, episodes=600, steps=100, progress=made.append)
    assert made[0] == (600 if kept else 0)
    assert collect(worlds.make("piecewise"), tmp_path / "b.h5", episodes=600, steps=100) == digest


def test_a_merge_that_cannot_fit_is_not_begun(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 13_000})  # states and actions alone would fit
    monkeypatch.setattr("lpwm.core.files.shutil.disk_usage", lambda folder: usage)
    refused(r"needs 0\.0 MB and the disk has 0\.0 MB free", collect, WORLD, tmp_path / "a.h5", episodes=200, steps=3)
    assert list((tmp_path / "a.h5.partial").glob("shard-000000-*.h5"))
    monkeypatch.undo()
    collect(WORLD, tmp_path / "a.h5", episodes=200, steps=3)


def test_what_can_never_fit_is_not_begun(tmp_path):
    refused("needs .* MB and the disk has", collect, WORLD, tmp_path / "a.h5", episodes=10**15)
    refused("of memory that are free", collect, WORLD, tmp_path / "a.h5", episodes=1, pixels=True, size=10**6)
    assert not list(tmp_path.iterdir())


STUCK = """
    import sys, threading
    from lpwm.data import collect
    from lpwm.data.collecting import SHARD
    from lpwm.worlds import Piecewise

    class Stuck(Piecewise):
        def sample_state(self, n, key, start=0):
            if start:
                threading.Event().wait()  # the second shard never ends
            return super().sample_state(n, key, start)

    def stop(done):
        if done:
            raise KeyboardInterrupt

    if __name__ == "__main__":
        try:
            collect(Stuck(), sys.argv[1], episodes=2 * SHARD, steps=3, workers=2, progress=stop)
        except KeyboardInterrupt:
            print("stopped")
"""


def test_ctrl_c_does_not_wait_for_workers(tmp_path):
    script = tmp_path / "stuck.py"
    script.write_text(textwrap.dedent(STUCK))
    done = subprocess.run([sys.executable, script, tmp_path / "a.h5"], capture_output=True, text=True, timeout=120)
    assert done.stdout == "stopped\n" and not done.stderr
    assert list((tmp_path / "a.h5.partial").glob("shard-000000-*.h5"))


@dataclass(frozen=True)
class Exploding(Piecewise):
    def step(self, state, action):
        return super().step(state, action) / 0


def test_a_world_that_explodes_is_not_stored(tmp_path):
    refused("not finite", collect, Exploding(), tmp_path / "a.h5", episodes=2, steps=3)
    assert not (tmp_path / "a.h5").exists()


def test_a_world_that_workers_cannot_import(tmp_path):
    @dataclass(frozen=True)
    class Local(Piecewise):
        pass

    with pytest.raises(UserError, match="cannot be sent to worker processes"):
        collect(Local(), tmp_path / "a.h5", episodes=3 * SHARD, steps=1, workers=2)
    collect(Local(), tmp_path / "a.h5", episodes=3 * SHARD, steps=1, workers=1)
