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
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from lpwm.core.version import __version__

T = TypeVar("T")
VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
LEAST = 256 << 20  # bytes that must be free: a training step leaves about 20 MB
# torch keeps no result of tracing for graphs with these, because it does not know whether they are the same in the next
# process. Ours are: their arguments are in the graph, and so in the key.
KNOWN = {f"torch.amp.autocast_mode._{verb}_autocast": "1" for verb in ("enter", "exit")}
_state: dict[str, Path | None] = {"folder": None}  # the one in use


def region(f: Callable[..., T]) -> Callable[..., T]:
    """With LPWM_REGIONS=1: what is compiled traces and compiles `f` once for all calls that differ only in the tensors
    they are given (the blocks of a network), in place of once per call."""
    import torch

    return torch.compiler.nested_compile_region(f) if os.environ.get("LPWM_REGIONS") == "1" else f


def cache_folder() -> Path:
    """Where compiled code is kept, of every version."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("LPWM_CACHE") or Path(base) / "lpwm").expanduser().absolute()


def version_folder() -> Path:
    import torch

    def version(package: str) -> str:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
        return "none"

    try:  # code for the processor is made for all that it can do
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        processor = ""
    parts = [__version__, torch.__version__, version("triton"), torch.version.cuda, sys.version, processor]
    name = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:8]
    return cache_folder() / f"compiled-{__version__}-torch-{torch.__version__}-{name}"


def keep() -> None:
    """Use the folder from now on, in this process. A folder that the user chose by torch's own variable stays."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if _state["folder"] is not None:
        return
    given = os.environ.get(VARIABLES[0])
    if given and given != default_cache_dir() and "LPWM_CACHE" not in os.environ:
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
    with library.open("rb") as file:
        head = file.read(64)
    if len(head) < 64 or head[:5] != b"\x7fELF\x02":  # of 64 bits; others are not looked at
        return len(head) == 64 and head[:4] == b"\x7fELF"
    at, size, count = struct.unpack_from("<Q", head, 40) + struct.unpack_from("<HH", head, 58)
    return library.stat().st_size >= at + size * count


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
    cause = getattr(error, "inner_exception", error)
    why = (str(cause).strip() or type(cause).__name__).splitlines()[0][:200]
    _go_without(f"Compiling with {_state['folder']} failed ({why}): if it is damaged, remove it")
    clear_caches()
    return True


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """torch keeps the results of tracing for our graphs too, and compiles the backward pass with the forward pass, so
    that what fails fails before anything is computed. Versions of torch without a setting do as they do."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    ours: list[tuple[Any, str, Any]] = [
        (functorch, "autograd_cache_allow_custom_autograd_functions", True),
        (functorch, "force_non_lazy_backward_lowering", True),
        (inductor, "unsafe_marked_cacheable_functions", KNOWN),
    ]
    with contextlib.ExitStack() as held:
        for config, name, value in ours:
            if hasattr(config, name):
                held.enter_context(config.patch({name: value}))
        yield


def compiled(
    f: Callable[..., Any],
    backend: str | Callable[..., Any] = "inductor",
    within: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Callable[..., Any]:
    """`f` compiled for static shapes, called `within` a context (settings of torch)."""
    import torch

    keep()
    fast = torch.compile(f, dynamic=False, backend=backend)

    def call(*args: Any) -> Any:
        with _settings(), within():
            try:
                return fast(*args)
            except Exception as error:
                if not _again(error):
                    raise
            return fast(*args)

    return call
