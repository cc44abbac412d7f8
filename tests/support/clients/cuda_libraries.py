"""Where CUDA's libraries are, for programs that load them by names that only a whole toolkit has."""

import contextlib
import ctypes
import shutil
from collections.abc import Iterator
from pathlib import Path


def path_of(name: str) -> str:
    """The path of a library, or its name where the loader finds it; "" if there is none."""
    return next(filter(_loads, _candidates(name)), "")


def _candidates(name: str) -> Iterator[str]:
    yield f"lib{name}.so"
    if name == "cuda":  # the driver's
        yield "libcuda.so.1"
        return
    compiler = shutil.which("nvcc")
    if compiler is not None:
        yield str(Path(compiler).resolve().parents[1] / "lib64" / f"lib{name}.so")
    with contextlib.suppress(ImportError, RuntimeError):  # of Python's packages; it comes with CuPy
        from cuda.pathfinder import load_nvidia_dynamic_lib  # noqa: PLC0415

        yield str(load_nvidia_dynamic_lib(name).abs_path)


def _loads(path: str) -> bool:
    try:
        ctypes.CDLL(path)
    except OSError:
        return False
    return True
