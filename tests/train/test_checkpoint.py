"""Checkpoints: exact to resume, whole after a kill at any moment, and refused when cut or altered."""

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tools import refused

from lpwm.model import EncoderConfig, ModelConfig, PredictorConfig, ProjectorConfig, WorldModel
from lpwm.optim import mup
from lpwm.train import checkpoint

TINY = ModelConfig(
    latent=6,
    encoder=EncoderConfig(image_size=8, patch=4, width=8, depth=1, heads=1, head_dim=8, mlp=8),
    projector=ProjectorConfig(hidden=8, norm="batch"),
    predictor=PredictorConfig(rung="mlp-lti", history=2),
)
FILES = ("model.safetensors", "config.json", "optimizer.safetensors", "state.json")


def make(seed=0, optim="adamw", device="cpu", **options):
    model = WorldModel(TINY, action_dim=4)
    mup.initialize(model, seed)
    model = model.to(device)
    return model, mup.build(model, mup.OptimConfig(name=optim, lr=1e-3), **options)


def train(model, optimizer, steps):
    """A few steps on batches keyed by the step, at a rate that is a function of the step."""
    for step in steps:
        g = torch.Generator().manual_seed(step)
        frames = torch.randint(0, 256, (4, 3, 3, 8, 8), generator=g).to(torch.uint8)
        actions = torch.randn(4, 2, 4, generator=g)
        for group in optimizer.param_groups:
            rate = group["peak"] * (1 - step / 20)
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        z = model.encode(frames)
        loss = (model.predict(z[:, :2], actions) - z[:, 1:]).square().mean() - z.std(0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def save(folder, model, optimizer, step, **options):
    run = {"seed": 5, "note": "λ"}
    return checkpoint.save(
        folder, model=model, optimizer=optimizer, step=step, run=run, run_hash="cafe", meta={}, **options
    )


def bits(tensor):
    return (tensor.dtype, tuple(tensor.shape), tensor.detach().contiguous().cpu().numpy().tobytes())


def everything(model, optimizer):
    """Every bit of the model and of the optimizer, by name."""
    out = {name: bits(t) for name, t in model.state_dict().items()}
    for name, p in model.named_parameters():
        out |= {f"{name}/{k}": bits(v) for k, v in optimizer.state.get(p, {}).items()}
    return out


@pytest.mark.parametrize("optim", ["adam", "adamw"])
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}, {"amsgrad": True}])
def test_resumed_training_equals_uninterrupted_training_bit_for_bit(tmp_path, optim, options):
    model, optimizer = make(optim=optim, **options)
    assert len(optimizer.param_groups) > 2
    train(model, optimizer, range(4))
    optimizer.param_groups[1].update(eps=3e-7, betas=(0.8, 0.95), weight_decay=0.1 + 0.2)
    before = everything(model, optimizer)
    save(tmp_path, model, optimizer, 4)
    assert everything(model, optimizer) == before
    train(model, optimizer, range(4, 8))

    other, its = make(seed=1, optim=optim, **options)
    train(other, its, range(9, 11))  # a state that must be overwritten altogether
    taken = checkpoint.latest(tmp_path)
    assert checkpoint.restore(taken, other, its) == 4 == taken.step
    assert everything(other, its) == before
    assert any(k.endswith("/step") for k in before) and any("running_var" in k for k in before)
    train(other, its, range(4, 8))
    assert everything(other, its) == everything(model, optimizer)
    ours, theirs = ([{**g, "params": None} for g in o.param_groups] for o in (optimizer, its))
    assert ours == theirs  # every hyperparameter of every group


def test_before_the_first_step_there_is_no_state_and_a_stale_one_is_dropped(tmp_path):
    model, optimizer = make()
    save(tmp_path, model, optimizer, 0)
    other, its = make(seed=1)
    train(other, its, range(2))
    checkpoint.restore(checkpoint.latest(tmp_path), other, its)
    assert everything(other, its) == everything(model, optimizer)
    assert not any(its.state.values())


