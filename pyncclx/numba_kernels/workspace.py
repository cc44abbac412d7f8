"""Memory through which the collectives written in Python exchange data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, cast

from mpi4py import MPI

from ..device.team import DeviceTeam
from ..errors import NotSupported
from ..memory.cstruct import U64, CStruct
from ..memory.mapped import allocate_window
from ..team.base import IntraBase as Intracomm
from ..team.team import Team

# The sizes of slots are not measured. They make a workspace of 24 MiB.
BLOCKS = 128  # most blocks of a grid
PACKETS_NBYTES = 32 << 10  # packet slots of one block and parity, for all sources together
CHUNKS_NBYTES = 64 << 10  # chunk slots of one block and parity, for all sources together
PACKETS_BEGIN = 1024  # after the turns, 8 bytes a block
CHUNKS_BEGIN = PACKETS_BEGIN + BLOCKS * 2 * PACKETS_NBYTES
NBYTES = CHUNKS_BEGIN + BLOCKS * 2 * CHUNKS_NBYTES


def packet_nbytes(size: int) -> int:
    """Return the longest message that a packet slot holds, in bytes: half of the slot."""
    return PACKETS_NBYTES // 2 // size // 16 * 16


def chunk_nbytes(size: int) -> int:
    """Return the longest message that a chunk slot holds, in bytes."""
    return CHUNKS_NBYTES // size // 16 * 16


@dataclass(slots=True, kw_only=True)
class NumbaArgs(CStruct):
    """The members of `NumbaArgs` (cuda/numba_kernels/) that follow `team`."""

    device_team: U64
    workspace: U64
    words: Annotated[Sequence[int], "16q"]  # the arguments of the Python function


class Workspace(DeviceTeam):
    """A communicator's workspace, and the device team that its kernels use.

    The team has a signal for each block and source.

    Attributes
    ----------
    address : int
        Address of this rank's memory.
    """

    def __init__(self, comm: MPI.Intracomm, team: Team) -> None:
        window = allocate_window(comm, team.device, 0, NBYTES)
        try:
            super().__init__(comm, team, signals=BLOCKS * comm.size, blocks=BLOCKS, counters=0, own=(window,))
        except BaseException:
            window.close()
            raise
        self.address = window.memory.address

    def pack(self, *words: int) -> bytes:
        """Return the bytes of `NumbaArgs` that follow its member `team`."""
        return NumbaArgs(device_team=self.pointer, workspace=self.address, words=words).pack()


def workspace_of(comm: Intracomm, operation: str) -> Workspace:
    """Return the communicator's workspace. Collective at the first use.

    The workspace lasts as long as the communicator.

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
    made = next((each for each in team.device_teams if isinstance(each, Workspace)), None)
    return made or Workspace(cast(MPI.Intracomm, comm), team)
