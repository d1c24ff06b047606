"""The command line as a user meets it: what it prints, and one sentence for what it cannot do."""

import importlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools import refused

from lpwm import worlds
from lpwm.cli import PARTS, VERBS, main
from lpwm.cli.collect import parse_options
from lpwm.cli.help import parse_args
from lpwm.cli.terminal import plain, tell
from lpwm.core.errors import UserError
from lpwm.data import collect, read
from lpwm.train import Run


def lpwm(capsys, *argv):
    """Exit status, stdout and stderr of a command, in this process."""
    status = main(list(argv))
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


def test_runs_are_listed_and_compared(capsys, tmp_path):
    line = "train tiny/lpwm --train.steps 4 --train.no-stop-dead --data.episodes 20 --device cpu"
    for seed, name in (("1", "tiny/lpwm"), ("2", "\x1b[31mred")):
        more = ["--train.seed", seed, "--out", str(tmp_path / seed), "--name", name, "--json"]
        assert lpwm(capsys, *line.split(), *more)[0] == 0
    status, out, _ = lpwm(capsys, "runs", str(tmp_path), "--json")
    rows = json.loads(out)
    told = [(r["name"], r["world"], r["step"], r["steps"]) for r in rows]
    assert status == 0 and told == [("tiny/lpwm", "piecewise", 4, 4), ("\x1b[31mred", "piecewise", 4, 4)]
    assert rows[0]["error"] > 0 and rows[0]["age"] > rows[1]["age"] > 0  # the newest last
    first, last = (
        Run.open(tmp_path / "1" / Path(rows[0]["folder"]).name).summary().splitlines()
    )  # what training ends with
    assert first.endswith(" % of the units on") and "(copying the frame: " in last and len(last) <= 80
    few = ["--preset", "quick", "--goals", "random", "--episodes", "2", "--budgets", "10", "--device", "cpu"]
    assert lpwm(capsys, "eval", rows[0]["folder"], *few)[0] == 0
    status, out, _ = lpwm(capsys, "runs", str(tmp_path))
    assert status == 0 and "4/4" in out and " %" in out and max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out and "[31mred" in out  # what comes from files loses its control characters
    assert "\n1/tiny-lpwm-" in out and "…" not in out  # a folder is there to be copied, whole
    status, out, _ = lpwm(capsys, "runs", *(r["folder"] for r in rows))
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:] if line[:1].strip()}
    assert status == 0 and lines["train.seed"] == ["1", "2"] and "train.batch" not in lines and "error" in lines
    assert max(map(len, out.splitlines())) <= 80 and "\x1b" not in out
    assert "holds no runs" in lpwm(capsys, "runs", str(tmp_path / "3"))[2]
    (Path(rows[1]["folder"]) / "run.json").write_text("{")  # one damaged run does not hide the others
    status, out, err = lpwm(capsys, "runs", str(tmp_path))
    assert status == 1 and "\n1/tiny-lpwm-" in out and "\n2/" not in out and err.startswith("lpwm: left out: ")


def test_only_one_place_prints():
    import lpwm.cli

    folder = Path(lpwm.cli.__file__).parent
    assert [p.name for p in folder.glob("*.py") if re.search(r"(?<![\w.])print\(", p.read_text())] == ["terminal.py"]
    assert plain("a\tb\nc\x1b]0;title\x07\x9b31m\r\u202ed") == "a\tb\nc]0;title31md"


