"""Compiled code is kept across processes, and what is wrong with the folder stops nothing."""

import errno
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from lpwm.core import compiled as room
from lpwm.model.link import reprelu


def loss(x, w):
    """What keeps torch from keeping a graph by itself: a gradient of our own, autocast switched off inside."""
    with torch.autocast("cpu", enabled=False):
        return reprelu(x.float() @ w).square().sum()


@pytest.fixture
def process(monkeypatch, tmp_path):
    """A new process each time it is called, as far as compiling is concerned."""
    from torch._inductor.utils import clear_caches

    monkeypatch.setenv("LPWM_CACHE", str(tmp_path / "cache"))
    before = {name: os.environ.get(name) for name in room.VARIABLES}

    def start():
        torch._dynamo.reset()
        counters.clear()
        clear_caches()
        monkeypatch.setitem(room._state, "folder", None)
        for name in room.VARIABLES:
            os.environ.pop(name, None)

    start()
    yield start
    start()
    os.environ.update({name: value for name, value in before.items() if value is not None})


def gradient():
    x, w = torch.ones(3, 4), torch.full((4, 5), 0.5, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), torch._inductor.config.patch(cpp_cache_precompile_headers=False):
        room.compiled(loss)(x, w).backward()
    return w.grad


@pytest.mark.soak
def test_the_next_process_traces_and_compiles_nothing_and_survives_damage(process, recwarn):
    want = gradient()
    assert counters["aot_autograd"]["autograd_cache_saved"] == 1, "torch kept nothing"
    process()
    assert torch.equal(gradient(), want)
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1 and not counters["inductor"]["fxgraph_cache_miss"]
    files = [p for p in room.version_folder().rglob("*") if p.is_file()]
    for path in files:
        half = path.read_bytes()[: path.stat().st_size // 2]
        path.unlink()  # this process has loaded the library
        path.write_bytes(half)
        os.utime(path, (1, 1))
    process()
    assert torch.equal(gradient(), want) and files
    assert len([w for w in recwarn if "compiled code is not kept" in str(w.message)]) <= 1


def backend(fails):
    """A compiler that fails when it writes into a folder that `fails`."""

    def compile(graph, inputs):
        if fails(Path(os.environ[room.VARIABLES[0]])):
            raise OSError(errno.ENOSPC, "No space left on device")
        return graph.forward

    return compile


def test_a_disk_that_becomes_full_is_left_and_said_once(process):
    mine = room.version_folder()
    with pytest.warns(UserWarning, match="No space left.*remove it") as said:
        fast = room.compiled(lambda x: x + 1, backend(lambda folder: mine in folder.parents))
        assert fast(torch.ones(2)).tolist() == [2, 2] and fast(torch.ones(3)).tolist() == [2, 2, 2]
    assert len(said) == 1 and mine not in Path(os.environ[room.VARIABLES[1]]).parents
    process()
    with pytest.raises(Exception, match="No space"), warnings.catch_warnings():  # nowhere to go
        warnings.simplefilter("ignore")
        room.compiled(lambda x: x + 1, backend(lambda folder: True))(torch.ones(2))


@pytest.mark.parametrize("wrong", ["not a folder", "read-only", "full"])
def test_a_folder_that_cannot_be_used_is_said_once(process, wrong, monkeypatch, tmp_path):
    place = tmp_path / "cache"
    if wrong == "not a folder":
        place.write_text("")
    elif wrong == "read-only":
        if os.geteuid() == 0:
            pytest.skip("root writes everywhere")
        place.mkdir(mode=0o500)
    else:
        monkeypatch.setattr(room, "LEAST", 1 << 62)
    with pytest.warns(UserWarning, match="compiled code is not kept.*LPWM_CACHE") as said:
        for _ in range(2):
            fast = room.compiled(lambda x: 2 * x, backend(lambda folder: False))
            assert fast(torch.ones(2)).tolist() == [2, 2]
    assert len(said) == 1 and not str(os.environ[room.VARIABLES[0]]).startswith(str(place))


def test_each_version_has_a_folder_and_the_users_choice_stays(process, monkeypatch, tmp_path):
    first = room.version_folder()
    assert first.parent == tmp_path / "cache" and torch.__version__ in first.name
    monkeypatch.setattr(room, "__version__", "9.9")
    assert room.version_folder() != first
    room.keep()
    assert os.environ[room.VARIABLES[0]].startswith(str(room.version_folder()))
    process()
    monkeypatch.delenv("LPWM_CACHE")
    os.environ[room.VARIABLES[0]] = str(tmp_path / "theirs")
    room.keep()
    assert os.environ[room.VARIABLES[0]] == str(tmp_path / "theirs") and room.VARIABLES[1] not in os.environ


KILLED = """
import os, signal, torch
from lpwm.core.compiled import compiled
from torch._inductor import codecache
def write(path, *rest, **options):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(str(path) + ".half", "w").write("half")
    os.kill(os.getpid(), signal.SIGKILL)
codecache.write_atomic = write
compiled(lambda x: x.sin() * 2)(torch.ones(3))
"""


@pytest.mark.soak
def test_a_killed_compile_leaves_nothing_in_the_way(process):
    killed = subprocess.run([sys.executable, "-c", KILLED], capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()[-2000:]
    assert any(room.version_folder().rglob("*.half"))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "compiled code")
        fast = room.compiled(lambda x: x.sin() * 2)
        torch.testing.assert_close(fast(torch.ones(3)), torch.ones(3).sin() * 2)


def block(x, w):
    return x + torch.tanh(x @ w)


def network(x, weights):
    for w in weights:
        x = block(x, w)
    return x


def test_a_network_compiled_in_parts_compiles_its_block_once(process, monkeypatch):
    monkeypatch.setattr(room, "_in_parts", [])
    assert room.in_parts(network) is network
    x, *weights = (torch.randn(4, 4, requires_grad=True) for _ in range(7))
    graphs = CompileCounterWithBackend("aot_eager")
    fast = room.compiled(loss := lambda x, weights: network(2 * x, weights).square().sum(), graphs)
    for _ in range(2):
        torch.testing.assert_close(*(torch.autograd.grad(f(x, weights), [x, *weights]) for f in (fast, loss)))
    assert (graphs.frame_count, graphs.op_count) == (3, 1 + 3 + 2)  # before, the block, after
