"""Packs what Cube needs for a machine without a network: `python bench/cube_pack.py OUT [--python 3.12] [--mesa]`.

OUT/site    the package mujoco, unpacked, without its tests, headers and viewer (about 20 MB); of its dependencies
            stepping and drawing need only numpy, which torch's users have
OUT/debs    Debian packages: libegl1, libglvnd0 and libopengl0, enough where the NVIDIA driver brings its own libEGL
            (libEGL_nvidia.so.0; look with ldconfig -p). With --mesa also OSMesa and LLVM, which draw on any CPU
            (about 30 MB packed, 140 MB unpacked)
OUT/env.sh  to be sourced there: unpacks the debs beside itself once, then sets PYTHONPATH, LD_LIBRARY_PATH, and for
            NVIDIA the file that names its EGL. MUJOCO_GL=egl or osmesa chooses; unset, what works is taken

    source OUT/env.sh && python -m lpwm doctor | grep cube

Run it on a Debian of the kind the other machine has (apt-get download), with pip's index at hand.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MUJOCO = "3.5.0"  # as in constraints.txt
DRIVER = ("libegl1", "libglvnd0", "libopengl0")
MESA = (
    "libosmesa6", "libglapi-mesa", "libllvm15", "libz3-4", "libedit2", "libbsd0", "libmd0", "libxml2", "libicu72",
    "libffi8", "libtinfo6", "libzstd1",
)  # fmt: skip
UNNEEDED = (
    "_test.py", "/include/", "/introspect/", "/testdata/", "/sysid/", "/usd/", "/mjx/", "_simulate", "/doc/",
    "viewer.py", "/plugin/",
)  # fmt: skip
ENV = """here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ ! -d "$here/root" ]; then
  mkdir -p "$here/root"
  for deb in "$here"/debs/*.deb; do dpkg-deb -x "$deb" "$here/root"; done
fi
lib=$here/root/usr/lib/x86_64-linux-gnu
export PYTHONPATH="$here/site${PYTHONPATH:+:$PYTHONPATH}"
export LD_LIBRARY_PATH="$lib:$here/root/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
if ldconfig -p | grep -q libEGL_nvidia.so.0; then
  echo '{"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}}' > "$here/nvidia.json"
  export __EGL_VENDOR_LIBRARY_FILENAMES="$here/nvidia.json"
fi
"""


def unpack_mujoco(out: Path, python: str) -> int:
    """The wheel's files that are needed, under OUT/site; their bytes."""
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder,
             "--python-version", python, f"mujoco=={MUJOCO}"],
            check=True,
        )  # fmt: skip
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            for entry in wheel.infolist():
                if not any(part in entry.filename for part in UNNEEDED):
                    wheel.extract(entry, out / "site")
                    total += entry.file_size
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--mesa", action="store_true", help="OSMesa too, for machines without an NVIDIA EGL")
    args = parser.parse_args()
    debs = args.out / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    size = unpack_mujoco(args.out, args.python)
    packages = DRIVER + (MESA if args.mesa else ())
    subprocess.run(["apt-get", "download", "-qq", *packages], cwd=debs, check=True)
    (args.out / "env.sh").write_text(ENV)
    packed = sum(p.stat().st_size for p in debs.glob("*.deb"))
    print(f"mujoco {size / 1e6:.1f} MB unpacked, {len(packages)} Debian packages of {packed / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
