"""pyncclx moves GPU arrays between the ranks of an MPI program, by GPU kernels behind mpi4py's communicators."""

from .communicator import (
    Cartcomm,
    Comm,
    Communicator,
    Distgraphcomm,
    Graphcomm,
    Intercomm,
    Intracomm,
    Topocomm,
)
from .device_team import DeviceTeam
from .errors import Aborted, CapacityExceeded, CollectiveMismatch, NotSupported, PeerTimeout
from .messages.request import Request
from .ops import AVG
from .paths import include_path
from .persistent import Prequest
from .registration import Registration
from .row_transform import Transform
from .token_memory import Handle, Rows
from .token_shuffle import TokenShuffle
from .user_op import Op
from .win import Win

__all__ = [
    "AVG",
    "Aborted",
    "CapacityExceeded",
    "Cartcomm",
    "CollectiveMismatch",
    "Comm",
    "Communicator",
    "DeviceTeam",
    "Distgraphcomm",
    "Graphcomm",
    "Handle",
    "Intercomm",
    "Intracomm",
    "NotSupported",
    "Op",
    "PeerTimeout",
    "Prequest",
    "Registration",
    "Request",
    "Rows",
    "TokenShuffle",
    "Topocomm",
    "Transform",
    "Win",
    "include_path",
]
__version__ = "0.1.0"
