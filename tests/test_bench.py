"""The benchmarks can be started: each imports what exists, and explains itself."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.mark.parametrize("path", sorted(BENCH.glob("*.py")), ids=lambda p: p.stem)
def test_a_benchmark_imports_and_explains_itself(path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCH))
    module = _module(path.stem, monkeypatch)
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as left:
        module.main()
    assert left.value.code == 0 and "usage" in capsys.readouterr().out


def _module(name, monkeypatch):
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def _sourced(folder, **env):
    command = 'set -euo pipefail; source "$0"; echo "$LD_LIBRARY_PATH|${__EGL_VENDOR_LIBRARY_FILENAMES:-}"'
    done = subprocess.run(
        ["bash", "-c", command, str(folder / "env.sh")], env={"PATH": "/usr/bin:/bin", **env}, text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return *done.stdout.strip().split("|"), done.stderr.strip()


def test_the_packed_environment_names_the_driver_s_egl(tmp_path, monkeypatch):
    """A driver beside the system's folders, without the link .so.0 and without a description for GLVND."""
    pack, driver = tmp_path / "pack", tmp_path / "driver"
    pack.mkdir()
    driver.mkdir()
    (pack / "env.sh").write_text(_module("cube_pack", monkeypatch).ENV)
    (driver / "libEGL_nvidia.so.550.54").touch()
    path, vendor, said = _sourced(pack, LD_LIBRARY_PATH=str(driver))
    if str(driver) not in said:
        pytest.skip("this machine has a driver of its own, which comes first")
    assert path.split(":")[0] == str(pack / "lib") and path.split(":")[-1] == str(driver)
    assert json.loads(Path(vendor).read_text())["ICD"]["library_path"] == str(
        driver / "libEGL_nvidia.so.550.54"
    )
    assert said.count("\n") == 0
    described = driver / "egl_vendor.d" / "10_nvidia.json"
    described.parent.mkdir()
    described.write_text("{}")
    assert _sourced(pack, LD_LIBRARY_PATH=str(driver))[1] == str(described)  # the driver's own comes first
    path, vendor, said = _sourced(pack)
    assert not vendor and "pack again with --mesa" in said


def test_the_pair_collects_what_its_runs_look_for(monkeypatch, tmp_path):
    """Nothing is drawn twice: the data stage and lpwm train name the same data set, and the controls the same cells."""
    import tyro

    from lpwm.cli.eval import Args, settings
    from lpwm.cli.train import parse

    pair = _module("cube_pair", monkeypatch)
    monkeypatch.setattr(sys, "argv", ["cube_pair.py", str(tmp_path), "--episodes", "320", "--steps", "700"])
    args = pair.parse()
    for method, weight in pair.WEIGHTS.items():
        config = parse([f"{args.recipe}/{method}", *pair.overrides(args), "--train.steps", str(args.steps)])[
            1
        ].run
        assert (
            config.data == pair.data_config(args)
            and config.data.episodes == 320
            and config.data.frames == 112
        )
        assert (
            config.objective.tj_weight == weight and config.objective.lam == 10 and config.train.steps == 700
        )
    found = settings(tyro.cli(Args, args=pair.eval_options(args)))
    assert (found.goals, found.budgets, found.ways()) == (("dataset",), (50,), [(5, 5)])
    assert found.controls == ("nothing", "random", "oracle") and found.episodes == 50