def test_rates_stay_tensors_and_the_implementation_is_not_the_checkpoints(tmp_path):
    """A captured graph reads a rate from memory; whether an optimizer is fused is a matter of the device."""
    model, optimizer = make()
    train(model, optimizer, range(3))
    save(tmp_path, model, optimizer, 3)
    other, its = make(seed=1, fused=True)
    for group in its.param_groups:
        group["lr"] = torch.tensor(group["lr"])
    checkpoint.restore(checkpoint.latest(tmp_path), other, its)
    assert everything(other, its) == everything(model, optimizer)
    for group, ours in zip(its.param_groups, optimizer.param_groups, strict=True):
        assert torch.equal(group["lr"], torch.tensor(ours["lr"])) and group["fused"] is True


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True}, {"fused": True, "capturable": True}])
def test_states_move_between_devices_bit_for_bit(tmp_path, options):
    """GPU to GPU, GPU to CPU and back again; the count of steps where each optimizer wants it."""

    model, optimizer = make(device="cuda", **options)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    optimizer.step()
    before = everything(model, optimizer)
    save(tmp_path, model, optimizer, 2)
    for device, flags in (("cuda", options), ("cpu", {}), ("cuda", {}), ("cuda", {"fused": True, "capturable": True})):
        other, its = make(seed=1, device=device, **flags)
        taken = checkpoint.latest(tmp_path)
        checkpoint.restore(taken, other, its)
        assert everything(other, its) == before
        for p in other.parameters():
            assert its.state[p]["exp_avg"].device == p.device
            assert its.state[p]["step"].device.type == (device if flags else "cpu")
            p.grad = torch.ones_like(p)
        for ours, theirs in zip(optimizer.param_groups, its.param_groups, strict=True):
            assert float(ours["lr"]) == pytest.approx(float(theirs["lr"]), rel=1e-7)
        its.step()  # torch accepts where everything lies
        checkpoint.restore(taken, other, its)  # into existing states, in place
        assert everything(other, its) == before
        save(tmp_path, other, its, 2)
    loaded = WorldModel.from_pretrained(tmp_path, device="cuda")
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))


def test_wrapped_models_and_tied_or_strided_tensors(tmp_path):
    model, optimizer = make()
    train(model, optimizer, range(2))
    model.predictor.W.weight.data = model.predictor.W.weight.data.t()  # not contiguous
    model.predictor.A[1].weight = model.predictor.A[0].weight  # one tensor under two names
    optimizer = torch.optim.AdamW(model.parameters())

    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    save(tmp_path, Wrapper(model), optimizer, 2)
    assert not [n for n in (tmp_path / "checkpoints").iterdir() if not n.name.startswith("step-")]
    other = WorldModel(TINY, action_dim=4)
    checkpoint.restore(checkpoint.latest(tmp_path), other)
    for name, tensor in model.state_dict().items():
        assert bits(tensor) == bits(other.state_dict()[name])


def test_what_is_in_the_folder(tmp_path):
    model, optimizer = make()
    train(model, optimizer, range(1))
    folder = save(tmp_path, model, optimizer, 1234, metric=0.5)
    assert folder == tmp_path / "checkpoints" / "step-00001234"
    assert {p.name for p in folder.iterdir()} == set(FILES)
    state = json.loads((folder / "state.json").read_text())
    assert (state["step"], state["run_hash"], state["metric"]) == (1234, "cafe", 0.5)
    assert state["run"] == {"seed": 5, "note": "λ"}
    assert set(state["versions"]) == {"lpwm", "torch", "python"}
    assert set(state["files"]) == set(FILES) - {"state.json"}
    assert all((folder / n).stat().st_size == f["bytes"] for n, f in state["files"].items())
    loaded = WorldModel.from_pretrained(folder)
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))


