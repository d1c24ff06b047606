"""The benchmarks can be started: each imports what exists, and explains itself."""

from __future__ import annotations

import ast
import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"


def load(path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def run(name, monkeypatch, *arguments):
    module = load(BENCH / f"{name}.py", monkeypatch)
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    module.main()
    return module


@pytest.mark.parametrize("path", sorted(BENCH.glob("*.py")), ids=lambda p: p.stem)
def test_a_benchmark_imports_and_explains_itself(path, monkeypatch, capsys):
    module = load(path, monkeypatch)
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as left:
        module.main()
    assert left.value.code == 0 and "usage" in capsys.readouterr().out


def test_the_idle_share_is_what_lies_between_the_steps(monkeypatch):
    account = load(BENCH / "stream_idle.py", monkeypatch).account
    # 10 ms of work each; nothing, 5 ms and 15 ms between: 20 of the 50 ms after the first step's end.
    found = account([(0, 10), (10, 20), (25, 35), (50, 60)])
    assert found == pytest.approx({"step_ms": 50 / 3, "work_ms": 10, "idle_share": 0.4, "longest_gap_ms": 15})
    assert account([(0, 10), (9.5, 20)])["idle_share"] == 0  # marks on one stream may read a little early
    with pytest.raises(ValueError, match="two steps"):
        account([(0, 10)])


def test_a_dry_run_of_the_idle_share(tmp_path, monkeypatch, capsys):
    arguments = ["--toy", "--device", "cpu", "--episodes", 2, "--steps", 5, "--frames", "random", "--workers", 1]
    module = run("stream_idle", monkeypatch, *arguments, "--json", tmp_path / "a.json")
    resident, streamed = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert resident["workers"] == resident["wait_ms"] == 0 and streamed["workers"] == 1
    for row in (resident, streamed):
        assert row["work_ms"] == pytest.approx((1 - row["idle_share"]) * row["step_ms"])
        assert row["clips_per_second"] == pytest.approx(8000 / row["step_ms"])  # tiny has batches of 8
    monkeypatch.setattr(module.StreamedClips, "batch", lambda self, step: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["idle", *map(str, arguments), "2", "--json", str(tmp_path / "b.json")])
    module.main()
    resident, *failed = json.loads((tmp_path / "b.json").read_text())["rows"]
    assert "step_ms" in resident and [f["error"] for f in failed] == ["ZeroDivisionError: division by zero"] * 2
    monkeypatch.setattr(sys, "argv", ["idle", *map(str, arguments), "--limit", "0"])
    module.main()
    assert "left out: 0 s were over" in capsys.readouterr().out


def _sourced(folder, **env):
    command = 'set -euo pipefail; source "$0"; echo "$LD_LIBRARY_PATH|${__EGL_VENDOR_LIBRARY_FILENAMES:-}"'
    done = subprocess.run(
        ["bash", "-c", command, str(folder / "env.sh")],
        env={"PATH": "/usr/bin:/bin", **env},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    return *done.stdout.strip().split("|"), done.stderr.strip()


def test_the_packed_environment_names_the_driver_s_egl(tmp_path, monkeypatch):
    """A driver beside the system's folders, without the link .so.0 and without a description for GLVND."""
    pack, driver = tmp_path / "pack", tmp_path / "driver"
    pack.mkdir()
    driver.mkdir()
    (pack / "env.sh").write_text(load(BENCH / "cube_pack.py", monkeypatch).ENV)
    (driver / "libEGL_nvidia.so.550.54").touch()
    path, vendor, said = _sourced(pack, LD_LIBRARY_PATH=str(driver))
    if str(driver) not in said:
        pytest.skip("this machine has a driver of its own, which comes first")
    assert path.split(":")[0] == str(pack / "lib") and path.split(":")[-1] == str(driver)
    assert json.loads(Path(vendor).read_text())["ICD"]["library_path"] == str(driver / "libEGL_nvidia.so.550.54")
    assert said.count("\n") == 0
    described = driver / "egl_vendor.d" / "10_nvidia.json"
    described.parent.mkdir()
    described.write_text("{}")
    assert _sourced(pack, LD_LIBRARY_PATH=str(driver))[1] == str(described)  # the driver's own comes first
    path, vendor, said = _sourced(pack)
    assert not vendor and "pack again with --mesa" in said


def test_mutants_differ_in_one_place_and_are_programs(monkeypatch):
    module = load(BENCH / "mutants.py", monkeypatch)
    source = "def f(a: int = 1) -> float:\n if a < 2 and not -a:\n  raise ValueError(f'{a + 1}')\n return a / 2.5"
    seen = set()
    for seed in range(200):
        tree = ast.parse(source)
        draw = random.Random(seed)
        module.change(draw.choice(module.places(tree)), draw)
        seen.add(ast.unparse(tree))
        compile(ast.unparse(tree), "mutant", "exec")
    assert ast.unparse(ast.parse(source)) not in seen
    # 1, 2 and 2.5; <, and, - and /; the branch either way; neither annotations nor what is raised
    assert len(seen) == 9 and all("-> float" in s and "{a + 1}" in s and "a: int" in s for s in seen)
