"""Environment of the benchmark's figures: place, date and versions."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...system import packages, settings
from ...team.members import most_ranks_per_device
from .peers import Peer

HOST = "host device"
_PACKAGES = (
    *("pyncclx", "mpi4py", "numpy", "cupy-cuda13x", "cupy-cuda12x", "torch"),
    *("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
)
_NVLINK4 = ("H100", "H200")
# Nominal, in one direction: 18 links of 25 GB/s.
_NVLINK4_GBS = 450.0


def describe(
    comm: Any, *, graph: bool, buffers: str = "ordinary", peers: Mapping[str, Peer] | None = None
) -> dict[str, Any]:
    """Return the environment of figures of operations."""
    return {
        **of(comm),
        "mode": mode(graph=graph),
        "buffers": buffers,
        "peers": {name: peer.about for name, peer in (peers or {}).items()},
        "NCCL_NVLS_ENABLE": settings.foreign("NCCL_NVLS_ENABLE") or "not set",
    }


def of(comm: Any) -> dict[str, Any]:
    """Return where and with what a benchmark ran (collective at first use).

    That is the number of ranks and nodes, the engine between nodes, the device, the date, and versions.
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
        "versions": {name: version for name in _PACKAGES if (version := packages.version(name))},
    }


def mode(*, graph: bool) -> str:
    """Return how calls are timed."""
    return "graph" if graph else "eager"


def ranks(about: dict[str, Any]) -> str:
    """Return the number of ranks, their nodes if there are several, and their device."""
    number = about.get("ranks_of_a_device", 1)
    shared = f"{number} on each " if number > 1 else ""
    nodes = f" on {about['nodes']} nodes (engine: {about['engine']})" if over_nodes(about) else ""
    return f"{about['ranks']} ranks{nodes}, {shared}{about['device']}"


def over_nodes(about: dict[str, Any]) -> bool:
    """Return whether the ranks were on several nodes."""
    return bool(about.get("nodes", 1) > 1)


def wire(about: dict[str, Any]) -> float | None:
    """Return the GB/s of a device's links in one direction; None if unknown.

    None also if the links do not join all ranks.
    """
    device = about["device"]
    has_nvlink4 = any(name in device for name in _NVLINK4) and "PCIe" not in device
    alone = about.get("ranks_of_a_device", 1) == 1 and not over_nodes(about)
    return _NVLINK4_GBS if has_nvlink4 and alone else None


def write_json(path: Path | None, about: dict[str, Any], results: dict[str, Any]) -> None:
    """Write environment and results to the file of --json; do nothing without one."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"environment": about, **results}, indent=1) + "\n")