def steps_of(run):
    return [int(p.name[5:]) for p in checkpoint.existing(run)]


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    model, optimizer = make()
    metrics = {1: 0.9, 2: 0.3, 3: None, 4: 0.5, 5: float("nan"), 6: 0.7, 7: 0.3, 8: 0.4, 9: 0.6}
    kept = [1], [2, 1], [3, 2], [4, 3, 2], [5, 4, 2], [6, 5, 2], [7, 6], [8, 7], [9, 8, 7]
    for (step, metric), wanted in zip(metrics.items(), kept, strict=True):
        save(tmp_path, model, optimizer, step, metric=metric)
        assert steps_of(tmp_path) == wanted
        known = [(m, -s) for s, m in metrics.items() if s <= step and m is not None and m == m]
        taken = checkpoint.best(tmp_path)
        assert (taken.metric, -taken.step) == min(known)
    save(tmp_path, model, optimizer, 10, keep=1)
    assert steps_of(tmp_path) == [10, 7]
    only = save(tmp_path / "other", model, optimizer, 1).parent
    refused("has a metric", checkpoint.best, only)
    refused("keep = 0", save, tmp_path, model, optimizer, 11, keep=0)


def damages(path):
    """Ways to spoil a file: cut at several places, emptied, grown, single bits flipped, removed."""
    data, chance = path.read_bytes(), random.Random(path.name)
    for size in {0, 1, len(data) // 2, len(data) - 1}:
        yield f"cut to {size}", data[:size]
    yield "grown", data + b"\0"
    for _ in range(24):
        at, bit = chance.randrange(len(data)), chance.randrange(8)
        yield f"bit {bit} of byte {at}", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    yield "removed", None


@pytest.mark.parametrize("name", FILES)
def test_a_cut_or_altered_file_is_refused_by_name_and_the_previous_checkpoint_used(tmp_path, name):
    model, optimizer = make()
    train(model, optimizer, range(1))
    save(tmp_path, model, optimizer, 1, metric=2.0)
    path = save(tmp_path, model, optimizer, 2, metric=1.0) / name
    whole = path.read_bytes()
    for how, data in damages(path):
        path.unlink()
        if data is not None:
            path.write_bytes(data)
        for taken in (checkpoint.latest(tmp_path), checkpoint.best(tmp_path)):
            assert taken.step == 1, how
            assert len(taken.refused) == 1, how
            assert taken.refused[0].startswith("checkpoint step-00000002 is refused: "), how
            assert name in taken.refused[0] and taken.refused[0].count("\n") == 0, how
        path.write_bytes(whole)
        assert checkpoint.latest(tmp_path).step == 2


def test_a_damaged_newer_one_neither_blocks_nor_crowds_out_what_is_saved_after_resuming(tmp_path):
    model, optimizer = make()
    for step in (1, 2):
        save(tmp_path, model, optimizer, step, keep=1)
    save(tmp_path, model, optimizer, 9, keep=2)
    (tmp_path / "checkpoints" / "step-00000009" / "state.json").write_bytes(b"{")
    assert checkpoint.latest(tmp_path).step == 2
    for step in (3, 4, 12):
        save(tmp_path, model, optimizer, step, keep=1)
        assert checkpoint.latest(tmp_path).step == step
    save(tmp_path, model, optimizer, 9, keep=1)  # its step again: replaced
    assert [p.name for p in checkpoint.existing(tmp_path)] == ["step-00000012", "step-00000009"]
    assert checkpoint.latest(tmp_path).refused == []


def test_one_set_aside_by_a_kill_counts_after_its_successor_and_a_renamed_one_not_at_all(tmp_path):
    model, optimizer = make()
    folder = save(tmp_path, model, optimizer, 3)
    shutil.copytree(folder, folder.with_name("step-00000003.old"))
    assert checkpoint.latest(tmp_path).folder == folder
    shutil.copytree(folder, folder.with_name("step-00000008"))
    taken = checkpoint.latest(tmp_path)
    assert taken.folder == folder and "renamed" in taken.refused[0]
    (folder / "config.json").write_bytes(b"")
    taken = checkpoint.latest(tmp_path)
    assert (taken.folder.name, taken.step, len(taken.refused)) == ("step-00000003.old", 3, 2)


def test_no_checkpoint_and_none_left(tmp_path):
    refused("has no checkpoint: ", checkpoint.latest, tmp_path)
    model, optimizer = make()
    folder = save(tmp_path, model, optimizer, 3)
    (folder / "model.safetensors").write_bytes(b"")
    refused(r"no usable checkpoint .*step-00000003.*truncated", checkpoint.latest, tmp_path)
    refused("truncated", checkpoint.verify, folder)


def forge(folder, **changes):
    """Rewrite state.json with a right checksum, as a stranger could."""

    def text(state):
        return (json.dumps(state, indent=1) + "\n").encode()

    state = json.loads((folder / "state.json").read_text())
    state = {k: v for k, v in {**state, **changes}.items() if v is not ... and k != "checksum"}
    state["checksum"] = hashlib.sha256(text(state)).hexdigest()
    (folder / "state.json").write_bytes(text(state))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step": ...}, "step is missing"),
        ({"files": ...}, "files is missing"),
        ({"metric": "low"}, "metric = 'low'"),
        ({"files": {}}, "does not list model.safetensors"),
        ({"files": {"model.safetensors": 3, "config.json": 3}}, "not what was written"),
        ({"format": 99}, "use the version of lpwm that wrote it"),
    ],
)
def test_foreign_or_incomplete_states_are_one_sentence(tmp_path, changes, words):
    model, optimizer = make()
    folder = save(tmp_path, model, optimizer, 3)
    forge(folder)
    assert checkpoint.latest(tmp_path).step == 3  # the forger knows the format
    forge(folder, **changes)
    refused(re.escape(words), checkpoint.latest, tmp_path)


