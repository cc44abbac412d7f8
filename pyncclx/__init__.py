"""GPU kernels that run the communication of mpi4py programs.

Names are loaded at their first use. The first one imports `mpi4py.MPI`, which initialises MPI according to `mpi4py.rc`.
"""

# ruff: noqa: F405
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .communicator.public import *  # noqa: F403

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
    "Event",
    "Graphcomm",
    "Handle",
    "Intercomm",
    "Intracomm",
    "NotSupported",
    "Op",
    "PartitionedRequest",
    "PeerTimeout",
    "Prequest",
    "RankFailed",
    "Registration",
    "Request",
    "Revoked",
    "Rows",
    "TokenShuffle",
    "Topocomm",
    "Transform",
    "Win",
    "dump",
    "include_path",
    "on_event",
]
__version__ = "0.1.0"


# Type checkers must report missing names, which this function would hide.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in __all__:
            public = importlib.import_module(".communicator.public", __name__)
            return globals().setdefault(name, getattr(public, name))
        if name.islower() and not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):  # a module
            return importlib.import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
