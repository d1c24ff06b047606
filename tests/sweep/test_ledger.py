"""The ledger: one owner, one record, whoever dies and whenever."""

import hashlib
import json
import multiprocessing
import os
import random
import signal
import time

import pytest

from lpwm.core import files
from lpwm.sweep import ledger as module
from lpwm.sweep.ledger import Ledger

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger", lease=5.0).open()
    made.add({"aa": {"hash": "aa"}, "bb": {"hash": "bb"}})
    return made


def test_a_cell_has_one_owner_and_one_record(ledger):
    claim = ledger.claim("aa")
    assert claim is not None and ledger.claim("aa") is None
    assert ledger.status("aa").state == "running" and ledger.status("bb").state == "waiting"
    assert claim.done({"x": 1}, {"run": "runs/a"})
    assert ledger.status("aa").state == "done" and ledger.claim("aa") is None
    record = ledger.record("aa")
    assert record.result == {"x": 1} and record.files == {"run": "runs/a"} and record.cell == {"hash": "aa"}
    assert record.attempt == 1 and record.pid == os.getpid() and record.lpwm and record.seconds >= 0
    assert ledger.add({"aa": {}, "cc": {}}) == 1  # a cell that is done stays done
    assert ledger.status("aa").state == "done" and ledger.names() == ["aa", "bb", "cc"]


def test_a_failed_cell_says_why_and_waits_only_when_asked(ledger):
    ledger.claim("aa").failed("the disk is full.", "Traceback …")
    status = ledger.status("aa")
    assert (status.state, status.why) == ("failed", "the disk is full.") and ledger.claim("aa") is None
    assert ledger.retry("aa") and not ledger.retry("bb")
    assert ledger.status("aa").state == "waiting"
    again = ledger.claim("aa")
    assert again.attempt == 3 and again.done({})
    assert [a.state for a in ledger.attempts("aa")] == ["failed", "reset", "done"]
    assert ledger.attempts("aa")[0].detail == "Traceback …"
    ledger.claim("bb").release()
    assert ledger.status("bb").state == "waiting" and ledger.claim("bb").attempt == 2


def died(ledger, name):
    """A process that takes the cell and is killed."""
    ready = FORK.Event()

    def hold():
        ledger.claim(name)
        ready.set()
        time.sleep(60)

    process = FORK.Process(target=hold)
    process.start()
    ready.wait(10)
    assert ledger.status(name).state == "running" and ledger.claim(name) is None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def test_the_dead_lose_their_claim_and_three_deaths_are_a_failure(ledger):
    for _ in range(3):
        assert ledger.status("aa").state == "waiting"
        died(ledger, "aa")
    status = ledger.status("aa")
    assert status.state == "failed" and "died 3 times" in status.why
    assert ledger.retry("aa") and ledger.status("aa").state == "waiting"


def test_a_process_number_used_again_is_not_the_owner(ledger):
    claim = ledger.claim("aa")
    content = json.loads(claim.path.read_text())
    claim.path.write_text(json.dumps({**content, "born": "1"}))
    assert ledger.status("aa").state == "waiting"


