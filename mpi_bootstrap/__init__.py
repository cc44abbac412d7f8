"""Find a communicator's nodes; exchange bytes, errors and file descriptors by MPI.

Ranks call these functions before they share memory. The package needs mpi4py and the standard library only, not CUDA.
It imports `mpi4py.MPI`, which initialises MPI unless `mpi4py.rc` says otherwise.
"""

import warnings
from typing import TYPE_CHECKING

from .agreement import agree, allgather_bytes, allgather_objects, exchange, first_bytes
from .channel import Channel, has_channels
from .descriptors import allgather_fds
from .freeing import forget, has_left
from .groups import part, same_ranks
from .identity import node_identity
from .interrupts import interrupts_deferred
from .launch import LaunchError, check_launch, is_job_on_one_node
from .meeting import missing_ranks, sleeping_barrier
from .plain import plain
from .topology import Topology, topology
from .waiting import WaitPolicy, leave_interrupted, set_wait_policy

__all__ = [
    "Channel",
    "LaunchError",
    "Topology",
    "WaitPolicy",
    "agree",
    "allgather_bytes",
    "allgather_fds",
    "allgather_objects",
    "check_launch",
    "exchange",
    "first_bytes",
    "forget",
    "has_channels",
    "has_left",
    "interrupts_deferred",
    "is_job_on_one_node",
    "leave_interrupted",
    "missing_ranks",
    "node_identity",
    "part",
    "plain",
    "same_ranks",
    "set_wait_policy",
    "sleeping_barrier",
    "topology",
]

_NEW_NAMES = {"Judge": "WaitPolicy", "judge_by": "set_wait_policy"}  # old name: new name


if not TYPE_CHECKING:  # type checkers find misspelt names

    def __getattr__(name: str) -> object:
        """Return a class or function by its old name, with a DeprecationWarning."""
        if name not in _NEW_NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        new_name = _NEW_NAMES[name]
        warnings.warn(f"mpi_bootstrap.{name} is now mpi_bootstrap.{new_name}", DeprecationWarning, stacklevel=2)
        return globals()[new_name]
