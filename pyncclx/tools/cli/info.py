"""python -m pyncclx info: print what this machine has and what it lacks.

It also prints how to get what is missing. It needs neither a GPU nor mpiexec. Under mpiexec, rank 0 prints. The exit
status is 1 if something keeps programs from running.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

from mpi4py import MPI

import mpi_bootstrap

from . import checks, networks, sharing
from .facts import Facts, gather

_CUDA_AWARE = {
    True: "takes device arrays",
    False: "takes no device arrays",
    None: "may take device arrays",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Print facts and advice."""
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
    yield "GPUs", _gpus(facts["gpus"])
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
    yield "Kernel cache", _cache(facts["kernel_cache"])
    yield "Host compiler", facts["host_compiler"] or "no g++"
    yield "Tuning tables", _unusable(tables) or "; ".join(tables["tables"])


def _gpus(gpus: Facts) -> str:
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


def _cache(cache: Facts) -> str:
    return _unusable(cache) or f"{cache['folder']}, {cache['files']} files, {cache['nbytes'] / 1e6:.1f} MB"


def _unusable(fact: Facts) -> str | None:
    return f"cannot be used: {fact['error']}" if "error" in fact else None


def _setting(setting: Facts) -> str:
    """Return a line: the variable, its value and source, and what it sets."""
    value = f"cannot be used: {setting['error']}" if setting["error"] else setting["value"]
    shown = f"{value} ({setting['source']})"
    return f"  {setting['name']:17} {shown:49} {setting['text']}"
