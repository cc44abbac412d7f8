"""The memory that a program's own kernels are given: `comm.device_team` makes it (twin of cuda/device/team.cuh)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

import mpi_bootstrap

from ..errors import MPIError
from ..memory import layout
from ..memory.cstruct import U64, CStruct, offsets_of, sizeof
from ..memory.mapped import Window, allocate_window
from ..memory.parameters import NO_CALL, TEAM_NBYTES, EachRankU64
from ..memory.table import Table, write
from ..team.operations import DEVICE_TEAM
from ..team.team import Team


@dataclass(slots=True, kw_only=True)
class DeviceTeamStruct(CStruct):
    """`DeviceTeam` of cuda/device/team.cuh after its Team."""

    signals: U64
    blocks: U64
    counters: U64
    windows: U64  # a table with rows of `_row`, and the number of rows before them
    state: EachRankU64  # every rank's memory of this team, as mapped here


LINE = 128  # SignalWord, BarrierWords, CounterWords
WINDOWS_OFFSET = TEAM_NBYTES + offsets_of(DeviceTeamStruct)["windows"]
_ROW_NBYTES, _HEAD_NBYTES = 2 * 8 * layout.MAX_RANKS, 8
NBYTES = -(-(TEAM_NBYTES + sizeof(DeviceTeamStruct)) // LINE) * LINE  # DeviceTeam


class DeviceTeam:
    """A communicator for a program's own kernels: the first argument of the device functions.

    `Intracomm.device_team` makes it. It lasts until the communicator is freed.

    Attributes
    ----------
    rank, size : int
        Of the communicator.
    signals, blocks, counters : int
        As it was made.
    nbytes : int
        Bytes of device memory that it takes on this rank.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> team = comm.device_team(signals=4)
    >>> team.signal_words.tolist()
    [0, 0, 0, 0]
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        team: Team,
        *,
        signals: int,
        blocks: int,
        counters: int,
        for_program: bool = True,
        own: tuple[Window, ...] = (),  # windows for the kernels of this team alone
    ) -> None:
        self.rank, self.size = team.rank, team.size
        self.sharing = team.layout.sharing  # ranks whose kernels are on one GPU
        self.signals, self.blocks, self.counters = signals, blocks, counters
        self.for_program = for_program
        self._team: Team | None = team
        self._own = own
        self._rows = 0
        self._table = Table(team.device, _ROW_NBYTES, _HEAD_NBYTES)
        self._window: Window = allocate_window(comm, team.device, 0, NBYTES + LINE * (signals + blocks + counters))
        self._words = self._window.memory.nbytes // 8
        self.nbytes = 8 * self._words + sum(window.memory.nbytes for window in own)
        try:
            mpi_bootstrap.agree(comm, lambda: self._fill(team))
        except BaseException:
            self._window.close()
            raise
        team.device_teams.append(self)

    def _fill(self, team: Team) -> None:
        """Write what kernels read to this rank's memory."""
        self._table.set_head(struct.pack("=Q", self._rows))
        for row, window in enumerate(self._own):
            self._set_row(row, window)
        for number, window in team.windows.by_number.items():
            self._set_row(len(self._own) + number, window)
        parts = DeviceTeamStruct(
            signals=self.signals,
            blocks=self.blocks,
            counters=self.counters,
            windows=self._table.address,
            state=self._window.bases,
        )
        write(team.device, self._window.memory.address, team.struct_for(DEVICE_TEAM) + NO_CALL + parts.pack())

    def _set_row(self, row: int, window: Window | None) -> None:
        """Change a window's row; one of zeros holds no address."""
        padding = [0] * (layout.MAX_RANKS - self.size)
        words = (*window.bases, *padding, *window.sizes, *padding) if window else ()
        self._table.set_row(row, struct.pack(f"={len(words)}Q", *words).ljust(_ROW_NBYTES, b"\0"))
        if row >= self._rows:
            self._rows = row + 1
            self._table.set_head(struct.pack("=Q", self._rows))

    def __repr__(self) -> str:
        state = "" if self._team else ", freed"
        return f"<pyncclx.DeviceTeam of rank {self.rank} of {self.size}{state}>"

    @property
    def pointer(self) -> int:
        """The address of the team in device memory, a 64-bit integer: what kernels take.

        Raises
        ------
        MPI.Exception
            Of class ERR_COMM: the communicator has been freed, and its teams with it.
        """
        self._alive()
        return self._window.memory.address

    @property
    def signal_words(self) -> Any:
        """This rank's signals as a device array of uint64, shape (signals,): a view, with gaps between the words.

        Raises
        ------
        MPI.Exception
            Of class ERR_COMM: the communicator has been freed.
        """
        words = self._alive().device.array(self._window.owner, (self._words,), np.uint64)
        return words[NBYTES // 8 :][: self.signals * LINE // 8 : LINE // 8]

    def signal_address(self, signal: int, rank: int | None = None) -> int:
        """Return the address of a signal as this process has it mapped.

        Parameters
        ----------
        signal : int
            From 0 to ``signals - 1``; not checked.
        rank : int, optional
            Whose signal; this rank's if left out.

        Returns
        -------
        int

        Raises
        ------
        MPI.Exception
            Of class ERR_COMM: the communicator has been freed.
        """
        self._alive()
        base = self._window.memory.address if rank is None else self._window.bases[rank]
        return base + NBYTES + LINE * signal

    def check(self) -> None:
        """Raise what kernels with this team have recorded so far. It does not wait for those that still run.

        Raises
        ------
        PeerTimeout, Aborted
            A wait was in vain. From then on at every call of the communicator: free it.
        ValueError
            A device function was given an invalid argument; raised once, and the communicator goes on.
        MPI.Exception
            Of class ERR_COMM: the communicator has been freed.
        """
        self._alive().errors.check()

    def update_window(self, number: int) -> None:
        """Let kernels with this team find a window of the communicator that was added, or no longer one removed."""
        team, before = self._alive(), self._table.address
        self._set_row(len(self._own) + number, team.windows.by_number.get(number))
        if self._table.address != before:
            place = struct.pack("=Q", self._table.address)
            write(team.device, self._window.memory.address + WINDOWS_OFFSET, place)

    def close(self) -> None:
        """Make the team unusable, also for kernels: a late one finds zeros, as the memory goes with this object."""
        team, self._team = self._alive(), None
        team.device_teams.remove(self)
        team.device.fill_zero(self._window.memory.address, NBYTES)
        for window in (self._window, *self._own):
            window.close()

    @property
    def is_open(self) -> bool:
        """Whether its communicator has not been freed."""
        return self._team is not None

    def _alive(self) -> Team:
        if self._team is None:
            raise MPIError(MPI.ERR_COMM, "device_team: its communicator has been freed; make another one's team")
        return self._team
