"""Compile the collectives written in Python with Numba and the device API."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..backends import Function
from ..backends.compilers import cache, numba_cuda
from ..backends.compilers.numba_packages import chosen
from ..launch import kernels
from ..launch.sources import instantiation
from ..system.paths import sources_digest
from ..team.base import IntraBase as Intracomm
from ..team.team import Team

FILE, KERNEL, SYMBOL = "numba_kernels/numba_collective.cu", "numba_collective", "pyncclx_numba_collective"

#: For each kernel, the file of this package and the function that make it.
MAKERS = {
    "numba_barrier": ("blocks", "barrier"),
    "numba_allgather": ("blocks", "allgather"),
    "numba_alltoall": ("blocks", "alltoall"),
    "numba_alltoallv": ("alltoallv", "alltoallv"),
    "numba_allreduce_one_shot": ("allreduce", "one_shot"),
    "numba_allreduce_two_shot_packets": ("allreduce", "two_shot_packets"),
    "numba_allreduce_two_shot": ("allreduce", "two_shot"),
}

#: Functions that combine two elements, by operator. Results have the same bits as those of
#: cuda/elements/reduce_ops.cuh.
COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": lambda a, b: a + b,
    "PROD": lambda a, b: a * b,
    # The result is NaN if either element is NaN. Only NaN is unequal to itself.
    "MIN": lambda a, b: b if b < a or b != b else a,  # noqa: PLR0124
    "MAX": lambda a, b: b if a < b or b != b else a,  # noqa: PLR0124
}
ELEMENTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


def function_of(comm: Intracomm, team: Team, kernel: str, template: tuple[str, ...]) -> Function:
    """Return a loaded kernel. Collective at the first use on a communicator.

    Raises
    ------
    NotSupported, RuntimeError
        On all ranks, if rank 0 has no Numba, or the kernel does not compile.
    """
    key = (kernel, *template)
    if key not in team.functions:
        name = instantiation(kernel, *template, str(team.size))
        part = kernels.Part(
            names=[name],
            compile=lambda: compile_kernel(kernel, template, team),
            load=lambda image: {name: team.device.load(image)[KERNEL]},
        )
        made = kernels.share(comm, team.device, [part])
        team.functions[key] = made[name]
    return team.functions[key]


def compile_kernel(kernel: str, template: tuple[str, ...], team: Team) -> bytes:
    """Return the image of a kernel for this GPU's architecture and the team's size."""
    nvrtc = importlib.import_module("pyncclx.backends.compilers.nvrtc")
    architecture = team.device.architecture
    code = cached_code(kernel, template, team.size, architecture)
    image: bytes = nvrtc.compile_linked(FILE, [KERNEL], architecture, code).dump()
    return image


def cached_code(kernel: str, template: tuple[str, ...], size: int, architecture: str) -> bytes:
    """Return a kernel's LTO-IR from the cache on disk, or compile it, which is slow."""
    numba_cuda.target()  # raises without Numba
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    sources += [path.read_bytes() for path in sorted(Path(str(numba_cuda.__file__)).parent.glob("*.py"))]
    sources.append(sources_digest(FILE).encode())
    key = (chosen().version, sys.version_info[:2], sources, kernel, template, size, architecture)
    name = cache.file_name(kernel, key, ".lto")
    return cache.read_or_make(name, lambda: code_of(kernel, template, size, architecture))


def code_of(kernel: str, template: tuple[str, ...], size: int, architecture: str) -> bytes:
    """Compile a kernel's Python function to LTO-IR; needs no GPU."""
    function = function_named(kernel, template, size)
    return numba_cuda.collective(function, SYMBOL, architecture)


def function_named(kernel: str, template: tuple[str, ...], size: int) -> Callable[..., None]:
    """Return the Python function of a kernel, such as "numba_allreduce_two_shot"."""
    numba_cuda.target()  # raises before the import of a file that needs Numba
    file, name = MAKERS[kernel]
    make = getattr(importlib.import_module(f".{file}", __package__), name)
    made: Callable[..., None]
    if not template:
        made = make(size)
    else:
        dtype, op = template
        made = make(numba_cuda.element(dtype), np.dtype(dtype).itemsize, numba_cuda.inlined(COMBINE[op]), size)
    return made
