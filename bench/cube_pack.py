"""Packs what Cube needs for a machine without a network: `python bench/cube_pack.py OUT [--python 3.12] [--mesa]`.

OUT/site    the package mujoco, unpacked, without its tests, headers and viewer (about 20 MB); of its dependencies
            stepping and drawing need only numpy, which torch's users have
OUT/lib     the libraries that hand OpenGL and EGL on to a driver (GLVND), and those they need: enough where the NVIDIA
            driver brings its own libEGL_nvidia.so.0. Plain files, no links
OUT/debs    with --mesa: OSMesa and LLVM, which draw on any CPU (30 MB of Debian packages, 140 MB unpacked there)
OUT/env.sh  to be sourced there, in bash: finds the driver's EGL, sets PYTHONPATH, LD_LIBRARY_PATH and what names the
            driver to GLVND, and says in one line what it found. MUJOCO_GL=egl or osmesa chooses; unset, what works is
            taken

    source OUT/env.sh && python -m lpwm doctor | grep cube

Run it on a Debian of the kind the other machine has (apt-get download), with pip's index at hand.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MUJOCO = "3.5.0"  # as in constraints.txt
# libGL is only looked for where libOpenGL is missing; it needs X11's libraries, which bare machines lack.
DRIVER = (
    "libegl1",
    "libglvnd0",
    "libopengl0",
    "libgl1",
    "libglx0",
    "libx11-6",
    "libxcb1",
    "libxau6",
    "libxdmcp6",
    "libbsd0",
    "libmd0",
)
MESA = (
    "libosmesa6",
    "libglapi-mesa",
    "libllvm15",
    "libz3-4",
    "libedit2",
    "libbsd0",
    "libmd0",
    "libxml2",
    "libicu72",
    "libffi8",
    "libtinfo6",
    "libzstd1",
)
UNNEEDED = (
    "_test.py",
    "/include/",
    "/introspect/",
    "/testdata/",
    "/sysid/",
    "/usd/",
    "/mjx/",
    "_simulate",
    "/doc/",
    "viewer.py",
    "/plugin/",
)
ENV = r"""here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHONPATH="$here/site${PYTHONPATH:+:$PYTHONPATH}"
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
if [ -d "$here/debs" ]; then
  if [ ! -d "$here/root" ]; then
    mkdir -p "$here/root.new"
    for deb in "$here"/debs/*.deb; do dpkg-deb -x "$deb" "$here/root.new"; done && mv "$here/root.new" "$here/root"
  fi
  mesa=$here/root/usr/lib/x86_64-linux-gnu:$here/root/lib/x86_64-linux-gnu
  export LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$mesa"
fi

# The driver's EGL: where the loader knows it, or in the folders drivers are put in.
nvidia=$( (ldconfig -p || /sbin/ldconfig -p) 2>/dev/null |
  sed -n 's/.*libEGL_nvidia\.so\.0 .*x86-64.* => //p' | head -n 1 || true)
known=$nvidia
if [ -z "$nvidia" ]; then
  nvidia=$(IFS=:; for folder in $LD_LIBRARY_PATH /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/nvidia/lib64 \
      /usr/local/nvidia/lib; do
    for file in "$folder"/libEGL_nvidia.so.0 "$folder"/libEGL_nvidia.so.[1-9]*; do [ -e "$file" ] && echo "$file"; done
  done | head -n 1 || true)
fi
if [ -z "$nvidia" ]; then
  nvidia=$(find /usr/lib /usr/lib64 /usr/local /opt /run/nvidia -maxdepth 7 -name 'libEGL_nvidia.so.*' 2>/dev/null |
    head -n 1 || true)
fi
if [ -n "$nvidia" ]; then
  # A system's folder goes last: torch's own libraries must not be found there first.
  [ -n "$known" ] || export LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$(dirname "$nvidia")"
  own=$here/nvidia.json
  [ -w "$here" ] || own=/tmp/lpwm-nvidia-egl.json
  printf '{"file_format_version": "1.0.0", "ICD": {"library_path": "%s"}}\n' "$nvidia" > "$own"
  vendor=$(find /usr/share/glvnd /etc/glvnd /usr/local/nvidia /usr/local/share "$(dirname "$nvidia")" -maxdepth 4 \
    -path '*egl_vendor.d/*nvidia*.json' 2>/dev/null | head -n 1 || true)
  export __EGL_VENDOR_LIBRARY_FILENAMES="${vendor:-$own}" LPWM_EGL_VENDOR_OWN="$own"
  echo "cube: $nvidia, named by ${vendor:-$own}" >&2
elif [ -d "$here/debs" ]; then
  echo "cube: no libEGL_nvidia.so.0 found; OSMesa will draw, on the CPU (0.15 s a frame)" >&2
else
  echo "cube: no libEGL_nvidia.so.0 found: give the container the driver's graphics part" \
    "(NVIDIA_DRIVER_CAPABILITIES=all), or pack again with --mesa" >&2
fi
"""


def unpack_mujoco(out: Path, python: str) -> int:
    """The wheel's files that are needed, under OUT/site; their bytes."""
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary=:all:",
                "--dest",
                folder,
                "--python-version",
                python,
                f"mujoco=={MUJOCO}",
            ],
            check=True,
        )
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            for entry in wheel.infolist():
                if not any(part in entry.filename for part in UNNEEDED):
                    wheel.extract(entry, out / "site")
                    total += entry.file_size
    return total


def download(packages: tuple[str, ...], folder: Path) -> list[Path]:
    subprocess.run(["apt-get", "download", "-qq", *packages], cwd=folder, check=True)
    return sorted(folder.glob("*.deb"))


def unpack_libraries(out: Path) -> int:
    """The libraries of DRIVER as plain files under OUT/lib, named as programs ask for them; their bytes."""
    target = out / "lib"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        for deb in download(DRIVER, Path(folder)):
            subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], check=True)
        for path in root.rglob("lib*.so.*"):
            if path.is_symlink():  # libEGL.so.1 -> libEGL.so.1.1.0
                shutil.copyfile(path.resolve(), target / path.name)
            elif path.name.count(".") == 2:  # its own name: libmd.so.0 of some packages
                shutil.copyfile(path, target / path.name)
    return sum(p.stat().st_size for p in target.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--mesa", action="store_true", help="OSMesa too, for machines without an NVIDIA EGL")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for stale in ("site", "debs", "root"):
        shutil.rmtree(args.out / stale, ignore_errors=True)
    size, libraries = unpack_mujoco(args.out, args.python), unpack_libraries(args.out)
    text = f"mujoco {size / 1e6:.1f} MB and libraries {libraries / 1e6:.1f} MB unpacked"
    if args.mesa:
        debs = args.out / "debs"
        debs.mkdir()
        packed = sum(p.stat().st_size for p in download(MESA, debs))
        text += f", {len(MESA)} Debian packages of {packed / 1e6:.1f} MB"
    (args.out / "env.sh").write_text(ENV)
    print(text)


if __name__ == "__main__":
    main()
