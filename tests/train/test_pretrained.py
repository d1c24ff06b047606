"""Models as folders and on the hub: the same function after a round trip, and one sentence for anything else."""

import json
import pickle
import re
import shutil
import sys
import types
from pathlib import Path

import huggingface_hub
import huggingface_hub.errors
import pytest
import torch
from safetensors.torch import load_file, save_file
from tools import Bomb, refused

from lpwm.core.errors import UserError
from lpwm.model import PAPER_RUNGS, EncoderConfig, ModelConfig, PredictorConfig, ProjectorConfig, WorldModel
from lpwm.optim.mup import initialize
from lpwm.train import checkpoint
from lpwm.worlds.base import WorldSpec

SPEC = WorldSpec("dots", {"zones": 2}, ("x", "y"), ("dx", "dy"), (-1.0, -1.0), (1.0, 1.0), frame=8, episode=50)
META = {"world": SPEC, "normalization": {"mean": [0.1, -0.2], "std": [0.3, 1.0]}, "frameskip": 2, "dataset": "abc123"}


def tiny(rung="mlp-lti", norm="batch", link="reprelu", proprio=0, seed=0):
    config = ModelConfig(
        latent=6,
        link=link,
        encoder=EncoderConfig(image_size=8, patch=4, width=8, depth=1, heads=1, head_dim=8, mlp=8, pixels="imagenet"),
        projector=ProjectorConfig(hidden=8, norm=norm),
        predictor=PredictorConfig(rung=rung, history=2, heads=1, head_dim=8, mlp=8, head_hidden=8, rank=2),
    )
    model = WorldModel(config, action_dim=4, proprio_dim=proprio)
    initialize(model, seed)
    return model


def outputs(model):
    g = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 256, (3, 2, 3, 8, 8), generator=g).to(torch.uint8)
    proprio = torch.randn(3, 2, model.proprio_dim, generator=g) if model.proprio_dim else None
    with torch.no_grad():
        z = model.encode(frames, proprio)
        return z, model.rollout(z, torch.randn(3, 5, 4, 4, generator=g), torch.randn(3, 1, 4, generator=g))


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(outputs(a), outputs(b), strict=True))


@pytest.mark.parametrize("rung", sorted(PAPER_RUNGS))
def test_round_trip_is_the_same_function(tmp_path, rung):
    model = tiny(rung, norm="batch" if "lti" in rung else "layer", proprio=2)
    model.train()
    model.encode(
        torch.randint(0, 256, (8, 3, 8, 8), generator=torch.Generator().manual_seed(1)).to(torch.uint8),
        torch.zeros(8, 2),
    )  # moves the running statistics
    assert model.save_pretrained(tmp_path / "m", META) == tmp_path / "m"
    assert {p.name for p in (tmp_path / "m").iterdir()} == {"model.safetensors", "config.json"}
    state = torch.get_rng_state()
    loaded = WorldModel.from_pretrained(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), state)
    assert not loaded.training and not any(m.training for m in loaded.modules())
    assert loaded.config == model.config
    assert (loaded.action_dim, loaded.proprio_dim, loaded.history) == (4, 2, model.history)
    assert same(loaded, model.eval())
    assert {n: t.dtype for n, t in loaded.state_dict().items()} == {n: t.dtype for n, t in model.state_dict().items()}


def test_meta_comes_back_and_goes_out_again(tmp_path):
    tiny().save_pretrained(tmp_path / "a", META)
    loaded = WorldModel.from_pretrained(str(tmp_path / "a"))
    meta = loaded.meta
    assert meta["world"]["name"] == "dots" and meta["world"]["options"] == {"zones": 2}
    assert meta["normalization"] == META["normalization"] and meta["frameskip"] == 2
    assert (meta["image_size"], meta["history"], meta["dataset"]) == (8, 2, "abc123")
    assert set(meta["versions"]) == {"lpwm", "torch", "python"}
    loaded.save_pretrained(tmp_path / "b")
    assert (tmp_path / "a/config.json").read_bytes() == (tmp_path / "b/config.json").read_bytes()
    tiny().save_pretrained(tmp_path / "c")
    bare = WorldModel.from_pretrained(tmp_path / "c").meta
    assert bare["world"] is None and bare["normalization"] is None and bare["run_hash"] is None


