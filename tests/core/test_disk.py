"""Errors of the file system, one by one: each is a sentence that names the file and what to do."""

import errno
import os
import shutil

import pytest

from lpwm.cli import main
from lpwm.cli.terminal import plain
from lpwm.core import files
from lpwm.core.errors import UserError
from lpwm.core.lock import one_writer
from lpwm.core.provenance import read_log, sessions
from lpwm.train.log import Logger

ERRORS = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EFBIG: "exceed a size limit; free some space",
    errno.EROFS: "read-only file system; choose a folder you may write to",
    errno.EACCES: "permission denied; choose a folder you may write to",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.ENOENT: "its folder is gone; put it back, or run the command again",
    errno.EIO: "check the disk, then run the command again",
}


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_each_names_the_file_and_what_to_do(code, tmp_path, monkeypatch):
    def fail(path, content):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, "_write", fail)
    with pytest.raises(UserError, match=f"cannot write .*a.json: .*{ERRORS[code]}"):
        files.write_whole(tmp_path / "a.json", "text")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_gone_is_noticed_by_its_log_and_by_its_writer(tmp_path):
    folder = tmp_path / "run"
    with one_writer(folder, "a training") as writer, Logger(folder, total_steps=9, tensorboard=False) as log:
        log.log(1, {"loss": 1.0})
        shutil.rmtree(folder)
        for write in (lambda: log.log(2, {"loss": 1.0}), writer.check):
            with pytest.raises(UserError, match=f"cannot write {folder}.*: its folder is gone"):
                write()
    assert not folder.exists()


@pytest.mark.parametrize("words", (["runs"], ["collect", "piecewise", "--episodes", "1", "--out"]))
def test_names_that_are_too_long_or_no_text(words, capsys):
    for name, said in (("n" * 300, "too long"), (os.fsdecode(b"caf\xe9"), r"caf\udce9 is not UTF-8")):
        assert main([*words, name]) == 2
        told = capsys.readouterr().err
        assert said in told and told.count("\n") == 1
    assert plain("\udce9\x1b[31m") == r"\udce9[31m"


def test_a_log_that_another_process_took_over_gets_nothing_more(tmp_path):
    with Logger(tmp_path, total_steps=9, tensorboard=False) as mine:
        mine.log(1, {"loss": 1.0})
        with Logger(tmp_path, total_steps=9, start_step=1, tensorboard=False) as other:
            with pytest.raises(UserError, match="taken over by another process"):
                mine.log(2, {"loss": 2.0})
            other.log(2, {"loss": 3.0})
    assert [record.number("loss") for record in read_log(tmp_path)] == [1.0, 3.0]


def test_pipes_are_not_waited_for_and_not_replaced(tmp_path):
    for name in ("log.jsonl", "training.json"):
        os.mkfifo(tmp_path / name)
    for check in (files.check_output, files.refuse_existing):
        with pytest.raises(UserError, match="not a regular file"):
            check(tmp_path / "log.jsonl", True)
    with pytest.raises(UserError, match="not a regular file"):
        read_log(tmp_path)
    assert sessions(tmp_path) == []
