"""The logger: one transfer, valid JSON, files that read as one run after a kill, and a line that fits."""

import io
import json
import math
import re
import sys
import time
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.summary.writer import event_file_writer
from tools import refused
from torch import Tensor

from lpwm.train.log import LOG, Logger, flatten, keep_until, read_log, to_host
from lpwm.train.progress import Progress, duration, progress_line


def quiet(folder, **options):
    return Logger(folder, **{"total_steps": 100, "tensorboard": False, "console": False, **options})


def lines(folder):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    text = (folder / LOG).read_text()
    assert text.endswith("\n") or not text
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_records(tmp_path):
    before = time.time()
    refused("there is no log", read_log, tmp_path)
    with quiet(tmp_path / "new" / "run") as logger:
        returned = logger.log(50, {"loss": torch.tensor(0.5), "lr": 1e-3, "steps_per_second": 7.0})
        assert len(lines(tmp_path / "new" / "run")) == 1  # on disk when log returns
        logger.log(50, {"error_depth": [0.1, 0.2], "note": "short", "clips": 8}, "val")
        logger.event(60, "resumed on [cpu]", at=60)
    assert returned == {"loss": 0.5, "lr": 1e-3, "steps_per_second": 7.0}
    train, val, event = lines(tmp_path / "new" / "run")
    assert all(before - 0.01 <= r.pop("time") <= time.time() + 0.01 for r in (train, val, event))
    assert train == {"step": 50, "kind": "train", "loss": 0.5, "lr": 0.001, "steps_per_second": 7.0}
    assert val == {"step": 50, "kind": "val", "error_depth": [0.1, 0.2], "note": "short", "clips": 8}
    assert event == {"step": 60, "kind": "event", "message": "resumed on [cpu]", "at": 60}
    assert read_log(tmp_path / "new" / "run", "val")[0].values["clips"] == 8


def test_not_finite_is_null_in_the_file_and_itself_in_the_record(tmp_path):
    with quiet(tmp_path) as logger:
        record = logger.log(1, {"loss": torch.tensor(math.nan), "x": math.inf, "list": torch.tensor([1.0, -math.inf])})
    assert math.isnan(record["loss"]) and record["x"] == math.inf
    (line,) = lines(tmp_path)
    assert line["loss"] is None and line["x"] is None and line["list"] == [1.0, None]
    values = torch.randn(200, generator=torch.Generator().manual_seed(0)).exp()
    with quiet(tmp_path) as logger:
        logger.log(1, {"values": values})
    assert torch.equal(torch.tensor(lines(tmp_path)[-1]["values"]), values)  # float32 survives the file


