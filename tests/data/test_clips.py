"""Clips: which frames and actions they hold, in which order, for whom."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace
from typing import ClassVar

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpwm import worlds
from lpwm.core.errors import UserError
from lpwm.data import ActionStats, ClipSource, ResidentClips, collect, convert, from_arrays, read, split_episodes
from lpwm.data.clips import Captured, resize
from lpwm.data.episodes import runs_from_json, runs_to_json
from lpwm.data.order import clip_starts, permutation

quick = settings(max_examples=25)


def counted(lengths, size=2):
    """Row i of the whole set has state (i, episode), action (i, −i) and frames filled with i mod 256."""
    states, actions, pixels, row = [], [], [], 0
    for e, n in enumerate(lengths):
        rows = np.arange(row, row + n, dtype=np.float32)
        states.append(np.stack([rows, np.full(n, e, np.float32)], 1))
        actions.append(np.stack([rows, -rows], 1)[:-1])
        pixels.append(np.broadcast_to((rows % 256).astype(np.uint8)[:, None, None, None], (n, size, size, 3)).copy())
        row += n
    return from_arrays(states, actions, pixels)


PLAIN = ActionStats((0.0, 0.0), (1.0, 1.0))


def starts_of(clip):
    return clip.states[:, 0, 0].long().tolist()


@quick
@given(
    lengths=st.lists(st.integers(1, 30), min_size=2, max_size=8),
    frames=st.integers(1, 4),
    frameskip=st.integers(1, 5),
    holdout=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_an_epoch_is_every_clip_once_and_none_crosses_a_border(lengths, frames, frameskip, holdout):
    data = counted(lengths)
    train = split_episodes(len(lengths), holdout)[0].tolist()
    reach, expected, row = (frames - 1) * frameskip, [], 0
    for e, n in enumerate(lengths):
        expected += [row + s for s in range(n) if s + reach <= n - 1 and e in train]
        row += n
    kw = dict(clip_length=frames, frameskip=frameskip, batch=3, holdout=holdout, stats=PLAIN)
    if not expected:
        with pytest.raises(UserError, match="holds no clip"):
            ResidentClips(data, **kw)
        return
    source = ResidentClips(data, **kw)
    assert len(source) == len(expected) and source.steps_per_epoch == -(-len(expected) // 3)
    clips = [source.batch(step) for step in range(2 * len(expected))]  # six epochs, exactly
    order = [s for clip in clips for s in starts_of(clip)]
    for epoch in range(6):
        assert sorted(order[epoch * len(expected) : (epoch + 1) * len(expected)]) == expected
    for clip in clips[:4]:
        assert clip.pixels.shape == (3, frames, 3, 2, 2) and clip.pixels.dtype == torch.uint8
        assert clip.actions.shape == (3, frames - 1, 2 * frameskip) and clip.actions.dtype == torch.float32
        assert (clip.states[:, :, 1] == clip.states[:, :1, 1]).all()  # one episode
        for b, start in enumerate(starts_of(clip)):
            rows = [start + t * frameskip for t in range(frames)]
            assert clip.states[b, :, 0].tolist() == rows
            assert clip.pixels[b, :, 0, 0, 0].tolist() == [r % 256 for r in rows]
            for t in range(frames - 1):
                block = [x for r in range(rows[t], rows[t + 1]) for x in (r, -r)]
                assert clip.actions[b, t].tolist() == block


def test_the_batch_is_a_function_of_seed_and_step():
    data = counted([30] * 6)
    kw = dict(clip_length=3, frameskip=2, batch=7, stats=PLAIN)
    a, b = ResidentClips(data, seed=1, **kw), ResidentClips(data, seed=1, **kw)
    forwards = [starts_of(a.batch(s)) for s in range(60)]
    for step in (59, 3, 40, 0, 22):  # any order, another instance, no history
        assert starts_of(b.batch(step)) == forwards[step]
    other = ResidentClips(data, seed=2, **kw)
    assert starts_of(other.batch(0)) != forwards[0]
    order = [s for batch in forwards for s in batch]
    n = len(a)
    assert order[:n] != order[n : 2 * n] and order[:n] != sorted(order[:n])


@pytest.mark.parametrize(("batch", "ranks"), [(8, 1), (8, 2), (7, 3), (2, 3)])
def test_ranks_share_the_global_batch(batch, ranks):
    data = counted([25] * 5)
    kw = dict(clip_length=2, frameskip=3, batch=batch, stats=PLAIN)
    whole = ResidentClips(data, **kw)
    parts = [ResidentClips(data, rank=r, ranks=ranks, **kw) for r in range(ranks)]
    for step in range(30):
        pieces = [starts_of(p.batch(step)) for p in parts]
        assert [s for piece in pieces for s in piece] == starts_of(whole.batch(step))
        sizes = [len(p) for p in pieces]
        assert max(sizes) - min(sizes) <= 1


def test_a_batch_larger_than_an_epoch():
    source = ResidentClips(counted([6, 6]), clip_length=2, frameskip=2, batch=21, stats=PLAIN, holdout=0.5)
    order = [s for step in range(4) for s in starts_of(source.batch(step))]
    assert len(source) == 4 and all(len(set(order[i : i + 4])) == 4 for i in range(0, 84, 4))


def test_the_split_is_by_trajectory_and_the_same_for_everybody(tmp_path):
    for count, holdout, held in ((10, 0.1, 1), (100, 0.25, 25), (3, 0.01, 1), (2, 0.9, 1), (5, 0.0, 0)):
        train, val = split_episodes(count, holdout)
        assert len(val) == held and sorted(train.tolist() + val.tolist()) == list(range(count))
    assert set(split_episodes(50, 0.1)[1].tolist()) < set(split_episodes(50, 0.3)[1].tolist())
    data = counted([20] * 12)
    kw = dict(clip_length=2, frameskip=1, batch=50, holdout=0.25, stats=PLAIN)
    seen = {}
    for split in ("train", "val"):
        for seed in (0, 1):
            source = ResidentClips(data, split=split, seed=seed, **kw)
            found = torch.cat([source.batch(s).states[:, 0, 1] for s in range(source.steps_per_epoch)])
            seen[split, seed] = set(found.long().tolist())
    assert seen["train", 0] == seen["train", 1] and seen["val", 0] == seen["val", 1]
    assert not seen["train", 0] & seen["val", 0] and len(seen["train", 0] | seen["val", 0]) == 12


def test_statistics_are_those_of_the_training_split():
    data = counted([20] * 10)
    train, _ = split_episodes(10, 0.2)
    rows = torch.cat([data.episode(e)[1] for e in train.tolist()]).double()
    for split in ("train", "val"):
        source = ResidentClips(data, clip_length=2, frameskip=2, batch=4, holdout=0.2, split=split)
        np.testing.assert_allclose(source.stats.mean, rows.mean(0), rtol=1e-12)
        np.testing.assert_allclose(source.stats.std, rows.std(0, correction=0), rtol=1e-12)
        clip = source.batch(0)
        raw = source.stats.denormalize(clip.actions)
        torch.testing.assert_close(raw[:, 0, 0], clip.states[:, 0, 0], atol=1e-3, rtol=0)
        assert torch.isfinite(clip.actions).all()


@quick
@given(n=st.integers(1, 500), key=st.integers(0, 2**62))
def test_permutations(n, key):
    assert permutation(n, key, "cpu").sort().values.tolist() == list(range(n))


def test_clip_starts_of_nothing():
    assert clip_starts(torch.tensor([3, 2]), torch.tensor([0, 3]), 3).tolist() == []


def test_from_the_simulator_to_the_clip_frame_by_frame(tmp_path):
    """collect → add pixels → bare h5py → clips, against the simulator stepped again by hand."""
    world = worlds.make("piecewise", g=3, visible=True)
    collect(world, tmp_path / "states.h5", episodes=6, steps=40, seed=5)
    convert(tmp_path / "states.h5", tmp_path / "pixels.h5", add_pixels=True)
    with h5py.File(tmp_path / "pixels.h5") as f:
        frames, raw, states = (f["pixels"][:], torch.from_numpy(f["action"][:]), torch.from_numpy(f["state"][:]))
    data = read(tmp_path / "pixels.h5")
    kw = dict(clip_length=4, frameskip=5, batch=16, seed=2)
    rendered = ResidentClips(read(tmp_path / "states.h5"), world=world, **kw)
    stored = ResidentClips(data, **kw)
    assert len(rendered) == len(stored) == 5 * 26
    assert isinstance(stored, ClipSource)
    for step in (0, 7, 9):
        a, b = rendered.batch(step), stored.batch(step)
        assert torch.equal(a.pixels, b.pixels) and torch.equal(a.actions, b.actions)
        assert torch.equal(a.states, b.states) and a.pixels.shape == (16, 4, 3, 224, 224)
        for i in range(16):
            row = int((states == a.states[i, 0]).all(1).nonzero()[0, 0])
            state = a.states[i, :1]
            for t in range(4):
                assert torch.equal(a.pixels[i, t], world.render(state)[0])
                np.testing.assert_array_equal(frames[row + 5 * t].transpose(2, 0, 1), a.pixels[i, t])
                if t < 3:
                    block = raw[row + 5 * t : row + 5 * t + 5]
                    z = (block.double() - torch.tensor(stored.stats.mean)) / torch.tensor(stored.stats.std)
                    torch.testing.assert_close(a.actions[i, t].double(), z.flatten(), atol=1e-5, rtol=1e-5)
                    for action in block:
                        state = world.step(state, action[None])


def test_sizes(tmp_path):
    world = worlds.make("piecewise")
    collect(world, tmp_path / "a.h5", episodes=3, steps=20, pixels=True, size=64)
    data = read(tmp_path / "a.h5")
    small = ResidentClips(data, clip_length=2, batch=4, image_size=32)
    drawn = ResidentClips(data, world=world, clip_length=2, batch=4, image_size=32)
    a, b = small.batch(0).pixels, drawn.batch(0).pixels
    assert a.shape == b.shape == (4, 2, 3, 32, 32)
    assert (a.float() - b.float()).abs().mean() < 1  # resized is close to rendered
    assert ResidentClips(data, clip_length=2, batch=4).batch(0).pixels.shape[-1] == 64
    frames = torch.from_numpy(data.pixels[0:5]).permute(0, 3, 1, 2)
    means = frames.double().reshape(5, 3, 16, 4, 16, 4).mean((3, 5))
    assert (resize(frames, (16, 16)).double() - means).abs().max() <= 0.5 + 1e-4
    assert resize(frames, (96, 80)).shape == (5, 3, 96, 80)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (dict(clip_length=0), "clip_length is 0"),
        (dict(frameskip=0), "frameskip is 0"),
        (dict(batch=0), "batch is 0"),
        (dict(image_size=0), "image_size is 0"),
        (dict(split="test"), "'train' or 'val'"),
        (dict(holdout=1.0), "holdout is 1.0"),
        (dict(holdout=0.0, split="val"), "holds no clip"),
        (dict(rank=2, ranks=2), "rank 2 of 2"),
        (dict(clip_length=50), "which needs 246"),
        (dict(stats=ActionStats((0.0,), (1.0,))), "1 action dimensions"),
    ],
)
def test_wrong_arguments(change, match):
    with pytest.raises(UserError, match=match):
        ResidentClips(counted([20, 20, 20]), **(dict(clip_length=2, batch=4) | change))


def test_states_without_a_world_cannot_be_seen():
    data = from_arrays([np.zeros((9, 3))] * 2, [np.zeros((8, 2))] * 2)
    with pytest.raises(UserError, match="no pixels"):
        ResidentClips(data, clip_length=2, batch=1)
    with pytest.raises(UserError, match="3 state entries, the world 'piecewise' has 2"):
        ResidentClips(data, world=worlds.make("piecewise"), clip_length=2, batch=1)


@pytest.mark.gpu
def test_a_batch_does_not_wait_for_the_device(tmp_path):
    world = worlds.make("piecewise")
    collect(world, tmp_path / "a.h5", episodes=40, steps=60)
    data = read(tmp_path / "a.h5")
    kw = dict(world=world, clip_length=4, batch=64, image_size=64)
    here, there = ResidentClips(data, **kw), ResidentClips(data, device="cuda", **kw)
    for step in range(3):
        there.batch(step)  # the third is captured, which waits
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        clips = [there.batch(step) for step in range(1, 60)]  # epochs turn on the way
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for step, clip in enumerate(clips, 1):
        expected = here.batch(step)
        assert torch.equal(clip.states.cpu(), expected.states)
        torch.testing.assert_close(clip.actions.cpu(), expected.actions)
        assert (clip.pixels.cpu().int() - expected.pixels.int()).abs().max() <= 1


class Tape:
    """A CUDA graph on the CPU: what was drawn while it was captured is drawn again, from and into the same memory."""

    made: ClassVar[list] = []
    capturing: ClassVar[list] = []

    def __init__(self):
        self.calls = []
        Tape.made.append(self)

    def replay(self):
        for again in self.calls:
            again()


@contextlib.contextmanager
def recorded(tape, stream=None):
    tape.stream = stream
    Tape.capturing.append(tape)
    yield
    Tape.capturing.pop()


def drawn(states):
    """(n, 2) -> (n, 3, 1, 1): what a renderer gives, and a note for the tape."""
    frames = states.sum(1)[:, None, None, None].expand(-1, 3, 1, 1).clone()
    if Tape.capturing:
        Tape.capturing[-1].calls.append(lambda: frames.copy_(states.sum(1)[:, None, None, None].expand(-1, 3, 1, 1)))
    return frames


def test_a_captured_renderer_draws_each_of_its_calls(monkeypatch):
    """The third call captures; its memory is the graph's own, and what it gave stays what it was.

    It has a stream that no other graph was captured on: those of one share a workspace, and the step's runs beside it.
    """
    Tape.made.clear()
    monkeypatch.setattr("torch.cuda.CUDAGraph", Tape)
    monkeypatch.setattr("torch.cuda.graph", recorded)
    monkeypatch.setattr("torch.cuda.Stream", lambda: "its own")
    monkeypatch.setattr("torch.cuda.current_stream", lambda *_: SimpleNamespace(synchronize=lambda: None))
    draw, states = Captured(drawn, compiled=False), [torch.randn(5, 2) for _ in range(6)]
    lent = [s.clone() for s in states]
    found = []
    for i, s in enumerate(lent):
        found.append(draw(s))
        assert len(Tape.made) == (i >= 2)
        s.zero_()  # the caller's memory is its own again
    few = draw(states[0][:2])  # another number of states is drawn as it comes
    assert len(Tape.made) == 1 and len(Tape.made[0].calls) == 1 and Tape.made[0].stream == "its own"
    for s, frames in zip(states, found, strict=True):
        assert torch.equal(frames, drawn(s))
    assert torch.equal(few, drawn(states[0][:2])) and torch.equal(draw(states[3]), drawn(states[3]))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "compiled"), [("piecewise", False), ("wall", False), ("wall", True), ("pusht", False)]
)
def test_a_captured_renderer_on_a_gpu(name, compiled):
    world = worlds.make(name)
    plain = world.renderer(32, torch.device("cuda"))
    draw = Captured(plain, compiled)
    states = [world.sample_state(16, (i,)).cuda() for i in range(6)]
    with torch.cuda.stream(torch.cuda.Stream()):  # as training does, ahead of its steps
        torch.cuda.synchronize()
        found = [draw(s) for s in states]
        few = draw(states[0][:3])
    torch.cuda.synchronize()
    for s, frames in zip([*states, states[0][:3]], [*found, few], strict=True):
        apart = (frames.int() - plain(s).int()).abs()
        assert frames.dtype == torch.uint8 and (apart <= 1).float().mean() > 0.999
    assert draw._graph is not None


@given(st.lists(st.booleans(), min_size=2, max_size=40).filter(lambda held: 0 < sum(held) < len(held)))
def test_a_split_is_kept_as_the_runs_it_makes(held):
    some = [e for e, is_held in enumerate(held) if is_held]
    text = runs_to_json(some)
    assert runs_from_json(text, len(held)).tolist() == some
    begins = sum(a and not b for a, b in zip(held, [False, *held[:-1]], strict=True))
    assert len(json.loads(text)) == begins


NO_SPLITS = (
    "[]|[[0, 5]]|[[3, 6]]|[[-1, 2]]|[[2, 2]]|[[2, 1]]|[[2, 3], [0, 1]]|[[0, 2], [1, 3]]|[[0, 1, 2]]|3|[3]|{}|[[0"
)


@pytest.mark.parametrize("text", [*NO_SPLITS.split("|"), '[["0", 2]]'])
def test_what_is_no_split_of_five_episodes(text):
    with pytest.raises((ValueError, TypeError)):
        runs_from_json(text, 5)