def test_sentences_break_between_words_on_a_terminal_only(monkeypatch):
    sentence = "lpwm: " + "a goal of 25 raw steps is longer than the held-out trajectories, " * 3
    for terminal in (True, False):
        stream = io.StringIO()
        stream.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("COLUMNS", "80")
        tell(f"  err, copy   short lines stay\n{sentence.strip()}")
        first, *lines = stream.getvalue().splitlines()
        assert first == "  err, copy   short lines stay" and " ".join(map(str.strip, lines)) == sentence.strip()
        assert (max(map(len, lines)) <= 80) == terminal


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a data set, half of one, a file and a folder of runs."""
    folder = tmp_path_factory.mktemp("place")
    collect(worlds.make("piecewise"), folder / "a.h5", episodes=8, steps=30)
    (folder / "cut.h5").write_bytes((folder / "a.h5").read_bytes()[:3000])
    (folder / "afile").write_text("")
    (folder / "holds" / "a").mkdir(parents=True)
    (folder / "holds" / "a" / "run.json").write_text("{}")
    (folder / "loop").symlink_to("loop")
    return folder


TINY, COLLECT = "train tiny/lpwm ", "collect piecewise --episodes 2 --out new.h5 "
MISTAKES = [
    ("trian", "did you mean 'train'"),
    ("params --rungs mlplti", "did you mean 'mlp-lti'"),
    ("params --widths 0", "positive"),
    ("train", "which recipe"),
    ("train piecewise-2x2/lpmw", "did you mean 'piecewise-2x2/lpwm'"),
    (TINY + "--model.encoder.image_size 17", "not divisible"),
    (TINY + "--objective.tj-weight 0.1 --model.link identity", "non-negative link"),
    (TINY + "--objective.rdmreg.p 0", "above 0"),
    (TINY + "--model.predictor.history 9", "shorter history"),
    (TINY + "--model.predictor.rung lti-1", "unknown predictor"),
    (TINY + "--model.latnet 8", "--model.latent"),
    (TINY + "--train.steps many", "--train.steps: invalid literal for int()"),
    (TINY + "--train.steps", "Missing value for argument '--train.steps'"),
    (TINY + "--data.world piecewis", "did you mean 'piecewise'"),
    (TINY + "--data.file none", "does not exist"),
    (TINY + "--device tpu9", "device"),
    (TINY + "--train.batch 1000000000", "fits"),
    (TINY + "--out afile", "cannot write afile"),
    ("train --resume nowhere", "nowhere does not exist: give the folder of a run"),
    ("train --resume .", "is not a run: it has no run.json"),
    ("report nowhere", "nowhere does not exist"),
    ("collect piecewise --episodes 2 --out=", ". is a folder"),
    ("report .", "is not a run: it has no run.json"),
    ("report afile", "is not a run: it has no run.json"),
    ("eval holds", "holds is not a run but holds 1: give their folders, for instance holds/a."),
    ("recipes nothing*", "no recipe"),
    ("demo --out afile/out", "afile"),
    ("theory --sizes 1", "two grids"),
    ("theory --states 5", "100 states"),
    ("theory --states 1000000000000000", "more memory than there is"),
    ("eval loop", "Symlink loop"),
    ("collect piecewize --episodes 2 --out new.h5", "did you mean 'piecewise'"),
    ("collect piecewise --episodes 0 --out new.h5", "episodes is 0"),
    ("collect piecewise --episodes 2 --out afile/a.h5", "cannot write"),
    (COLLECT + "--size 32", "needs --pixels"),
    (COLLECT + "--pixels --size 2", "size is 2"),
    (COLLECT + "--options h=3", "no option 'h'"),
    (COLLECT + "--options g=three", "g as int"),
    (COLLECT + "--options g", "name=value"),
    (COLLECT + "--policy nobody", "unknown policy"),
    (COLLECT + "--workers 0", "workers is 0"),
    (COLLECT + "--steps 0", "steps is 0"),
    ("data info none.h5", "does not exist"),
    ("data info cut.h5", "damaged or incomplete"),
    ("data convert a.h5 x.h5 --size 32", "needs frames"),
    ("data convert a.h5 x.h5 --add-pixels --size 1000000", "of memory that are free"),
    ("data convert . x.h5", "2 data sets (a.h5, cut.h5): name one"),
    ("data convert holds x.h5", "folder without a data set"),
    ("data convert a.h5 x.h5 --add-pixels --remove-pixels", "one of --add-pixels"),
]


@pytest.mark.parametrize(("line", "words"), MISTAKES)
def test_mistakes_are_one_sentence_without_a_traceback(capsys, place, monkeypatch, line, words):
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    status, out, err = lpwm(capsys, *line.split())
    assert status == 2 and not out and words in err and err.startswith("lpwm: ") and err.count("\n") == 1
    assert sorted(place.rglob("*")) == before  # nothing was made


def test_collect_writes_one_line_and_the_file(tmp_path, capsys):
    out = tmp_path / "new" / "a.h5"
    line = f"collect piecewise --episodes 4 --steps 6 --out {out} --seed 2 --pixels --size 16"
    line += " --options g=3 visible=true"
    status, said, err = lpwm(capsys, *line.split())
    data = read(out)
    assert status == 0 and said.count("\n") == 1 and data.digest in said and err == ""
    assert data.episodes == 4 and data.steps == 24 and data.pixels.shape == (28, 16, 16, 3)
    assert data.spec.options == {"g": 3, "scale": 2.0, "visible": True} and data.attributes["seed"] == 2
    assert "--overwrite" in lpwm(capsys, *line.split())[2]
    assert json.loads(lpwm(capsys, *line.split(), "--overwrite", "--json")[1])["digest"] == data.digest
    given = ("g=3", "scale=1.5", "name=a=b", "old=False", "xs=[1, 2]")
    assert parse_options(given) == {"g": 3, "scale": 1.5, "name": "a=b", "old": False, "xs": [1, 2]}


def test_data_info(place, tmp_path, capsys):
    status, said, _ = lpwm(capsys, "data", "info", str(place / "a.h5"), "--pictures", str(tmp_path / "a.png"))
    for expected in (
        "piecewise g=2",
        "8 of 31 frames, 240 steps",
        read(place / "a.h5").digest,
        "coverage",
        "at the end",
    ):
        assert status == 0 and expected in said
    assert (tmp_path / "a.png").stat().st_size > 1000
    info = json.loads(lpwm(capsys, "data", "info", str(place / "a.h5"), "--json")[1])
    assert info["steps"] == 240 and "dataset goals, nothing" in info["controls"]


def test_outputs_go_where_they_were_asked_to(capsys, tmp_path, monkeypatch):
    """Nothing is written into the package, and no file that lpwm did not make is replaced without being told."""
    from matplotlib.figure import Figure

    from lpwm.core.files import PACKAGE
    from lpwm.report import figures

    packaged = PACKAGE / "assets" / "pretrained"
    before = sorted(packaged.rglob("*"))
    for more in (["--goals", "random"], [], ["--out", str(packaged / "lpwm" / "a.json")]):
        status, _, err = lpwm(capsys, "eval", str(packaged / "lpwm"), "--preset", "quick", *more, "--device", "cpu")
        assert status == 2 and "inside the installed package" in err and err.count("\n") == 1
    assert sorted(packaged.rglob("*")) == before
    make = {name: lambda: Figure(figsize=(1, 1)) for name in ("slopes", "borders")}
    for name in ("slopes.png", "borders.pdf"):
        (tmp_path / name).write_text("years of work")
        refused(f"{name} was not made by lpwm.*--overwrite", figures.save, tmp_path, make, overwrite=False)
        assert (tmp_path / name).read_text() == "years of work"
        if name != "borders.pdf":
            (tmp_path / name).unlink()
    assert len(figures.save(tmp_path, make, overwrite=True)) == 4
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
    (tmp_path / "slopes.png").unlink()
    refused("slopes.png: the disk is full", figures.save, tmp_path, make, overwrite=False)
    assert not (tmp_path / "slopes.png").exists()  # no picture of 0 bytes under its name


HELP = [
    [*words.split(), "--help"]
    for words in (*VERBS, *PARTS, "paper params", "data info", "data convert", "sweep status")
]
ALL = [name for name, verb in VERBS.items() if not verb.parts and name != "train"]
OTHER = [
    *(["--help"], ["--version"], ["train", "piecewise-2x2-small/lpwm", "--help"]),
    *([*words.split(), "--help-all"] for words in ("train piecewise-2x2-small/lpwm", *ALL)),
]
LOOK = """
import contextlib, io, json, sys
from lpwm.cli import main
shown = []
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            status = main(words)
        except SystemExit as stop:
            status = stop.code or 0
    shown.append((status, out.getvalue(), "torch" in sys.modules))
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def shown():
    """What every help prints, by its words; all in one process, which imports torch for none of them."""
    env, lines = os.environ | {"COLUMNS": "80"}, HELP + OTHER
    done = subprocess.run(
        [sys.executable, "-c", LOOK], input=json.dumps(lines), capture_output=True, text=True, env=env, check=True
    )
    answers = json.loads(done.stdout)
    wrong = [words for words, (status, _, torch) in zip(lines, answers, strict=True) if status or torch]
    assert not wrong, f"fails, or imports torch: {wrong[0]}"
    return {" ".join(words): out for words, (_, out, _) in zip(lines, answers, strict=True)}


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_is_short_and_needs_no_torch(shown, words):
    lines = shown[" ".join(words)].splitlines()
    assert len(lines) <= 45 and max(map(len, lines)) <= 80 and any("usage" in line for line in lines)