def test_one_transfer_per_log_call(tmp_path, monkeypatch):
    calls = []
    for name in ("tolist", "item", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__"):
        original = getattr(Tensor, name)

        def counted(self, *args, _name=name, _original=original, **kw):
            calls.append((_name, self.numel()))
            return _original(self, *args, **kw)

        monkeypatch.setattr(Tensor, name, counted)
    values = {f"m{i}": torch.tensor(float(i)) for i in range(20)}
    values |= {"half": torch.tensor(0.5, dtype=torch.bfloat16), "count": torch.tensor(2**40 + 1)}
    with Logger(tmp_path, total_steps=10, stream=io.StringIO()) as logger:  # with TensorBoard and console
        record = logger.log(1, {**values, "list": torch.arange(3.0), "number": 2.0})
    assert calls == [("tolist", 25)]
    assert record["m7"] == 7 and record["half"] == 0.5 and record["count"] == 2**40 + 1
    assert record["list"] == [0, 1, 2] and record["number"] == 2.0
    assert list(record)[:3] == ["m0", "m1", "m2"]


def test_matrices_are_refused_and_gradients_are_dropped():
    refused(r"'z' of shape \(2, 2\)", to_host, {"z": torch.zeros(2, 2)})
    assert to_host({"loss": torch.ones((), requires_grad=True)}) == {"loss": 1.0}
    assert to_host({"empty": torch.zeros(0)}) == {"empty": []}
    assert flatten({"x": [1, 2], "s": "no", "n": None, "b": True, "f": 0.5}) == {"x_1": 1, "x_2": 2, "b": 1, "f": 0.5}


def test_resume_reads_as_one_run(tmp_path):
    with quiet(tmp_path) as logger:
        for step in (10, 20, 30, 40):
            logger.log(step, {"loss": float(step)})
        logger.event(41, "dying")
    with (tmp_path / LOG).open("a") as file:
        file.write('3\n[20]\n{"step": 20}\n{"step": "20", "kind": "train"}\n{"kind": "train"}\n')  # no records
        file.write('{"step": 20, "kind": "tra')  # killed while writing
    assert [r.step for r in read_log(tmp_path)] == [10, 20, 30, 40, 41]
    with quiet(tmp_path, start_step=20) as logger:
        assert [r["step"] for r in lines(tmp_path)] == [10, 20]
        logger.log(30, {"loss": -1.0})
    assert [(r["step"], r["loss"]) for r in lines(tmp_path)] == [(10, 10), (20, 20), (30, -1)]
    assert [p.name for p in tmp_path.iterdir()] == [LOG]  # no temporary file stays
    with quiet(tmp_path) as logger:  # beginning anew
        logger.event(0, "begun")
    quiet(tmp_path).close()
    assert lines(tmp_path) == []


@settings(max_examples=15)
@given(steps=st.lists(st.integers(1, 30), max_size=8).map(sorted), resume=st.integers(1, 30), cut=st.integers(0, 60))
def test_any_kill_leaves_whole_records_up_to_the_resumed_step(tmp_path_factory, steps, resume, cut):
    path = tmp_path_factory.mktemp("log") / LOG
    whole = [json.dumps({"step": s, "time": 0.5, "kind": "train", "é": "π"}, ensure_ascii=False) for s in steps]
    data = "".join(line + "\n" for line in whole).encode()
    data = data[: max(0, len(data) - cut)]  # at any byte
    path.write_bytes(data)
    keep_until(path, resume)
    untorn = [raw.decode() for raw in data.split(b"\n") if raw.decode(errors="replace") in whole]
    want = [line for line in untorn if json.loads(line)["step"] <= resume]
    assert path.read_text().splitlines() == want
    assert path.read_bytes().endswith(b"\n") or not want


def test_tensorboard_reads_as_one_run(tmp_path, monkeypatch):
    # Its files of one second are read in the order of a counter as text: 10 before 9. A resumed run counts anew.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with quiet(tmp_path, tensorboard=True) as logger:
        for step in (10, 20, 30):
            logger.log(step, {"loss": float(step), "depth": [1.0, 2.0]})
    with quiet(tmp_path, tensorboard=True, start_step=20) as logger:
        logger.log(30, {"loss": -30.0})
        logger.log(30, {"error": 0.5}, "val")
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [(e.step, e.value) for e in board.Scalars("train/loss")] == [(10, 10), (20, 20), (30, -30)]
    assert {"train/depth_1", "train/depth_2", "val/error"} <= set(board.Tags()["scalars"])


def test_wandb_by_flag(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    refused(r"pip install 'lpwm\[wandb\]'", quiet, tmp_path / "none", wandb="project")
    assert not (tmp_path / "none").exists()

    calls = []

    class Run:
        def log(self, values, step):
            calls.append((step, values))

        def finish(self):
            calls.append("finish")

    fake = types.SimpleNamespace(init=lambda **options: calls.append(options) or Run())
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with quiet(tmp_path / "run-3f2a", wandb="project", config={"lam": 1.0}) as logger:
        logger.log(5, {"error": [0.1, 0.2]}, "val")
    options, logged, last = calls
    assert options["project"] == "project" and options["id"] == "run-3f2a" and options["resume"] == "allow"
    assert options["config"] == {"lam": 1.0}
    assert logged == (5, {"val/error_1": 0.1, "val/error_2": 0.2}) and last == "finish"


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def test_rate_and_eta(tmp_path):
    clock, out = Clock(), io.StringIO()
    logger = quiet(tmp_path, total_steps=1000, start_step=100, console=True, stream=out, clock=clock)
    clock.now += 10
    assert logger.log(150, {"loss": 1.0})["steps_per_second"] == pytest.approx(5)  # counted from the resumed step
    assert out.getvalue() == "150/1000  5/s  ETA 2:50  loss 1\n"
    logger.close()


def test_plain_lines_are_occasional(tmp_path):
    clock, out = Clock(), io.StringIO()
    logger = quiet(tmp_path, total_steps=100, console=True, stream=out, clock=clock)
    for step in range(1, 101):
        clock.now += 1
        logger.log(step, {"loss": 1.0})
        if step == 50:
            logger.event(step, "something [bold]happened[/bold]")
            logger.log(step, {"error_depth": [0.01, 0.2], "copy_error_depth": [0.1, 0.5]}, "val")
    logger.close()
    shown = out.getvalue().splitlines()
    steps = [line.split("/")[0] for line in shown if line.startswith(("1/", "31/", "61/", "91/", "100/"))]
    assert steps == ["1", "31", "61", "91", "100"]
    assert "something [bold]happened[/bold]" in shown
    assert "50/100  held-out  depth 1 err 0.01 copy 0.1  depth 2 err 0.2 copy 0.5" in shown
    assert len(shown) == 7 and "\x1b" not in out.getvalue()


NUMBERS = {
    "loss": 0.07654,
    "relative_error": 0.0213,
    "copy_error": 0.25,
    "effective_dimension": 7.41,
    "active_fraction": 0.51,
    "action_sensitivity": 1.3,
    "temporal_variation": 0.15,
    "dead_units": 0.0,
}


def test_the_line_fits_any_width_and_keeps_what_matters():
    full = progress_line(1200, 5000, 55.2, NUMBERS, 200)
    assert full == (
        "1200/5000  55/s  ETA 1:09  loss 0.0765  err 0.021  copy 0.25  dim 7.4  on 0.51  act 1.3  tv 0.15  dead 0"
    )
    assert progress_line(1200, 5000, 55.2, NUMBERS, 40) == "1200/5000  55/s  ETA 1:09  loss 0.0765"
    for width in range(1, 130):
        line = progress_line(123456, 5000000, 0.031, NUMBERS, width)
        assert len(line) <= width and line.isascii()
        if width >= 20:  # no number is cut in two
            parts = progress_line(123456, 5000000, 0.031, NUMBERS, 999).split("  ")
            assert line.split("  ") == parts[: len(line.split("  "))]
    assert progress_line(1, 10, math.nan, {"loss": math.nan}, 80) == "1/10  loss nan"
    assert [duration(s) for s in (0, 75, 3675, 200_000)] == ["0:00", "1:15", "1:01:15", "2d 7h"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("colors", [True, False])
def test_on_a_terminal_of_40_columns(monkeypatch, colors):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    if not colors:
        monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    progress = Progress(5000, 0, out, Clock())
    progress.show(1200, "train", {**NUMBERS, "steps_per_second": 55.2})
    progress.say("an event [of note]")
    progress.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "1200/5000  55/s  ETA 1:09  loss 0.0765" in text and "an event [of note]" in text
    assert all(len(line) <= 40 for line in re.split(r"[\r\n]", text))
    if not colors:
        assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|38|9[0-7])m", out.getvalue())
    assert out.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is shown again


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    progress = Progress(10, 0, out, Clock())
    progress.show(1, "train", {"loss": 1.0})
    assert out.getvalue() == "1/10  loss 1\n"  # at once, not when it closes
    progress.close()
    assert out.getvalue() == "1/10  loss 1\n"
