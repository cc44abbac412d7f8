"""Nodes of a communicator, and exchanges of bytes, errors and descriptors by MPI.

Ranks use these before they share memory. Needs mpi4py and the standard library only; there is no CUDA in it. Importing
it imports `mpi4py.MPI`, which initialises MPI unless `mpi4py.rc` says otherwise.
"""

from .agreement import agree, allgather_bytes, allgather_objects, exchange, first_bytes
from .descriptors import allgather_fds
from .freeing import forget, has_given_up
from .identity import node_identity
from .interrupts import interrupts_deferred
from .launch import LaunchError, check_launch
from .meeting import Meeting
from .parts import part, same_ranks
from .plain import plain
from .sleeping import sleeping_barrier
from .topology import Topology, topology
from .waiting import Judge, judge_by

__all__ = [
    "Judge",
    "LaunchError",
    "Meeting",
    "Topology",
    "agree",
    "allgather_bytes",
    "allgather_fds",
    "allgather_objects",
    "check_launch",
    "exchange",
    "first_bytes",
    "forget",
    "has_given_up",
    "interrupts_deferred",
    "judge_by",
    "node_identity",
    "part",
    "plain",
    "same_ranks",
    "sleeping_barrier",
    "topology",
]
