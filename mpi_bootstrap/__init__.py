"""Nodes of a communicator, and exchanges of bytes, errors and descriptors by MPI.

Ranks use these before they share memory. Needs mpi4py and the standard library only; there is no CUDA in it. Importing
it imports `mpi4py.MPI`, which initialises MPI unless `mpi4py.rc` says otherwise.
"""

from .agreement import agree, allgather_bytes, allgather_objects, exchange, first_bytes
from .channel import Channel, has_channels
from .descriptors import allgather_fds
from .freeing import forget, has_given_up
from .groups import part, same_ranks
from .identity import node_identity
from .interrupts import interrupts_deferred
from .launch import LaunchError, check_launch, is_job_on_one_node
from .meeting import Meeting, sleeping_barrier
from .plain import plain
from .topology import Topology, topology
from .waiting import Judge, judge_by

__all__ = [
    "Channel",
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
    "has_channels",
    "has_given_up",
    "interrupts_deferred",
    "is_job_on_one_node",
    "judge_by",
    "node_identity",
    "part",
    "plain",
    "same_ranks",
    "sleeping_barrier",
    "topology",
]
