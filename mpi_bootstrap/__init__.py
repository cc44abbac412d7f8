"""Processes and nodes: where ranks run, and how they exchange bytes, file descriptors and verdicts.

Needs mpi4py and the standard library only, and knows nothing of GPUs. Importing it imports
`mpi4py.MPI`, which initialises MPI unless `mpi4py.rc` says otherwise.
"""

from .exchange import agree, allgather_bytes, allgather_fds
from .topology import LaunchError, Topology, check_launch, topology

__all__ = [
    "LaunchError",
    "Topology",
    "agree",
    "allgather_bytes",
    "allgather_fds",
    "check_launch",
    "topology",
]
