"""Teams for a program's own kernels: what `comm.device_team` makes (twin of cuda/device/team.cuh)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import MPIError
from ..memory import layout
from ..memory.symmetric import Window, allocate_window
from ..team import device_errors
from ..team.team import OPERATIONS, Team

PARTS = struct.Struct(f"=QQQQ{layout.MAX_RANKS}Q")  # DeviceTeam after its Team
WINDOWS_OFFSET = layout.TEAM.size + layout.PLACES.size + 24  # DeviceTeam::windows
LINE = 128  # SignalWord, BarrierWords, CounterWords
NBYTES = -(-(layout.TEAM.size + layout.PLACES.size + PARTS.size) // LINE) * LINE  # DeviceTeam


class DeviceTeam:
    """What a program's own kernels are told of their communicator; `Intracomm.device_team` makes it.

    Attributes
    ----------
    rank, size : int
        Of the communicator.
    signals, blocks, counters : int
        As it was made.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        team: Team,
        signals: int,
        blocks: int,
        counters: int,
        own: tuple[Window, ...] = (),  # windows that no other kernels know of
    ) -> None:
        self.rank, self.size = team.rank, team.size
        self.sharing = team.layout.sharing  # ranks whose kernels are on one GPU
        self.signals, self.blocks, self.counters = signals, blocks, counters
        self._team: Team | None = team
        self._own = own
        self._window: Window = allocate_window(comm, team.device, 0, NBYTES + LINE * (signals + blocks + counters))
        self._words = self._window.memory.nbytes // 8
        self.nbytes = 8 * self._words + sum(window.memory.nbytes for window in own)
        self._tables: list[Any] = []  # of the windows; a kernel may be looking at an earlier one
        state = [*self._window.bases, *[0] * (layout.MAX_RANKS - self.size)]
        packed = team.packed[OPERATIONS.index(device_errors.OPERATION)][False] + bytes(layout.PLACES.size)
        self._write(0, packed + PARTS.pack(signals, blocks, counters, 0, *state))
        self.add_windows()
        team.device_teams.append(self)

    def __repr__(self) -> str:
        state = "" if self._team else ", freed"
        return f"<pyncclx.DeviceTeam of rank {self.rank} of {self.size}{state}>"

    @property
    def pointer(self) -> int:
        """The address in device memory that kernels take, a 64-bit integer.

        Raises
        ------
        MPI.Exception
            Of class ERR_COMM: the communicator has been freed, and its teams with it.
        """
        self._alive()
        return self._window.memory.address

    @property
    def signal_words(self) -> Any:
        """This rank's signals as a device array of uint64, shape (signals,); a view, with gaps between the words."""
        words = self._alive().device.array(self._window.owner, (self._words,), np.uint64)
        return words[NBYTES // 8 :][: self.signals * LINE // 8 : LINE // 8]

    def signal_address(self, signal: int, rank: int | None = None) -> int:
        """The address, as mapped here, of a signal of a rank; of this one if it is left out."""
        self._alive()
        base = self._window.memory.address if rank is None else self._window.bases[rank]
        return base + NBYTES + LINE * signal

    def check(self) -> None:
        """Raise what kernels with this team have recorded; of those that have not ended, nothing yet.

        Raises
        ------
        PeerTimeout, Aborted
            A wait was in vain. From then on at every call of the communicator: free it.
        ValueError
            A device function was given what is none; once, and the communicator goes on.
        MPI.Exception
            The communicator has been freed.
        """
        self._alive().check()

    def add_windows(self) -> None:
        """Tell kernels of all arrays that `comm.Alloc` has given by now."""
        team = self._alive()
        padding = [0] * (layout.MAX_RANKS - self.size)
        windows = (*self._own, *team.windows)
        words = [word for w in windows for word in (*w.bases, *padding, *w.sizes, *padding)]
        words += [0] * (2 * layout.MAX_RANKS)
        self._tables.append(team.device.upload(struct.pack(f"={1 + len(words)}Q", len(windows), *words)))
        self._write(WINDOWS_OFFSET, struct.pack("=Q", self._tables[-1].address))

    def close(self) -> None:
        """Make it unusable, for kernels too. The memory goes with this object, so that a late kernel finds no team."""
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

    def _write(self, offset: int, data: bytes) -> None:
        """Copy to this rank's memory; there when it returns."""
        device, source = self._alive().device, np.frombuffer(data, np.uint8)
        stream = device.current_stream()
        device.copy(self._window.memory.address + offset, source.ctypes.data, len(data), stream)
        device.synchronize(stream)