def test_names_in_a_state_cannot_point_elsewhere(tmp_path):
    model, optimizer = make()
    folder = save(tmp_path, model, optimizer, 3)
    files = json.loads((folder / "state.json").read_text())["files"]
    (tmp_path / "other").write_bytes((folder / "config.json").read_bytes())
    forge(folder, files={**files, "../../other": files["config.json"]})
    refused("other is missing", checkpoint.latest, tmp_path)


def other_model(**changes):
    return WorldModel(replace(TINY, **changes), action_dim=4)


def test_the_first_difference_is_named_and_nothing_is_changed(tmp_path):
    model, optimizer = make()
    train(model, optimizer, range(1))
    save(tmp_path, model, optimizer, 1)
    taken = checkpoint.latest(tmp_path)
    cases = [
        (other_model(latent=7), r"'encoder\.project\.3\.weight' has shape \(6, 8\).*but \(7, 8\)"),
        (other_model(predictor=PredictorConfig(rung="mlp-lti", history=3)), r"has no 'predictor\.A\.2\.weight'"),
        (other_model(predictor=PredictorConfig(rung="mlp-lti", history=1)), r"has 'predictor\.A\.1\.weight'"),
        (WorldModel(TINY, action_dim=4).double(), "float32 in .* but torch.float64"),
    ]
    for wrong, words in cases:
        before = {n: bits(t) for n, t in wrong.state_dict().items()}
        refused(words, checkpoint.restore, taken, wrong)
        assert before == {n: bits(t) for n, t in wrong.state_dict().items()}

    right, _ = make(seed=1)
    before = {n: bits(t) for n, t in right.state_dict().items()}
    count = len(optimizer.param_groups)
    optimizers = [
        (torch.optim.SGD(right.parameters()), "trained with AdamW, not SGD"),
        (torch.optim.AdamW(right.parameters()), f"has {count} parameter groups, but the optimizer has 1"),
        (mup.build(right, mup.OptimConfig(input_lr="fan_in")), "parameter group"),
        (torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))]), "a parameter that the model lacks"),
    ]
    groups = mup.groups(right, mup.OptimConfig())
    last = groups[0]["params"].pop()
    name = next(n for n, p in right.named_parameters() if p is last)
    optimizers.append((torch.optim.AdamW(groups), rf"group 0 has '{re.escape(name)}' in .* has None"))
    for wrong_optimizer, words in optimizers:
        refused(words, checkpoint.restore, taken, right, wrong_optimizer)
    assert before == {n: bits(t) for n, t in right.state_dict().items()}


