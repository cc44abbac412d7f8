"""Describe where a benchmark ran, and print and write its results on rank 0."""

from __future__ import annotations

import argparse
import datetime
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpi4py import MPI

from ...communicator.adopting import Communicator
from ...system import settings
from ...team.members import most_ranks_per_device
from .. import common
from .peers import Peer

Row = dict[str, Any]
HOST = "host device"
_PACKAGES = (
    *("pyncclx", "mpi4py", "numpy", "cupy-cuda13x", "cupy-cuda12x", "torch"),
    *("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
)
_NVLINK4 = ("H100", "H200")
# Nominal bandwidth in one direction: 18 links of 25 GB/s.
_NVLINK4_GBS = 450.0


def describe(comm: Any, *, graph: bool, buffers: str = "ordinary", peers: Mapping[str, Peer] | None = None) -> Row:
    """Return where and how operations were measured."""
    return {
        **of(comm),
        "mode": "graph" if graph else "eager",
        "buffers": buffers,
        "peers": {name: peer.about for name, peer in (peers or {}).items()},
        "NCCL_NVLS_ENABLE": settings.foreign("NCCL_NVLS_ENABLE") or "not set",
    }


def of(comm: Any) -> Row:
    """Return where and with which versions a benchmark ran (collective at first use).

    The result has the number of ranks and nodes, the engine between nodes, the device, the date, and versions.
    """
    spanning = comm.spanning
    # The team of this rank's node.
    team = comm.team if spanning is None else spanning.team
    return {
        "ranks": comm.size,
        "nodes": 1 if spanning is None else spanning.places.count,
        "engine": None if spanning is None else spanning.rails.engine_name,
        "ranks_of_a_device": most_ranks_per_device(team.members),
        "device": team.device.kind,
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := common.installed_version(name))},
    }


def ranks(about: Row) -> str:
    """Return the number of ranks, their nodes if there are several, and their device."""
    number = about.get("ranks_of_a_device", 1)
    shared = f"{number} on each " if number > 1 else ""
    nodes = f" on {about['nodes']} nodes (engine: {about['engine']})" if over_nodes(about) else ""
    return f"{about['ranks']} ranks{nodes}, {shared}{about['device']}"


def over_nodes(about: Row) -> bool:
    """Return whether the ranks were on several nodes."""
    return bool(about.get("nodes", 1) > 1)


def wire(about: Row) -> float | None:
    """Return the GB/s of a device's links in one direction; None if unknown.

    It is also None if the links do not connect all ranks.
    """
    device = about["device"]
    has_nvlink4 = any(name in device for name in _NVLINK4) and "PCIe" not in device
    alone = about.get("ranks_of_a_device", 1) == 1 and not over_nodes(about)
    return _NVLINK4_GBS if has_nvlink4 and alone else None


def ranks_on_devices() -> Any:
    """Return a communicator of all ranks, each on its device (collective)."""
    comm = Communicator(MPI.COMM_WORLD)
    comm.select_device()
    return comm


def say(comm: Any, *lines: str) -> None:
    """Print lines on rank 0."""
    if comm.rank == 0 and lines:
        print("\n".join(lines), flush=True)


def write_files(
    comm: Any, arguments: argparse.Namespace, about: Row, rows: list[Row], draw: Callable[[Path, Row, list[Row]], None]
) -> None:
    """Write the files of --json and --plot on rank 0."""
    if comm.rank == 0:
        write_json(arguments.json, about, {"results": rows})
        if arguments.plot:
            draw(arguments.plot, about, rows)


def write_json(path: Path | None, about: Row, results: Row) -> None:
    """Write environment and results to the file of --json, if given."""
    if path:
        common.write_json(path, {"environment": about, **results})
