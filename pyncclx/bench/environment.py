"""Where, when and with what the benchmark's figures were taken."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from ..team.members import most_of_a_device
from .peers import Peer, nvls_setting

_PACKAGES: tuple[str, ...] = ("pyncclx", "mpi4py", "numpy", "cupy-cuda13x", "cupy-cuda12x", "torch")
_PACKAGES += ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
HOST = "host device"
_NVLINK4 = ("H100", "H200")
_NVLINK4_GBS = 450.0  # nominal, in one direction: 18 links


def describe(comm: Any, arguments: argparse.Namespace, peers: dict[str, Peer]) -> dict[str, Any]:
    """What goes with the benchmark's figures."""
    return {
        **of(comm),
        "mode": "graph" if arguments.graph else "eager",
        "buffers": arguments.buffers,
        "peers": {name: peer.about for name, peer in peers.items()},
        "NCCL_NVLS_ENABLE": nvls_setting(),
    }


def of(comm: Any) -> dict[str, Any]:
    """What goes with all figures that are taken on a communicator."""
    return {
        "ranks": comm.size,
        "ranks_of_a_device": most_of_a_device(comm.team.members),
        "device": comm.team.device.kind,
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def ranks(about: dict[str, Any]) -> str:
    """How many ranks there were, on what."""
    shared = f"{about['ranks_of_a_device']} on each " if _share(about) else ""
    return f"{about['ranks']} ranks, {shared}{about['device']}"


def _share(about: dict[str, Any]) -> bool:
    return bool(about.get("ranks_of_a_device", 1) > 1)


def wire(about: dict[str, Any]) -> float | None:
    """GB/s that the links of a rank's device carry in one direction, if it is known."""
    device = about["device"]
    linked = any(name in device for name in _NVLINK4) and "PCIe" not in device
    return _NVLINK4_GBS if linked and not _share(about) else None


def write_json(path: Path | None, about: dict[str, Any], results: dict[str, Any]) -> None:
    """Write what --json asks for."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"environment": about, **results}, indent=1) + "\n")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