def test_meta_cannot_lie_about_the_model_and_must_be_json(tmp_path):
    tiny().save_pretrained(tmp_path / "a", {"action_dim": 99, "model": {}, "format": 0})
    assert WorldModel.from_pretrained(tmp_path / "a").action_dim == 4
    for bad in ({"x": torch.zeros(2)}, {"x": float("nan")}):
        refused("cannot be written as JSON", tiny().save_pretrained, tmp_path / "b", bad)
    assert list((tmp_path / "b").iterdir()) == []


def test_half_precision_models_are_stored_in_float32(tmp_path):
    model = tiny(norm="layer").bfloat16()
    model.save_pretrained(tmp_path / "a")
    stored = load_file(tmp_path / "a/model.safetensors")
    assert {t.dtype for t in stored.values()} == {torch.float32}
    assert all(torch.equal(t.float(), stored[n]) for n, t in model.state_dict().items())


def saved_run(folder, metrics):
    for step, metric in enumerate(metrics):
        checkpoint.save(
            folder, model=tiny(seed=step), step=step, run={"seed": 1}, run_hash="cafe", meta=META, metric=metric, keep=9
        )


def test_run_folders_and_checkpoints(tmp_path):
    saved_run(tmp_path, [3.0, 1.0, 2.0])
    for path in (tmp_path, tmp_path / "checkpoints", tmp_path / "checkpoints/step-00000002"):
        assert same(WorldModel.from_pretrained(path), tiny(seed=2).eval())
    best = WorldModel.from_pretrained(tmp_path, checkpoint="best")
    assert same(best, tiny(seed=1).eval()) and best.meta["run_hash"] == "cafe"
    copy = shutil.copytree(tmp_path / "checkpoints/step-00000000", tmp_path / "any name")
    assert same(WorldModel.from_pretrained(copy), tiny(seed=0).eval())
    refused("unknown checkpoint 'newest'", WorldModel.from_pretrained, tmp_path, checkpoint="newest")