def test_weights_alone_cannot_be_resumed(tmp_path):
    model, _ = make()
    save(tmp_path, model, None, 1)
    other, its = make(seed=1)
    refused("no optimizer", checkpoint.restore, checkpoint.latest(tmp_path), other, its)
    assert checkpoint.restore(checkpoint.latest(tmp_path), other) == 1


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    model, optimizer = make()
    save(tmp_path, model, optimizer, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    refused("step-.*: the disk is full", lambda: save(tmp_path, model, optimizer, 2))
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    assert checkpoint.latest(tmp_path).step == 1


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the names of open files")
def test_everything_is_flushed_before_it_gets_its_name(tmp_path, monkeypatch):
    """Each file, then state.json, then the folder; then the rename; then the folder above."""
    model, optimizer = make()
    train(model, optimizer, range(1))
    log = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(handle):
        log.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def note_rename(old, new):
        log.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    save(tmp_path, model, optimizer, 7)
    assert sorted(log[:3]) == sorted(set(FILES) - {"state.json"})
    assert log[3] == "state.json"
    assert log[4].startswith(".lpwm-tmp-step-00000007")
    assert log[5:] == ["rename", "checkpoints"]


# One process that forks: each child saves and is killed, the parent looks at what is left.
KILLS = """
import json, os, random, shutil, signal, sys, time
import torch
torch.set_num_threads(1)
os.fsync = lambda _: None  # a killed process loses no written pages; another test sees to the flushing
from pathlib import Path
sys.path[:0] = sys.argv[1], sys.argv[1] + "/../helpers"
from test_checkpoint import make, save, train
from lpwm.train import checkpoint

run = Path(sys.argv[2])
model, optimizer = make()
train(model, optimizer, range(1))
EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.listdir", "os.scandir")

def child(action):
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    return pid

def count_down(n):
    left = [n]
    def hook(event, args):
        if event in EVENTS and str(run) in str(args[:1]):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

def at_event(step, n):
    def action():
        count_down(n)
        save(run, model, optimizer, step, keep=1, metric=-float(step))
    return action

out = {"killed": 0, "leftover": 0, "old": 0}
save(run, model, optimizer, 5, keep=1)
shutil.copytree(run, run.with_name("base"))
for target in (6, 5):  # a new step; then the step that is already there, which must be replaced
    n, status = 0, -1
    while status != 0:
        shutil.rmtree(run)
        shutil.copytree(run.with_name("base"), run)
        status = os.waitpid(child(at_event(target, n)), 0)[1]
        assert status in (0, signal.SIGKILL), status
        out["killed"] += status != 0
        names = os.listdir(run / "checkpoints")
        out["leftover"] += any(x.startswith(".lpwm-tmp-") for x in names)
        out["old"] += any(x.endswith(".old") for x in names)
        found = checkpoint.latest(run)
        assert found.refused == [], found.refused
        assert found.step in (5, target), found.step
        save(run, model, optimizer, target, keep=1, metric=0.0)
        assert os.listdir(run / "checkpoints") == [f"step-{target:08d}"], os.listdir(run / "checkpoints")
        n += 1
step = 6

def for_ever():
    for s in range(step + 1, 10**6):
        save(run, model, optimizer, s, keep=2)

chance = random.Random(0)
for _ in range(int(sys.argv[3])):
    pid = child(for_ever)
    time.sleep(chance.uniform(0.02, 0.2))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    found = checkpoint.latest(run)
    assert found.refused == [] and found.step >= step, found
    step = found.step
    other, its = make(seed=1)
    assert checkpoint.restore(found, other, its) == step
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
out["last"] = step
print(json.dumps(out))
"""


def test_a_kill_at_any_moment_of_a_save_leaves_a_loadable_checkpoint(tmp_path):
    """At every file operation that Python makes, one by one, for new and replaced steps; then at random times."""
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(Path(__file__).parent), str(tmp_path / "run"), "10"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    out = json.loads(done.stdout)
    assert out["killed"] > 30 and out["leftover"] > 10 and out["old"] > 0, out
