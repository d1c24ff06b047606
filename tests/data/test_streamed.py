"""Streamed clips: the same bits as from memory, bounded memory, and processes that end when they should."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpwm import worlds
from lpwm.core.errors import UserError
from lpwm.core.memory import free_bytes, group_free
from lpwm.data import ClipSource, ResidentClips, StreamedClips, collect, open_clips, read, streamed, write
from lpwm.data.clips import resize
from lpwm.recipes import recipe
from lpwm.train import DataConfig, Run, RunConfig, run_hash


def episodes(lengths, shape=(12, 16), noisy=True, seed=0):
    g = np.random.default_rng(seed)
    for n in lengths:
        pixels = g.integers(0, 256, (n, *shape, 3), dtype=np.uint8)
        if not noisy:
            pixels[:] = pixels[:, :1, :1]
        yield {"action": g.normal(size=(n - 1, 2)), "state": g.normal(size=(n, 3)), "pixels": pixels}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("streamed") / "a.h5"
    write(path, [*episodes([30, 17, 25]), *episodes([21, 28], noisy=False)])  # plain and deflated chunks
    return read(path)


def same(a, b):
    return all(torch.equal(getattr(a, n), getattr(b, n)) for n in ("pixels", "actions", "states"))


def gone(pids, seconds=20.0):
    """Whether all of these processes ended, within this time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(Path(f"/proc/{pid}").exists() and alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("size", [None, 7, 20])
def test_the_bits_of_resident_clips_in_any_order(data, size):
    kw = dict(clip_length=3, frameskip=4, batch=7, seed=3, image_size=size)
    resident, source = ResidentClips(data, **kw), StreamedClips(data, workers=2, prefetch=3, **kw)
    assert isinstance(source, ClipSource) and len(source) == len(resident) and source.stats == resident.stats
    for step in [*range(25), 40, 3, 4, 3, 1000, 1001, 5]:  # over the ends of epochs, and jumping
        assert same(source.batch(step), resident.batch(step)), step
    kept, copy = source.batch(50), resident.batch(50)
    for step in range(51, 60):
        source.batch(step)
    assert same(kept, copy)  # a clip stays what it was when its slot is used again
    source.close()
    assert same(source.batch(2), resident.batch(2))  # closing is not the end
    source.close()


@pytest.mark.parametrize(("batch", "ranks"), [(8, 2), (7, 3), (2, 3)])
def test_ranks_share_the_batch(data, batch, ranks):
    kw = dict(clip_length=2, frameskip=3, batch=batch)
    whole = ResidentClips(data, **kw)
    parts = [StreamedClips(data, workers=1, prefetch=2, rank=r, ranks=ranks, **kw) for r in range(ranks)]
    for step in (0, 1, 9):
        pieces = [part.batch(step) for part in parts]
        assert torch.equal(torch.cat([p.pixels for p in pieces]), whole.batch(step).pixels)
        assert torch.equal(torch.cat([p.actions for p in pieces]), whole.batch(step).actions)
    for part in parts:
        part.close()


@pytest.mark.parametrize("layout", ["plain chunks", "several frames a chunk", "flat", "lzf", "old"])
def test_however_the_file_is_laid_out(tmp_path, layout):
    frames = np.concatenate([e["pixels"] for e in episodes([20, 25])])
    options = {
        "plain chunks": {"chunks": (1, 12, 16, 3)},
        "several frames a chunk": {"chunks": (7, 6, 16, 3), "compression": "gzip", "shuffle": True},
        "flat": {},
        "lzf": {"chunks": (1, 12, 16, 3), "compression": "lzf"},
        "old": {"chunks": (1, 12, 16, 3), "compression": "gzip"},
    }[layout]
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512 if layout == "old" else 0) as f:
        f.create_dataset("pixels", data=frames, **options)
        f["action"], f["ep_len"] = np.zeros((45, 2), np.float32), np.array([20, 25])
    stored, kw = read(tmp_path / "a.h5"), dict(clip_length=2, frameskip=3, batch=5, holdout=0.5)
    resident, source = ResidentClips(stored, **kw), StreamedClips(stored, workers=1, **kw)
    for step in range(4):
        assert same(source.batch(step), resident.batch(step))
    source.close()


