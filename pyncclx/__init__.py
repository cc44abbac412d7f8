"""pyncclx moves GPU arrays between the ranks of an MPI program, by GPU kernels behind mpi4py's communicators."""

from .communicator.communicator import (
    Cartcomm,
    Comm,
    Communicator,
    Distgraphcomm,
    Graphcomm,
    Intercomm,
    Intracomm,
    Topocomm,
)
from .device.team import DeviceTeam
from .errors import Aborted, CapacityExceeded, CollectiveMismatch, NotSupported, PeerTimeout
from .operators.ops import AVG
from .operators.row_transform import Transform
from .operators.user_op import Op
from .requests.persistent import Prequest
from .requests.request import Request
from .system.paths import include_path
from .team.registration import Registration
from .tokens.rows import Handle, Rows
from .tokens.shuffle import TokenShuffle
from .windows.win import Win

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
