"""Clips: which frames and actions they hold, in which order, for whom."""

import json

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tools import refused

from lpwm import worlds
from lpwm.core.errors import UserError
from lpwm.data import ActionStats, ClipSource, ResidentClips, collect, convert, from_arrays, read, split_episodes
from lpwm.data.clips import Captured
from lpwm.data.episodes import runs_from_json, runs_to_json
from lpwm.data.normalize import from_blocks, to_blocks

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
            starts = torch.cat([source.batch(s).states[:, 0, 1] for s in range(source.steps_per_epoch)])
            seen[split, seed] = set(starts.long().tolist())
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
        drawn = [draw(s) for s in states]
        few = draw(states[0][:3])
    torch.cuda.synchronize()
    for s, frames in zip([*states, states[0][:3]], [*drawn, few], strict=True):
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


def test_statistics_ignore_rows_that_lead_nowhere():
    rows = np.random.default_rng(0).normal(3.0, 2.0, (50, 3)).astype(np.float32)
    rows[[9, 29, 49]] = np.nan
    rows[:, 2] = np.where(np.isnan(rows[:, 2]), np.nan, 0.25)  # never varies
    stats = ActionStats.of(torch.from_numpy(rows))
    np.testing.assert_allclose(stats.mean, np.nanmean(rows.astype(np.float64), 0), rtol=1e-12)
    np.testing.assert_allclose(stats.std[:2], np.nanstd(rows[:, :2].astype(np.float64), 0), rtol=1e-12)
    z = stats.normalize(torch.from_numpy(rows))
    assert stats.std[2] == 1.0 and np.nanmax(np.abs(z[:, 2].numpy())) == 0
    np.testing.assert_allclose(np.nanstd(z[:, :2].numpy(), 0), 1, rtol=1e-5)


def test_blocks_hold_the_raw_actions_in_time():
    raw = torch.arange(2 * 6 * 2, dtype=torch.float32).reshape(2, 6, 2)
    blocks = to_blocks(raw, 3)
    assert blocks.shape == (2, 2, 6)
    assert blocks[0, 0].tolist() == [0, 1, 2, 3, 4, 5] and blocks[1, 1].tolist() == [18, 19, 20, 21, 22, 23]
    assert torch.equal(from_blocks(blocks, 3), raw)
    stats = ActionStats((1.0, 10.0), (2.0, 5.0))
    z = stats.normalize(blocks)
    assert z[0, 0].tolist() == pytest.approx([-0.5, -1.8, 0.5, -1.4, 1.5, -1.0])
    assert torch.equal(z, to_blocks(stats.normalize(raw), 3))
    torch.testing.assert_close(stats.denormalize(z), blocks)


def test_through_json():
    stats = ActionStats.of(torch.randn(100, 2, generator=torch.Generator().manual_seed(0)))
    assert ActionStats.from_dict(json.loads(json.dumps(stats.as_dict()))) == stats


def test_mistakes():
    for bad in ({}, {"mean": [0.0]}, {"mean": [0.0], "std": [0.0]}, {"mean": [0.0, 1.0], "std": [1.0]}, {"mean": 1}):
        refused("action statistics", ActionStats.from_dict, bad)
    refused("no finite action", ActionStats.of, torch.full((3, 2), torch.nan))
    refused("no multiple", ActionStats((0.0, 0.0), (1.0, 1.0)).normalize, torch.zeros(4, 5))
