"""python -m pyncclx info: print what this machine has and what it lacks.

It also prints how to install what is missing. It needs neither a GPU nor mpiexec; under mpiexec, rank 0 prints. The
exit status is 1 if something keeps programs from running.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

from mpi4py import MPI

import mpi_bootstrap

from ... import tuning
from ...nodes import nccl_library
from ...system import driver, mpi_library, settings
from ...system.cache_folders import cache_directory
from .. import common
from . import checks, networks, sharing
from .networks import Facts

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

_CUDA_AWARE = {True: "takes device arrays", False: "takes no device arrays", None: "may take device arrays"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Print facts about the machine and MPI, and advice; exit with 1 on a problem."""
    place = mpi_bootstrap.topology(MPI.COMM_WORLD)
    nodes, shared = networks.gather(place), sharing.gather(place)
    if place.rank > 0:
        return
    facts, findings = gather(place) | {"sharing": shared}, list(_findings(nodes, shared))
    facts["between_nodes"]["nodes"] = nodes
    if arguments.json:
        advice = {
            "problems": [each.text for each in findings if each.is_problem],
            "advice": [each.text for each in findings if not each.is_problem],
        }
        print(json.dumps(facts | advice, indent=1), flush=True)
    else:
        for name, text in _lines(facts):
            print(f"{name + ':':15}{text}")
        print("\nSettings" + "".join(f"\n{_setting(each)}" for each in facts["settings"]) + "\n")
        print("\n".join(f"{'!!' if each.is_problem else '->'} {each.text}" for each in findings), flush=True)
    if any(each.is_problem for each in findings):
        sys.exit(1)


def _findings(nodes: list[Facts], shared: Facts) -> Iterator[checks.Finding]:
    """Yield problems and advice of this process, of ranks' sharing, and of networks."""
    yield from map(checks.problem, sharing.problems(shared))
    yield from checks.findings()
    yield from map(checks.advice, [*sharing.advice(shared, on_host=checks.is_on_cpu()), *networks.shared(nodes)])


def _lines(facts: Facts) -> Iterator[tuple[str, str]]:
    about, mpi, launcher, tables = (facts[name] for name in ("pyncclx", "mpi", "launcher", "tuning_tables"))
    yield "pyncclx", f"{about['version'] or 'not installed, used from its folder'}; Python {about['python']}"
    yield "GPUs", _gpus_text(facts["gpus"])
    yield "Packages", _packages(facts["packages"])
    taken = _CUDA_AWARE[mpi["takes_device_arrays"]]
    yield "MPI", f"{mpi['name']} {mpi['version']} ({mpi['file'] or 'file unknown'}); {taken}"
    nodes = facts["between_nodes"]
    shape = f"{len(nodes['ranks_of_nodes'])} node(s) of {', '.join(map(str, nodes['ranks_of_nodes']))} rank(s)"
    nccl = f"NCCL {nodes['nccl']}" if nodes["nccl"] else f"no NCCL ({nodes['why_no_nccl']})"
    yield "Nodes", f"{shape}; {nodes['rails']} rail(s); between nodes: {nodes['engine']}; {nccl}"
    started, mpiexec = launcher["name"] or "none", launcher["mpiexec"] or "none"
    yield from networks.lines(nodes["nodes"])
    yield "Launcher", f"{started}; {launcher['ranks']} rank(s); mpiexec: {mpiexec}"
    yield "Shared memory", sharing.line(facts["sharing"])
    yield "Kernel cache", _cache_text(facts["kernel_cache"])
    yield "Host compiler", facts["host_compiler"] or "no g++"
    yield "Tuning tables", _unusable(tables) or "; ".join(tables["tables"])


def _gpus_text(gpus: Facts) -> str:
    names, apart = gpus["names"], gpus["pairs_without_peer_access"]
    if not names:
        return f"none (CUDA driver: {gpus['cuda'] or 'none'})"
    peers = f"no peer access between {apart}" if apart else "each can use the memory of all"
    kinds = ", ".join(sorted(set(names)))
    return f"{len(names)} x {kinds}; CUDA {gpus['cuda']}; {peers if len(names) > 1 else 'no peers'}"


def _packages(versions: Facts) -> str:
    missing = [name for name, version in versions.items() if version is None]
    installed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return installed + (f"; not installed: {', '.join(missing)}" if missing else "")


def _cache_text(cache: Facts) -> str:
    return _unusable(cache) or f"{cache['folder']}, {cache['files']} files, {cache['nbytes'] / 1e6:.1f} MB"


def _unusable(fact: Facts) -> str | None:
    return f"cannot be used: {fact['error']}" if "error" in fact else None


def _setting(setting: Facts) -> str:
    """Return a line: the variable, its value and source, and what it sets."""
    value = f"cannot be used: {setting['error']}" if setting["error"] else setting["value"]
    shown = f"{value} ({setting['source']})"
    return f"  {setting['name']:17} {shown:49} {setting['text']}"


# ---- the facts, as plain values --------------------------------------------------------------------------------------


def gather(place: mpi_bootstrap.Topology) -> Facts:
    """Return all facts by subject; `place` is this rank's place among the nodes.

    The values can be written as JSON.
    """
    return {
        "pyncclx": {"version": common.installed_version("pyncclx"), "python": platform.python_version()},
        "gpus": _gpus(),
        "packages": {name: common.installed_version(*each) for name, each in _DISTRIBUTIONS.items()},
        "mpi": _mpi(),
        "between_nodes": _between_nodes(place),
        "launcher": _launcher(),
        "kernel_cache": _of_folder(_cache),
        "host_compiler": _compiler(),
        "tuning_tables": _of_folder(lambda: {"tables": list(tuning.provenance())}),
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

    The wrong setting is reported as a problem separately.
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


def _of_folder(facts: Callable[[], Facts]) -> Facts:
    """Return the facts of a folder, or the error that prevents reading it."""
    try:
        return facts()
    except OSError as error:
        return {"error": str(error)}


def _cache() -> Facts:
    sizes = [path.stat().st_size for path in cache_directory().rglob("*") if path.is_file()]
    return {"folder": str(cache_directory()), "files": len(sizes), "nbytes": sum(sizes)}


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
