"""Other libraries, timed in the same processes and the same run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .base import Ours, Peer, Staged
from .nccl import Nccl, SymmetricNccl
from .pytorch import Torch

__all__ = ["PEERS", "Ours", "Peer", "Staged", "make"]

PEERS: dict[str, Callable[[Any], Peer]] = {"nccl": Nccl, "nccl-symmetric": SymmetricNccl, "torch": Torch, "mpi": Staged}


def make(names: str | None, comm: Any) -> dict[str, Peer]:
    """Return the peers of a list separated by commas (collective)."""
    wanted = [name.strip() for name in names.split(",")] if names else []
    # Read this before a peer starts NCCL, because NCCL checks only once whether nodes are simulated.
    spanning = comm.spanning
    for name in wanted:
        if name not in PEERS:
            raise SystemExit(f"--against {name}: give one or more of {','.join(PEERS)}")
        if comm.device == "host" and name != "mpi":
            raise SystemExit(f"--against {name} needs GPUs; the host device has --against mpi")
        if name == "torch" and spanning is not None:
            raise SystemExit("--against torch works inside one node; over nodes there are nccl and mpi")
    return {name: PEERS[name](comm) for name in wanted}
