"""The memory that the collectives written in Python exchange data through; made at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from mpi4py import MPI

from ..device.team import DeviceTeam
from ..errors import NotSupported
from ..memory.mapped import allocate_window
from ..team.team import Team

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm

BLOCKS = 128  # of a grid, at most
PACKETS_NBYTES = 32 << 10  # of the packet slots of one block and parity, for all sources together
CHUNKS_NBYTES = 64 << 10  # and of its chunk slots
PACKETS_BEGIN = 1024  # after the turns, 8 bytes a block
CHUNKS_BEGIN = PACKETS_BEGIN + BLOCKS * 2 * PACKETS_NBYTES
NBYTES = CHUNKS_BEGIN + BLOCKS * 2 * CHUNKS_NBYTES


def packet_nbytes(size: int) -> int:
    """The longest message that a packet slot holds; packets take twice as much."""
    return PACKETS_NBYTES // 2 // size // 16 * 16


def chunk_nbytes(size: int) -> int:
    """The longest message that a chunk slot holds."""
    return CHUNKS_NBYTES // size // 16 * 16


class Workspace:
    """What the kernels of one communicator are told.

    Attributes
    ----------
    team : DeviceTeam
        With a signal for each block and source.
    address : int
        This rank's memory.
    """

    def __init__(self, comm: Intracomm, team: Team) -> None:
        window = allocate_window(cast(MPI.Intracomm, comm), team.device, 0, NBYTES)
        self.team = DeviceTeam(cast(MPI.Intracomm, comm), team, BLOCKS * comm.size, BLOCKS, 0, own=(window,))
        self.address = window.memory.address


def workspace_of(comm: Intracomm, operation: str) -> Workspace:
    """The communicator's workspace. Collective at the first use; it lasts as long as the communicator.

    Raises
    ------
    NotSupported
        On the host device, which has no kernels written in Python.
    """
    team = comm.team
    if team.device.name == "host":
        raise NotSupported(
            f"{operation}: algorithm='numba' is a kernel that Numba compiles for GPUs, and the host device emulates "
            "those in C++ only; leave algorithm out"
        )
    if team.numba is None:
        team.numba = Workspace(comm, team)
    return cast(Workspace, team.numba)
