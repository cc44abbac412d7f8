"""Nodes of a communicator, and exchanges before ranks share memory: bytes, file descriptors, agreement on errors.

Needs mpi4py and the standard library only; there is no CUDA in it. Importing it imports `mpi4py.MPI`, which
initialises MPI unless `mpi4py.rc` says otherwise.
"""

from .agreement import agree, allgather_bytes
from .descriptors import allgather_fds
from .interrupts import interrupts_deferred
from .launch import LaunchError, check_launch
from .meeting import Meeting
from .sleeping import sleeping_barrier
from .topology import Topology, topology

__all__ = [
    "LaunchError",
    "Meeting",
    "Topology",
    "agree",
    "allgather_bytes",
    "allgather_fds",
    "check_launch",
    "interrupts_deferred",
    "sleeping_barrier",
    "topology",
]