@settings(max_examples=25)
@given(
    h=st.integers(1, 40),
    w=st.integers(1, 40),
    new=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    n=st.integers(1, 5),
)
def test_resizing_is_exact_and_does_not_depend_on_company(h, w, new, n):
    """Against fractions in float64; halves up. The same frame alone and among others."""
    frames = torch.from_numpy(np.random.default_rng(h * w).integers(0, 256, (n, 3, h, w), dtype=np.uint8))
    made = resize(frames, new)

    def table(a, b):
        t = np.zeros((b, a))
        for j in range(b):
            if b <= a:
                for i in range(a):
                    t[j, i] = max(0.0, min((i + 1) / a, (j + 1) / b) - max(i / a, j / b)) * b
            else:
                x = max((j + 0.5) * a / b - 0.5, 0.0)
                i = min(int(x), a - 1)
                t[j, i] += 1 - (x - i)
                t[j, min(i + 1, a - 1)] += x - i
        return t

    exact = table(h, new[0]) @ frames.double().numpy() @ table(w, new[1]).T
    assert np.abs(made.numpy() - exact).max() <= 0.5 + 1e-9
    assert torch.equal(resize(frames[:1], new), made[:1])


def test_frames_that_do_not_shrink_are_stored_as_they_are(data):
    with h5py.File(data.pixels.path) as f:
        masks = [f["pixels"].id.get_chunk_info_by_coord((r, 0, 0, 0)).filter_mask for r in (0, 71, 72, 120)]
        sizes = [f["pixels"].id.get_chunk_info_by_coord((r, 0, 0, 0)).size for r in (0, 71, 72, 120)]
        frames = f["pixels"][:]  # HDF5 itself understands both
    assert masks == [1, 1, 0, 0] and sizes[:2] == [576, 576] and max(sizes[2:]) < 60
    expected = [*episodes([30, 17, 25]), *episodes([21, 28], noisy=False)]
    np.testing.assert_array_equal(frames, np.concatenate([e["pixels"] for e in expected]))


def test_the_source_is_chosen_by_bytes(data, monkeypatch):
    kw = dict(clip_length=2, frameskip=2, batch=4)
    rows = int(data.lengths[streamed.splits(data, 0.1)[0]].sum())
    need = rows * (12 * 16 * 3 + 9)
    assert isinstance(open_clips(data, **kw), ResidentClips)
    for free, expected in ((2 * need, ResidentClips), (2 * need - 2, StreamedClips)):
        monkeypatch.setattr(streamed, "free_bytes", lambda device, free=free: free)
        assert isinstance(open_clips(data, **kw), expected)
    assert isinstance(open_clips(data, source="resident", **kw), ResidentClips)
    monkeypatch.undo()
    assert isinstance(open_clips(data, source="streamed", **kw), StreamedClips)
    monkeypatch.setattr("lpwm.data.clips.free_bytes", lambda device: 1000)
    with pytest.raises(UserError, match=r"need 0\.0 GB .* stream them"):
        ResidentClips(data, **kw)