def elsewhere(ledger, monkeypatch, name):
    """A claim of another machine, whose processes cannot be seen from here."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "machine", lambda: "another machine")
        return ledger.claim(name)


def test_another_machine_keeps_its_claim_while_its_heart_beats(ledger, monkeypatch):
    claim = elsewhere(ledger, monkeypatch, "aa")
    assert ledger.status("aa").state == "running"
    old = time.time() - 2 * ledger.lease
    os.utime(claim.path, (old, old))
    assert ledger.status("aa").state == "waiting"
    assert claim.touch() and ledger.status("aa").state == "running"  # it was only slow
    os.utime(claim.path, (old, old))
    mine = ledger.claim("aa")
    assert mine.attempt == 2 and not claim.touch() and mine.touch()


def test_who_was_asleep_cannot_write_a_second_record(ledger, monkeypatch):
    slow = elsewhere(ledger, monkeypatch, "aa")
    os.utime(slow.path, (0, 0))
    fast = ledger.claim("aa")
    assert fast.done({"by": "fast"}) and not slow.done({"by": "slow"})
    assert ledger.record("aa").result == {"by": "fast"}
    slow = elsewhere(ledger, monkeypatch, "bb")
    os.utime(slow.path, (0, 0))
    fast = ledger.claim("bb")
    assert slow.done({"by": "slow"}) and not fast.done({"by": "fast"})  # the first one stands
    assert ledger.record("bb").result == {"by": "slow"} and ledger.status("bb").state == "done"


def test_a_heart_beats_and_tells_when_the_cell_is_lost(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "l", lease=0.3).open()
    ledger.add({"aa": {}})
    claim, lost = elsewhere(ledger, monkeypatch, "aa"), []
    with claim.beating(lambda: lost.append(1)):
        time.sleep(1.0)
        assert ledger.status("aa").state == "running" and not lost
        module._once(ledger._claim_path("aa", 2), module.ClaimRecord(state="reset"))
        time.sleep(0.4)
    assert lost == [1]


# Kills -------------------------------------------------------------------------------------------------------


def slow_write(path, content):
    """Writes in three pieces, so that a kill often falls between them. A marked writer stops in one of its writes."""
    stop = MARKED is not None and MARKED.skip == 0
    if MARKED is not None:
        MARKED.skip -= 1
    with path.open("wb") as file:
        for i in range(3):
            file.write(content[i * len(content) // 3 : (i + 1) * len(content) // 3])
            file.flush()
            if stop and i == 0:
                MARKED.halfway.set()
                time.sleep(600)
            time.sleep(0.002)


def payload(name):
    text = hashlib.sha256(name.encode()).hexdigest() * 20
    return {"text": text, "sum": hashlib.sha256(text.encode()).hexdigest()}


class Marked:
    """A writer to be killed in the middle of a write, after `skip` whole ones."""

    def __init__(self, skip):
        self.skip, self.halfway = skip, FORK.Event()


MARKED = None  # set in the process of that writer


def busy(folder, names, seed, marked=None):
    """Takes cells and finishes them, or now and then fails or lets go; notes each record it was told is its own."""
    global MARKED
    MARKED, files._write = marked, slow_write
    ledger, dice = Ledger(folder, deaths=10**6), random.Random(seed)
    while True:
        dice.shuffle(names)
        for name in names:
            claim = ledger.claim(name)
            if claim is None:
                continue
            time.sleep(dice.random() * 0.01)
            fate = dice.random()
            if fate < 0.1:
                claim.release()
            elif fate < 0.2:
                claim.failed("made up")
                ledger.retry(name)
            elif claim.done(payload(name)):
                with (folder / "wins").open("a") as file:
                    file.write(f"{name}\n")
        time.sleep(0.001)


def survive(folder, processes, rounds, cells):
    """Each round starts writers, kills them at random, and adds cells; then what is left is finished in peace."""
    ledger, dice = Ledger(folder, deaths=10**6).open(), random.Random(0)
    names = []
    killed = halves = 0
    for number in range(rounds):
        fresh = [f"c{number}x{i}" for i in range(cells)]
        ledger.add({n: {"hash": n} for n in fresh})
        names += fresh
        open_names = [n for n in names if ledger.status(n).state != "done"]
        # However busy the machine is, one writer of each round dies in a write: of a claim, of a record, of an end.
        marked = Marked(number % 3)
        started = [
            FORK.Process(target=busy, args=(folder, list(open_names), 1000 * number + i, None if i else marked))
            for i in range(processes)
        ]
        first = started[0]
        for p in started:
            p.start()
            assert p is not first or marked.halfway.wait(120)
        dice.shuffle(started)
        for p in started:
            time.sleep(dice.random() * 0.04)
            os.kill(p.pid, signal.SIGKILL)
            p.join()
            killed += p.exitcode == -signal.SIGKILL
        halves += bool(list(folder.glob(f"*/.*.{first.pid}.*.tmp")))
        for name in names:  # nothing corrupt at any time
            record = ledger.record(name)
            assert record is None or (record.hash == name and record.result == payload(name))
            assert all(a.hash == name for a in ledger.attempts(name))
    for name in names:
        if ledger.status(name).state == "failed":
            ledger.retry(name)
        claim = ledger.claim(name)
        if claim is not None:
            assert claim.done(payload(name))
    assert len(names) == rounds * cells == len(list(ledger.cells.glob("[!.]*.json")))  # none missing, none doubled
    for name in names:
        assert ledger.status(name).state == "done" and ledger.record(name).result == payload(name)
    wins = (folder / "wins").read_text().split() if (folder / "wins").exists() else []
    assert len(wins) == len(set(wins))  # nobody was told twice that a record is the first
    return killed, halves


def test_writers_killed_at_random_leave_no_corrupt_record(tmp_path):
    killed, halves = survive(tmp_path / "l", processes=4, rounds=4, cells=6)
    assert killed == 16 and halves == 4


@pytest.mark.soak
def test_eight_writers_fifty_rounds(tmp_path):
    killed, halves = survive(tmp_path / "l", processes=8, rounds=50, cells=8)
    assert killed == 400 and halves == 50
