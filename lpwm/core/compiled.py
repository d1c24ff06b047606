"""What torch compiles, kept across processes: one folder, `LPWM_CACHE` or the user's cache folder, safe to delete.

torch writes its files whole, under locks, and names them by all that they depend on, so that processes may share the
folder. Each version of torch, Triton, CUDA, Python and lpwm, and each kind of processor, has a part of its own. Where
the folder cannot be used, one warning says so and the process compiles without it.
"""

import atexit
import contextlib
import hashlib
import os
import shutil
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, TypeVar

from lpwm.core.version import __version__

VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
VERBS = ("enter", "exit")
LEAST = 256 << 20  # bytes that must be free: a training step leaves about 20 MB
SETTINGS = (  # of torch, where its version has them
    # Results of tracing are kept for our graphs too. torch does not know that these are the same in the next process;
    # ours are: what they are given is in the graph, and so in the key.
    ("_functorch", "autograd_cache_allow_custom_autograd_functions", True),
    ("_inductor", "unsafe_marked_cacheable_functions", {f"torch.amp.autocast_mode._{v}_autocast": "1" for v in VERBS}),
    # The backward pass is compiled with the forward pass: what fails fails before anything is computed.
    ("_functorch", "force_non_lazy_backward_lowering", True),
    # Left to itself torch switches autocast on again for the compiled backward pass, and so rounds the gradients of
    # what was kept in float32: the regularizer's, the projector's.
    ("_functorch", "backward_pass_autocast", "off"),
    ("_dynamo", "recompile_limit", 1024),  # kinds of problem one call may compile for; torch goes on uncompiled after 8
    ("_dynamo", "accumulated_recompile_limit", 1024),
)
F = TypeVar("F", bound=Callable[..., Any])
_in_parts: list[Callable[..., Any]] = []
_state: dict[str, Path | None] = {"folder": None}  # the one in use


def in_parts(f: F) -> F:
    """Whoever is compiled leaves `f` itself to Python, and compiles each function that `f` calls with tensors alone:
    once for all calls with the same shapes, so that the blocks of a network share what is compiled."""
    _in_parts.append(f)
    return f


def cache_folder() -> Path:
    """Where compiled code is kept, of every version."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LPWM_CACHE") or Path(base) / "lpwm").expanduser().absolute()


def version_folder() -> Path:
    import torch

    parts = [__version__, torch.__version__, torch.version.cuda, sys.version]
    with contextlib.suppress(ImportError):
        parts.append(metadata.version("triton"))
    with contextlib.suppress(OSError):  # code for the processor is made for all that it can do
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        parts += [line for line in lines if line.startswith(("flags", "Features"))][:1]
    name = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:8]
    return cache_folder() / f"compiled-{__version__}-torch-{torch.__version__}-{name}"


def keep() -> None:
    """Use the folder from now on, in this process. A folder that the user chose by torch's own variable stays."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if _state["folder"] is not None:
        return
    given = os.environ.get(VARIABLES[0], default_cache_dir())
    if given != default_cache_dir() and "LPWM_CACHE" not in os.environ:
        _state["folder"] = Path(given)
        return
    folder = version_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        if (free := shutil.disk_usage(folder).free) < LEAST:
            raise OSError(f"{free >> 20} MiB are free")
    except OSError as error:
        _go_without(f"{folder} cannot be written ({error.strerror or error}): set LPWM_CACHE to another folder")
    else:
        for path in folder.rglob("*.so"):  # a linker that was killed leaves half a library, which kills who loads it
            with contextlib.suppress(OSError):
                if not _complete(path) and time.time() - path.stat().st_mtime > 5:
                    path.unlink()
        _use(folder)


def _complete(library: Path) -> bool:
    """Whether an ELF file is as long as its header says: the table of sections is at its end."""
    content = library.read_bytes()
    at, size, count = struct.unpack("<40xQ10xHH2x", content[:64].ljust(64, b"\xff"))
    return content[:4] != b"\x7fELF" or len(content) >= at + size * count


def _use(folder: Path) -> None:
    _state["folder"] = folder
    os.environ |= {name: str(folder / part) for name, part in zip(VARIABLES, ("torch", "triton"), strict=True)}


def _go_without(why: str) -> None:
    """Compile into a folder that goes with this process: in memory, where the disk of temporary files is full."""
    warnings.warn(f"compiled code is not kept. {why}.", stacklevel=2)
    places = [p for p in (tempfile.gettempdir(), "/dev/shm") if os.access(p, os.W_OK)]
    most = max(places, key=lambda p: min(shutil.disk_usage(p).free, LEAST), default=None)
    folder = Path(tempfile.mkdtemp(prefix="lpwm-compiled-", dir=most))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _use(folder)


def _again(error: Exception) -> bool:
    """Whether a failure to compile may be the folder's: damaged files, a disk that became full. Then without it."""
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._inductor.utils import clear_caches

    if not isinstance(error, BackendCompilerFailed | OSError) or _state["folder"] != version_folder():
        return False
    why = str(getattr(error, "inner_exception", error)).strip().partition("\n")[0][:200]
    _go_without(f"Compiling with {_state['folder']} failed ({why}): if it is damaged, remove it")
    clear_caches()
    return True


def compiled(f: Callable[..., Any], backend: str | Callable[..., Any] = "inductor") -> Callable[..., Any]:
    """`f` compiled for static shapes, with the gradients that it has eagerly."""
    import torch
    from torch._dynamo.decorators import skip

    keep()
    for part in _in_parts:
        skip(part)
    fast = torch.compile(f, dynamic=False, backend=backend)

    def call(*args: Any) -> Any:
        with contextlib.ExitStack() as held:
            for part, name, value in SETTINGS:
                config = import_module(f"torch.{part}.config")
                if hasattr(config, name):
                    held.enter_context(config.patch({name: value}))
            try:
                return fast(*args)
            except Exception as error:
                if not _again(error):
                    raise
            return fast(*args)

    return call
