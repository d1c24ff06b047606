"""JSON of any origin: one sentence that names the file and the field, and results that come back as they were."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpwm.core.errors import UserError
from lpwm.core.json import Reader, dump_json, from_json, parse_json, read_json, to_json


@dataclass(frozen=True)
class Inner:
    name: str
    rate: float
    bounds: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Outer:
    inner: tuple[Inner, ...]
    by_budget: dict[str, Inner]
    seed: int | str = 0
    best: Inner | None = None
    records: Any = field(default=None, metadata={"json": False})


def test_a_result_comes_back_as_it_was() -> None:
    one = Inner("a", 0.5, (0.25, None))
    out = Outer((one, Inner("b", 1.0)), {"50": one}, "7+8", one, records=object())
    record = json.loads(dump_json(out))
    assert "records" not in record
    back = from_json(Outer, record, "f.json")
    assert back == Outer(out.inner, out.by_budget, "7+8", one)


def test_nan_is_null_and_back() -> None:
    assert to_json(Inner("a", math.nan, (math.inf,))) == {"name": "a", "rate": None, "bounds": [None]}
    back = from_json(Inner, {"name": "a", "rate": None, "new field": 3})
    assert math.isnan(back.rate)
    assert to_json({"x": np.float32(0.5), 3: np.array([1, 2]), "y": np.bool_(True)}) == {
        "x": 0.5,
        "3": [1, 2],
        "y": True,
    }


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ([], "f.json must be an object of fields, not list."),
        ({"by_budget": {}}, "f.json: inner is missing"),
        ({"inner": 3, "by_budget": {}}, "f.json: inner = 3 must be a list."),
        ({"inner": [{"name": 1, "rate": 0}], "by_budget": {}}, "f.json: inner[0].name = 1 must be of type str."),
        ({"inner": [], "by_budget": {"5": {"name": "a"}}}, "f.json: by_budget.5.rate is missing"),
        ({"inner": [], "by_budget": []}, "f.json: by_budget = [] must be an object of fields."),
        ({"inner": [], "by_budget": {}, "seed": [1]}, "f.json: seed = [1] must be of type str."),
        ({"inner": [], "by_budget": {}, "best": "x" * 99}, "f.json: best = 'xxx"),
    ],
)
def test_a_wrong_field_is_named(record: Any, said: str) -> None:
    with pytest.raises(UserError) as error:
        from_json(Outer, record, "f.json")
    assert said in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 160


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "deeper than 64 levels"),
        (b"[" * 66 + b"]" * 66, "deeper than 64 levels"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "deeper than 64 levels"),
        (b"1" * 5000, "is not JSON"),
        (b"[1]", "must hold an object of fields, not list"),
        (b'{"kind": "other"}', "is not of the kind 'mine': its kind is 'other'"),
        (b'{"kind": "mine", "x": "' + b"y" * 2000 + b'"}', "larger than"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, said: str) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(text)
    monkeypatch.setattr("lpwm.core.json.MAX_BYTES", 2000 if b"yyy" in text else 10**6)
    with pytest.raises(UserError) as error:
        read_json(path, kind="mine")
    assert said in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_large_text_fits_into_memory_once_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lpwm.core.memory.free_bytes", lambda: 32e6)
    with pytest.raises(UserError, match=r"f\.json takes .* memory"):
        parse_json("[" + "{}," * 400_000 + "{}]", "f.json", of=list)
    assert len(parse_json("[" + "{}," * 99 + "{}]", "f.json", of=list)) == 100


def test_what_is_within_bounds_is_read(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(64):
        deep = [deep]
    assert parse_json(json.dumps(deep), "it", of=list) == deep
    path = tmp_path / "f.json"
    path.write_text('{"kind": "mine"}')
    assert read_json(path, kind="mine") == {"kind": "mine"}
    with pytest.raises(UserError, match="there is no file"):
        read_json(tmp_path / "g.json")
    with pytest.raises(UserError, match="is not a regular file"):
        read_json(tmp_path)


def test_reader() -> None:
    reader = Reader({"s": "a", "i": 3, "l": [{"n": 1}]}, "f.json")
    assert reader.get("s", str) == "a" and reader.get("none", int, 5) == 5
    (child,) = reader.children("l")
    assert child.get("n", int) == 1
    for call, said in (
        (lambda: reader.get("i", str), "f.json: i = 3 must be of type str."),
        (lambda: reader.get("none"), "f.json: none is missing."),
        (lambda: reader.child("l"), "f.json: l must be an object of fields, not list."),
        (lambda: child.get("n", str), "f.json: l[0]: n = 1 must be of type str."),
        (lambda: reader.children("i"), "f.json: i = 3 must be a list."),
    ):
        with pytest.raises(UserError) as error:
            call()
        assert str(error.value) == said