def test_a_damaged_checkpoint_is_named_and_the_previous_one_used(tmp_path):
    saved_run(tmp_path, [3.0, 1.0, 2.0])
    newest = tmp_path / "checkpoints/step-00000002"
    data = (newest / "model.safetensors").read_bytes()
    (newest / "model.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.warns(UserWarning, match=r"step-00000002 is refused.*altered.*; step-00000001 is used"):
        assert same(WorldModel.from_pretrained(tmp_path), tiny(seed=1).eval())
    refused("altered", WorldModel.from_pretrained, newest)


def test_checkpoints_are_not_overwritten(tmp_path):
    saved_run(tmp_path, [1.0])
    refused("never overwritten", tiny().save_pretrained, tmp_path / "checkpoints/step-00000000")
    (tmp_path / "file").write_text("")
    refused("is a file", tiny().save_pretrained, tmp_path / "file")


def test_saving_again_replaces_and_leaves_strangers_alone(tmp_path):
    tiny(seed=0).save_pretrained(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".tmp-other").mkdir()
    (tmp_path / ".lpwm-tmp-model-1").mkdir()  # a killed process
    tiny(seed=1).save_pretrained(tmp_path)
    assert same(WorldModel.from_pretrained(tmp_path), tiny(seed=1).eval())
    assert sorted(p.name for p in tmp_path.iterdir()) == [".tmp-other", "config.json", "model.safetensors", "notes.txt"]


def test_a_pickle_in_disguise_is_refused_and_not_run(tmp_path):
    target = tmp_path / "ran"
    model = tiny()
    model.save_pretrained(tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    del config["files"]  # no checksum to save us
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    torch.save({"a": Bomb(target)}, tmp_path / "zip")
    for data in (pickle.dumps(Bomb(target)), (tmp_path / "zip").read_bytes(), b""):
        (tmp_path / "m/model.safetensors").write_bytes(data)
        refused("not a whole safetensors file", WorldModel.from_pretrained, tmp_path / "m")
        assert not target.exists()
    (tmp_path / "m/model.safetensors").unlink()
    refused(r"model\.safetensors is missing", WorldModel.from_pretrained, tmp_path / "m")


def edited(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config = {k: v for k, v in {**config, **changes}.items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": ...}, "is not of an LpWM world model"),
        ({"format": 7}, "upgrade lpwm"),
        ({"model": ...}, "model is missing"),
        ({"action_dim": ...}, "action_dim is missing"),
        ({"action_dim": "4"}, "action_dim = '4' must be of type int"),
        ({"action_dim": True}, "action_dim = True must be of type int"),
        ({"proprio_dim": -1}, "proprio_dim = -1"),
        ({"action_dim": 0}, "at least one action"),
        ({"model": 3}, "model = 3 must be an object"),
        ({"model": {"latnt": 6}}, "unknown field 'latnt'"),
        ({"model": {"link": "no"}}, "unknown link 'no'"),
        ({"action_dim": 5}, "has shape"),
        ({"model": {"latent": 10**7}}, "different configurations"),  # before it is allocated
        ({"files": {"model.safetensors": {"bytes": 1, "sha256": ""}}}, "not what was written"),
    ],
)
def test_foreign_and_incomplete_configs_are_one_sentence(tmp_path, changes, words):
    tiny().save_pretrained(tmp_path)
    edited(tmp_path, **changes)
    refused(re.escape(words), WorldModel.from_pretrained, tmp_path)


def test_weights_of_another_model_are_refused(tmp_path):
    tiny().save_pretrained(tmp_path)
    edited(tmp_path, files=...)
    weights = load_file(tmp_path / "model.safetensors")
    weights["intruder"] = torch.zeros(1)
    save_file(weights, tmp_path / "model.safetensors")
    refused("has 'intruder', which the model lacks", WorldModel.from_pretrained, tmp_path)


def test_places_and_devices_that_do_not_exist(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.pt").write_bytes(b"")
    for path, words in [
        (tmp_path / "empty", "holds no model"),
        (tmp_path / "model.pt", "is a file: give the folder"),
        (tmp_path / "nowhere", "there is no folder"),
        ("./nowhere/at", "there is no folder"),
        ("a/b/c", "there is no folder"),
    ]:
        refused(words, WorldModel.from_pretrained, path)
    tiny().save_pretrained(tmp_path / "m")
    refused("unknown device 'gpu'", WorldModel.from_pretrained, tmp_path / "m", device="gpu")
    if not torch.cuda.is_available():
        refused("sees no GPU", WorldModel.from_pretrained, tmp_path / "m", device="cuda")


# The hub, without a network: its three functions are replaced.


def test_a_hub_name_is_downloaded_without_anything_that_could_be_code(tmp_path, monkeypatch):
    tiny(seed=3).save_pretrained(tmp_path / "cache", META)
    calls = []

    def snapshot_download(repo_id, **options):
        calls.append((repo_id, options))
        return str(tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    model = WorldModel.from_pretrained("someone/dots", revision="v1")
    assert same(model, tiny(seed=3).eval()) and model.meta["frameskip"] == 2
    ((repo_id, options),) = calls
    assert repo_id == "someone/dots" and options["revision"] == "v1"
    assert set(options["allow_patterns"]) == {"*.safetensors", "*.json", "*.md"}
    (tmp_path / "someone").mkdir()
    tiny(seed=4).save_pretrained(tmp_path / "someone/dots")  # a folder of this name comes first
    assert same(WorldModel.from_pretrained("someone/dots"), tiny(seed=4).eval())
    assert len(calls) == 1


def uploaded(monkeypatch, model, **options):
    """What would be on the hub: {file: bytes}, and the calls."""
    files, calls = {}, {}

    def create_repo(repo_id, **given):
        calls["create"] = (repo_id, given)
        return f"https://hub.invalid/{repo_id}"

    def upload_folder(*, repo_id, folder_path, **given):
        calls["upload"] = (repo_id, given)
        files.update({p.name: p.read_bytes() for p in Path(folder_path).iterdir()})

    monkeypatch.setattr(huggingface_hub, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub, "upload_folder", upload_folder)
    url = model.push_to_hub("someone/dots", **options)
    assert url == "https://hub.invalid/someone/dots"
    return files, calls


def test_what_would_be_uploaded(tmp_path, monkeypatch):
    tiny(seed=5).save_pretrained(tmp_path / "m", META)
    model = WorldModel.from_pretrained(tmp_path / "m")
    files, calls = uploaded(monkeypatch, model, private=True, token="t", commit_message="first")
    assert set(files) == {"model.safetensors", "config.json", "README.md"}
    assert calls["create"][0] == calls["upload"][0] == "someone/dots"
    assert calls["create"][1]["private"] is True and calls["create"][1]["exist_ok"] is True
    assert calls["upload"][1]["commit_message"] == "first"
    assert calls["create"][1]["token"] == calls["upload"][1]["token"] == "t"
    for name, data in files.items():
        (tmp_path / "back").mkdir(exist_ok=True)
        (tmp_path / "back" / name).write_bytes(data)
    assert same(WorldModel.from_pretrained(tmp_path / "back"), model)


def test_the_card_states_what_the_config_says_and_its_snippet_names_the_model(monkeypatch):
    files, _ = uploaded(monkeypatch, tiny(), meta=META)
    text = files["README.md"].decode()
    card = huggingface_hub.ModelCard(text)
    assert card.data.library_name == "lpwm" and card.data.license == "mit"
    assert {"world-model", "sparse"} <= set(card.data.tags)
    cells = dict(re.findall(r"^\| ([^|]+) \| (.+) \|$", text, re.MULTILINE))
    assert cells["model.latent"] == "6" and cells["model.link"] == "reprelu" and cells["world.name"] == "dots"
    assert cells["frameskip"] == "2" and cells["normalization.std"] == "[0.3, 1.0]"
    assert cells["parameters"] == f"{sum(p.numel() for p in tiny().parameters()):,}"
    assert 'WorldModel.from_pretrained("someone/dots")' in text
    assert "%" not in text and "accuracy" not in text
    dense, _ = uploaded(monkeypatch, tiny(link="identity"), license="apache-2.0")
    data = huggingface_hub.ModelCard(dense["README.md"].decode()).data
    assert "sparse" not in data.tags and data.license == "apache-2.0"
    bare = dict(re.findall(r"^\| ([^|]+) \| (.+) \|$", dense["README.md"].decode(), re.MULTILINE))
    assert "None" not in " ".join(bare.values()) and "world.name" not in bare and "frameskip" not in bare


def hub_error(kind, status=None):
    """An error as the hub's library would raise it, made without its constructor, which differs by version."""
    cls = getattr(huggingface_hub.errors, kind)
    error = cls.__new__(cls)
    error.args = ("first line\nRequest ID: 1\n\nmore",)
    if status is not None:
        error.response = types.SimpleNamespace(status_code=status, headers={}, request=None)
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (hub_error("RepositoryNotFoundError", 401), "no such model, or it is private"),
        (hub_error("RevisionNotFoundError", 404), "no such revision"),
        (hub_error("GatedRepoError", 403), "grant you access"),
        (hub_error("HfHubHTTPError", 401), "token was refused"),
        (hub_error("HfHubHTTPError", 503), "status 503"),
        (hub_error("LocalEntryNotFoundError"), "cannot be reached"),
        (hub_error("OfflineModeIsEnabled"), "cannot be reached"),
        (hub_error("LocalTokenNotFoundError"), "not logged in"),
        (ConnectionError("nodename nor servname"), "cannot be reached"),
        (TimeoutError(), "cannot be reached"),
    ],
)
def test_a_failure_of_the_hub_is_one_sentence(monkeypatch, tmp_path, error, words):
    def fail(*_, **__):
        raise error

    monkeypatch.chdir(tmp_path)
    for name in ("snapshot_download", "create_repo", "upload_folder"):
        monkeypatch.setattr(huggingface_hub, name, fail)
    for act in (lambda: WorldModel.from_pretrained("someone/dots"), lambda: tiny().push_to_hub("someone/dots")):
        with pytest.raises(UserError, match=words) as caught:
            act()
        assert "\n" not in str(caught.value) and "'someone/dots'" in str(caught.value)


def test_the_real_library_says_it_too_for_a_bad_name():
    refused("no valid name", tiny().push_to_hub, "not a/valid/name")


def test_a_missing_library_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    refused("pip install huggingface_hub", WorldModel.from_pretrained, "someone/dots")
