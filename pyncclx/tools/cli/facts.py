"""Facts of this machine and this process, as plain values.

`info` prints them; `info --json` prints them as JSON.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from mpi4py import MPI

import mpi_bootstrap

from ... import tuning
from ...nodes import nccl_library
from ...system import driver, mpi_library, packages, settings
from ...system.cache_folders import cache_directory

# Launchers, by a variable that each sets.
_LAUNCHERS = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpiexec",
    "PMI_SIZE": "an mpiexec of the MPICH family, or srun --mpi=pmi2",
    "SLURM_STEP_NUM_TASKS": "srun",
    "PMIX_RANK": "a PMIx launcher",
}
_DISTRIBUTIONS = {
    "mpi4py": ("mpi4py",),
    "NumPy": ("numpy",),
    "CuPy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "NVRTC": ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
    "cuda-bindings": ("cuda-bindings",),
    "Numba-CUDA": ("numba-cuda",),
    "Numba-CUDA-MLIR": ("numba-cuda-mlir",),
    "PyTorch": ("torch",),
    "NCCL": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
}

Facts = dict[str, Any]


def gather(place: mpi_bootstrap.Topology) -> Facts:
    """Return all facts by subject; `place` is this rank's place among the nodes.

    Values are those of JSON: dictionaries, lists, text, numbers, True, False, None.
    """
    return {
        "pyncclx": {"version": packages.version("pyncclx"), "python": platform.python_version()},
        "gpus": _gpus(),
        "packages": {name: packages.version(*each) for name, each in _DISTRIBUTIONS.items()},
        "mpi": _mpi(),
        "between_nodes": _between_nodes(place),
        "launcher": _launcher(),
        "kernel_cache": _cache(),
        "host_compiler": _compiler(),
        "tuning_tables": _tables(),
        "settings": list(_settings()),
    }


def _gpus() -> Facts:
    count = driver.count()
    pairs = [[a, b] for a in range(count) for b in range(count) if a != b]
    return {
        "cuda": driver.version(),
        "names": [driver.name(ordinal) for ordinal in range(count)],
        "pairs_without_peer_access": [pair for pair in pairs if not driver.can_access(*pair)],
    }


def _between_nodes(place: mpi_bootstrap.Topology) -> Facts:
    refusal = nccl_library.refusal()
    return {
        "ranks_of_nodes": [place.nodes.count(node) for node in range(place.node_count)],
        "rails": min(map(place.nodes.count, range(place.node_count))),
        "engine": _engine(refusal),
        "nccl": None if refusal else nccl_library.version_text(),
        "why_no_nccl": refusal,
    }


def _engine(refusal: str | None) -> str | None:
    """Return the engine between nodes; None if a setting is wrong.

    The wrong setting is a problem of its own.
    """
    try:
        is_mpi = settings.ENGINE.get() == "mpi" or settings.DEVICE.get() == "host" or refusal is not None
    except ValueError:
        return None
    return "mpi" if is_mpi else "nccl"


def _mpi() -> Facts:
    name, version = MPI.get_vendor()
    return {
        "name": name,
        "version": ".".join(map(str, version)),
        "file": mpi_library.path(),
        "takes_device_arrays": mpi_library.is_cuda_aware(),
    }


def _launcher() -> Facts:
    launchers = (text for variable, text in _LAUNCHERS.items() if settings.foreign(variable) is not None)
    return {"name": next(launchers, None), "ranks": MPI.COMM_WORLD.size, "mpiexec": mpi_library.mpiexec()}


def _cache() -> Facts:
    try:
        files = [path for path in cache_directory().rglob("*") if path.is_file()]
        return {
            "folder": str(cache_directory()),
            "files": len(files),
            "nbytes": sum(path.stat().st_size for path in files),
        }
    except OSError as error:
        return {"error": str(error)}


def _tables() -> Facts:
    try:
        return {"tables": list(tuning.provenance())}
    except OSError as error:
        return {"error": str(error)}


def _compiler() -> str | None:
    """Return the first line that the compiler prints for --version."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    output = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    return output.partition("\n")[0]


def _settings() -> Iterator[Facts]:
    for setting in settings.SETTINGS:
        source = "environment" if setting.is_set else "default"
        shown = setting.default_text.replace("`", "")
        try:
            value = str(setting.get())
            fact = {"value": value if setting.is_set else shown, "source": source, "error": None}
        except ValueError as error:
            fact = {"value": None, "source": "environment", "error": str(error)}
        yield {"name": setting.name, **fact, "text": setting.text.replace("`", "")}
