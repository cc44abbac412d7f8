"""Device teams, through which a program's own kernels communicate.

Twin of cuda/device/team.cuh.
"""

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
from ..operations import DEVICE_TEAM
from ..team.team import Team


@dataclass(slots=True, kw_only=True)
class DeviceTeamStruct(CStruct):
    """The members of `DeviceTeam` (cuda/device/team.cuh) that follow `team`."""

    signals: U64
    blocks: U64
    counters: U64
    windows: U64  # a table: the number of rows, then rows of `_ROW_NBYTES`
    state: EachRankU64  # each rank's memory of this team, as mapped here


LINE = 128  # bytes of a SignalWord, BarrierWords or CounterWords
WINDOWS_OFFSET = TEAM_NBYTES + offsets_of(DeviceTeamStruct)["windows"]
_ROW_NBYTES, _HEAD_NBYTES = 2 * 8 * layout.MAX_RANKS, 8
NBYTES = -(-(TEAM_NBYTES + sizeof(DeviceTeamStruct)) // LINE) * LINE  # DeviceTeam


class DeviceTeam:
    """A communicator for user kernels: the first argument of the device functions.

    `Intracomm.device_team` makes it. It is valid until the communicator is freed.

    Attributes
    ----------
    rank, size : int
        As in the communicator.
    signals, blocks, counters : int
        The numbers that were passed to `Intracomm.device_team`.
    nbytes : int
        Bytes of device memory that it uses on this rank.

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
        own: tuple[Window, ...] = (),  # windows for this team's kernels alone
    ) -> None:
        self.rank, self.size = team.rank, team.size
        self.sharing = team.layout.sharing  # ranks whose kernels share a GPU
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
        """Write the data that kernels read to this rank's memory."""
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
        """Set a window's row; without a window, fill it with zeros, which hold no address."""
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
        """Address of the team in device memory, as a 64-bit integer for kernels.

        Raises
        ------
        MPI.Exception
            Class ERR_COMM: the communicator has been freed, and its teams with it.
        """
        self._alive()
        return self._window.memory.address

    @property
    def signal_words(self) -> Any:
        """This rank's signals as a strided device array of uint64, shape (signals,).

        Raises
        ------
        MPI.Exception
            Class ERR_COMM: the communicator has been freed.
        """
        words = self._alive().device.array(self._window.owner, (self._words,), np.uint64)
        return words[NBYTES // 8 :][: self.signals * LINE // 8 : LINE // 8]

    def signal_address(self, signal: int, rank: int | None = None) -> int:
        """Return the address of a signal as mapped in this process.

        Parameters
        ----------
        signal : int
            From 0 to ``signals - 1``; not checked.
        rank : int, optional
            The signal's rank; this rank by default.

        Returns
        -------
        int

        Raises
        ------
        MPI.Exception
            Class ERR_COMM: the communicator has been freed.
        """
        self._alive()
        base = self._window.memory.address if rank is None else self._window.bases[rank]
        return base + NBYTES + LINE * signal

    def check(self) -> None:
        """Raise an error that kernels with this team have recorded; wait for no kernel.

        Raises
        ------
        PeerTimeout, Aborted
            If a wait timed out. Every later call of the communicator raises it too, so free the communicator.
        ValueError
            If a device function had an invalid argument. It is raised once; the communicator stays usable.
        MPI.Exception
            Class ERR_COMM: the communicator has been freed.
        """
        self._alive().errors.check()

    def update_window(self, number: int) -> None:
        """Update the table for a window that was added to the communicator or removed."""
        team, before = self._alive(), self._table.address
        self._set_row(len(self._own) + number, team.windows.by_number.get(number))
        if self._table.address != before:
            place = struct.pack("=Q", self._table.address)
            write(team.device, self._window.memory.address + WINDOWS_OFFSET, place)

    def close(self) -> None:
        """Make the team unusable, also for kernels, which read zeros from now on.

        The memory is released with this object.
        """
        team, self._team = self._alive(), None
        team.device_teams.remove(self)
        team.device.fill_zero(self._window.memory.address, NBYTES)
        for window in (self._window, *self._own):
            window.close()

    @property
    def is_open(self) -> bool:
        """Whether the team's communicator has not been freed yet."""
        return self._team is not None

    def _alive(self) -> Team:
        if self._team is None:
            raise MPIError(MPI.ERR_COMM, "device_team: its communicator has been freed; make another one's team")
        return self._team