def test_help_shows_the_defaults_in_force_and_all_of_them_when_told(shown):
    assert "50 100" in " ".join(shown["eval --help"].split()) and "--once" in shown["sweep status --help"]
    short = " ".join(shown["train piecewise-2x2-small/lpwm --help"].replace("│", "").split())
    assert "--train.steps INT of the optimizer (default: 2500)" in short and "deep-adaln, shallow-adaln" in short
    assert "--help-all" in short and "--optim.eps" not in short
    everything = " ".join(shown["train piecewise-2x2-small/lpwm --help-all"].split())
    assert "--optim.eps FLOAT" in everything and "--train.steps INT of the optimizer (default: 2500)" in everything
    assert "--planner-seeds INT Each plans all episodes anew. (default: 3)" in " ".join(
        shown["eval --help-all"].split()
    )
    for words, out in shown.items():
        assert max(map(len, out.splitlines())) <= 80 and "None" not in out, words


def test_the_parser_takes_every_option_that_help_all_lists(shown):
    for verb in ("demo", "collect", "train", "eval", "interpret", "report", "sweep"):
        words = next(words for words in shown if words.split()[0] == verb and words.endswith("--help-all"))
        listed = re.findall(r"^  (--[\w.-]+)", shown[words], re.M)
        assert len(listed) > 5
        for option in listed:
            with pytest.raises(UserError) as refusal:  # a value is missing, or what follows is not known
                parse_args(importlib.import_module(f"lpwm.cli.{VERBS[verb].module}").Args, [option, "--bogus"], verb)
            assert f"Unrecognized options: {option}" not in str(refusal.value), option


def test_parts_of_the_paper_are_verbs_too(capsys):
    outs = []
    for argv in (["params", "--json"], ["paper", "params", "--json"]):
        assert main(argv) == 0
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1]
    assert main(["paper", "parms"]) == 2 and "did you mean 'params'" in capsys.readouterr().err
    assert main(["paper"]) == 2
