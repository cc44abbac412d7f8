"""pyncclx moves GPU arrays between the ranks of an MPI program, by GPU kernels behind mpi4py's communicators."""

from .communicator import Communicator, Intracomm
from .errors import Aborted, CapacityExceeded, CollectiveMismatch, NotSupported, PeerTimeout
from .ops import AVG

__all__ = [
    "AVG",
    "Aborted",
    "CapacityExceeded",
    "CollectiveMismatch",
    "Communicator",
    "Intracomm",
    "NotSupported",
    "PeerTimeout",
]
__version__ = "0.1.0"