def test_free_memory_heeds_the_control_group(tmp_path):
    assert group_free(tmp_path) == float("inf") and free_bytes(torch.device("cpu")) > 1e6
    for name, text in (("max", "1000"), ("current", "700"), ("stat", "anon 1\ninactive_file 50\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert group_free(tmp_path) == 350
    (tmp_path / "memory.max").write_text("max\n")
    assert group_free(tmp_path) == float("inf")


def test_mistakes(data):
    kw = dict(clip_length=2, batch=4)
    for change, match in (({"workers": 0}, "workers is 0"), ({"prefetch": 1}, "prefetch is 1: give at least 2")):
        with pytest.raises(UserError, match=match):
            StreamedClips(data, **(kw | change))
    with pytest.raises(UserError, match=r"data\.source is 'disk'"):
        open_clips(data, source="disk", **kw)


def test_where_frames_wait_does_not_make_another_model():
    plain, other = RunConfig(), RunConfig(data=DataConfig(source="streamed", workers=3))
    assert run_hash(plain, "d") == run_hash(other, "d")
    assert run_hash(RunConfig(data=DataConfig(pixels="stored")), "d") != run_hash(plain, "d")


def test_a_worker_that_dies_is_one_sentence(data):
    source = StreamedClips(data, clip_length=2, frameskip=2, batch=4, workers=2)
    source.batch(0)
    pids = source.processes
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(UserError, match=r"died \(signal 9, often for want of memory\)"):
        for step in range(1, 20):
            source.batch(step)
    assert gone(pids)
    with pytest.raises(UserError, match="have ended"):
        source.batch(3)


def test_damage_found_by_a_worker_is_one_sentence(data, tmp_path):
    path = tmp_path / "bad.h5"
    path.write_bytes(data.pixels.path.read_bytes())
    with h5py.File(path) as f:
        places = [f["pixels"].id.get_chunk_info_by_coord((r, 0, 0, 0)) for r in range(72, 121)]
    raw = bytearray(path.read_bytes())
    for place in places:
        raw[place.byte_offset : place.byte_offset + place.size] = b"\xff" * place.size
    path.write_bytes(raw)
    source = StreamedClips(read(path), clip_length=2, frameskip=2, batch=8, workers=2)
    with pytest.raises(UserError, match=r"bad\.h5 is damaged") as caught:
        for step in range(20):
            source.batch(step)
    assert "\n" not in str(caught.value)


PROGRAM = """
import sys, time
from lpwm.data import StreamedClips, read
source = StreamedClips(read(sys.argv[1]), clip_length=2, frameskip=2, batch=4, workers=2)
source.batch(0)
print(*source.processes, flush=True)
for step in range(1, 10**9):
    source.batch(step)
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize(("number", "pause"), [(signal.SIGKILL, 0.0), (signal.SIGKILL, 60.0), (signal.SIGINT, 0.0)])
def test_workers_end_with_their_run(data, number, pause):
    """Killed, or interrupted as a terminal does it: the whole group is signaled."""
    run = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(data.pixels.path), str(pause)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = [int(p) for p in run.stdout.readline().split()]
    assert len(pids) == 2 and all(alive(p) for p in pids)
    os.killpg(run.pid, number)
    _, errors = run.communicate(timeout=60)
    assert gone(pids) and run.returncode == -number
    assert "frames died" not in errors and ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)


def test_memory_does_not_grow_with_what_was_read(tmp_path):
    """20 MB of frames, read four times over through 2 MB of slots."""
    write(tmp_path / "a.h5", episodes([200] * 8, (64, 64)))
    assert (tmp_path / "a.h5").stat().st_size > 19e6
    source = StreamedClips(read(tmp_path / "a.h5"), clip_length=4, frameskip=5, batch=8, workers=2)

    def used():
        total = 0
        for pid in (os.getpid(), *source.processes):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1000

    for step in range(40):
        source.batch(step)
    before = used()
    for step in range(40, 240):
        source.batch(step)
    after = used()
    source.close()
    assert after - before < 6, (before, after)


def test_a_run_does_not_depend_on_where_its_frames_wait(tmp_path):
    """Resident, streamed, and streamed after an interruption: the same weights."""
    world = worlds.make("piecewise")
    collect(world, tmp_path / "p.h5", episodes=20, steps=20, pixels=True, size=24)
    base = recipe("tiny/lpwm")
    config = replace(
        base,
        data=replace(base.data, file=str(tmp_path / "p.h5")),
        train=replace(base.train, steps=12, checkpoint_every=4, eval_every=6, eval_batches=1),
    )
    weights = {}
    for name, source in (("memory", "resident"), ("stream", "streamed")):
        run = Run.create(replace(config, data=replace(config.data, source=source)), tmp_path / name)
        weights[name] = run.train(torch.device("cpu"), console=False).state_dict()
    folder = Run.create(config, tmp_path / "half").folder
    for step in (4, 8):
        kept = tmp_path / "memory" / folder.name / "checkpoints" / f"step-{step:08d}"
        if kept.exists():
            shutil.copytree(kept, folder / "checkpoints" / kept.name)
    assert list((folder / "checkpoints").iterdir())
    config = replace(config, data=replace(config.data, source="streamed", workers=1))
    weights["half"] = Run.create(config, tmp_path / "half").train(torch.device("cpu"), console=False).state_dict()
    for name in ("stream", "half"):
        assert all(torch.equal(v, weights["memory"][k]) for k, v in weights[name].items()), name


@pytest.mark.gpu
@pytest.mark.parametrize("size", [None, 7])
def test_on_a_gpu_the_same_bits(data, size):
    kw = dict(clip_length=3, frameskip=4, batch=7, seed=3, image_size=size)
    resident, source = ResidentClips(data, **kw), StreamedClips(data, workers=2, device="cuda", **kw)
    kept = [source.batch(step) for step in range(30)]  # slots are used again while copies may be in flight
    for step, clip in enumerate(kept):
        assert clip.pixels.is_cuda and torch.equal(clip.pixels.cpu(), resident.batch(step).pixels)
        torch.testing.assert_close(clip.actions.cpu(), resident.batch(step).actions)
    source.close()
    assert torch.equal(source.batch(2).pixels.cpu(), resident.batch(2).pixels)
    source.close()


def test_the_room_and_its_workers_start_without_torch():
    code = "import sys, lpwm.data, lpwm.data.frames.pool, lpwm.data.frames.hdf5; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    import lpwm.data

    assert all(callable(getattr(lpwm.data, name)) for name in lpwm.data.__all__)
