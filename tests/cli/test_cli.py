"""The command line as a user meets it: what it prints, and one sentence for what it cannot do."""

import json

import pytest

from lpwm.cli import VERBS, main


def lpwm(capsys, *argv):
    """Exit status, stdout and stderr of a command, in this process."""
    try:
        status = main(list(argv))
    except SystemExit as stop:  # tyro's own refusals
        status = stop.code
    out = capsys.readouterr()
    return status, out.out, out.err


def test_help_names_every_verb(capsys):
    status, out, _ = lpwm(capsys, "--help")
    assert status == 0 and all(verb in out for verb in VERBS)
    assert lpwm(capsys)[0] == 2
    assert lpwm(capsys, "--version")[1].startswith("lpwm 0.")


def test_params_json_is_the_papers_table(capsys):
    status, out, _ = lpwm(capsys, "params", "--json")
    counts = json.loads(out)["predictor_parameters"]
    assert status == 0
    assert [counts[r]["384"] for r in counts] == [25804032, 5618432, 811840, 738048, 590208, 295296]
    _, out, _ = lpwm(capsys, "params", "--json", "--history", "1", "--widths", "384")
    counts = json.loads(out)["predictor_parameters"]
    assert [counts[r]["384"] for r in counts] == [25803264, 5617664, 480032, 443136, 295296, 295296]
    _, out, _ = lpwm(capsys, "params")
    row = next(line for line in out.splitlines() if line.startswith("Shallow"))
    assert row.split()[1:] == ["5.6M", "13.0M", "33.1M", "50.4M", "151.1M"]


def test_doctor(capsys):
    status, out, _ = lpwm(capsys, "doctor", "--json")
    findings = {f["what"]: f for f in json.loads(out)["findings"]}
    assert status == 0
    for world in ("piecewise", "wall", "two_room"):
        assert findings[f"world {world}"]["ok"]
    assert all(f["ok"] or f["remedy"] or f["what"] == "cuda" for f in findings.values())


def test_recipes_are_valid_and_priced(capsys):
    status, out, _ = lpwm(capsys, "recipes", "--json")
    rows = json.loads(out)
    assert status == 0 and "piecewise-2x2/lpwm" in rows
    assert all(r["cost"]["gpu_minutes"] > 0 for r in rows.values())


def test_runs_are_listed(capsys, tmp_path):
    line = "train tiny/lpwm --train.steps 4 --train.no-stop-dead --data.episodes 20 --device cpu"
    for seed in ("1", "2"):
        assert lpwm(capsys, *line.split(), "--train.seed", seed, "--out", str(tmp_path / seed), "--json")[0] == 0
    status, out, _ = lpwm(capsys, "runs", str(tmp_path), "--json")
    rows = json.loads(out)
    told = [(r["name"], r["world"], r["step"], r["steps"]) for r in rows]
    assert status == 0 and told == [("tiny/lpwm", "piecewise", 4, 4)] * 2
    assert rows[0]["error"] > 0 and rows[0]["age"] > rows[1]["age"] > 0  # the newest last
    status, out, _ = lpwm(capsys, "runs", str(tmp_path / "1"))
    assert status == 0 and "4/4" in out and max(map(len, out.splitlines())) <= 80
    assert "holds no runs" in lpwm(capsys, "runs", str(tmp_path / "3"))[2]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["trian"], "did you mean 'train'"),
        (["params", "--rungs", "mlplti"], "did you mean 'mlp-lti'"),
        (["params", "--widths", "0"], "positive"),
        (["train"], "which recipe"),
        (["train", "piecewise-2x2/lpmw"], "did you mean 'piecewise-2x2/lpwm'"),
        (["train", "tiny/lpwm", "--model.encoder.image_size", "17"], "not divisible"),
        (["train", "tiny/lpwm", "--objective.tj-weight", "0.1", "--model.link", "identity"], "non-negative link"),
        (["train", "tiny/lpwm", "--objective.rdmreg.p", "0"], "above 0"),
        (["train", "tiny/lpwm", "--model.predictor.history", "9"], "shorter history"),
        (["train", "tiny/lpwm", "--model.predictor.rung", "lti-1"], "unknown predictor"),
        (["train", "tiny/lpwm", "--model.latnet", "8"], "--model.latent"),
        (["train", "tiny/lpwm", "--data.world", "piecewis"], "did you mean 'piecewise'"),
        (["train", "tiny/lpwm", "--device", "tpu9"], "device"),
        (["train", "tiny/lpwm", "--train.batch", "1000000000"], "fits"),
        (["train", "--resume", "nowhere"], "nowhere does not exist: give the folder of a run"),
        (["train", "--resume", "."], "is not a run: it has no run.json"),
        (["train", "tiny/lpwm", "--out", "afile"], "cannot write afile"),
        (["report", "nowhere"], "nowhere does not exist"),
        (["report", "."], "is not a run: it has no run.json"),
        (["report", "afile"], "is not a run: it has no run.json"),
        (["eval", "holds"], "holds is not a run but holds 1: give their folders, for instance holds/a."),
        (["recipes", "nothing*"], "no recipe"),
    ],
)
def test_mistakes_are_one_sentence_without_a_traceback(capsys, tmp_path, monkeypatch, argv, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").write_text("")
    (tmp_path / "holds" / "a").mkdir(parents=True)
    (tmp_path / "holds" / "a" / "run.json").write_text("{}")
    status, out, err = lpwm(capsys, *argv)
    flat = " ".join((out + err).replace("│", " ").split())
    assert status == 2 and words in flat and "Traceback" not in flat
    assert not (tmp_path / "runs").exists()  # nothing was made
