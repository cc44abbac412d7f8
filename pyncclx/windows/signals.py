"""Signals of windows: data in a peer's memory and a count that its stream can wait for (cuda/windows/signals.cu)."""

from __future__ import annotations

import operator
import struct
from typing import Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..device.team import DeviceTeam
from ..launch import kernels
from ..launch.sources import FILES
from ..requests.open_receives import let_receives_leave
from ..team.streams import stream_for
from ..team.team import Team

COUNT = 64  # signals of each rank in a window
_BLOCK = 32 << 10  # bytes that the one block of the signal's kernel moves itself
_LONG = 16 << 20  # bytes from which a copy engine moves the data, which is late to begin, and faster then
_FILE = "windows/signals.cu"
_PUT = struct.Struct("=QQQ")  # PutArgs
_SIGNAL = struct.Struct("=Q")  # PutSignalArgs up to them
_WAIT = struct.Struct("=QQQQI4x")  # WaitSignalArgs


class Signals:
    """The signals of one window. Collective to make: all ranks load the kernels before one of them waits."""

    def __init__(self, comm: MPI.Intracomm, team: Team) -> None:
        self.device = team.device
        functions = (kernels.get(comm, team, _FILE, kernel) for kernel in FILES[_FILE].kernels)
        self._put, self._signal, self._wait = functions
        self.team = DeviceTeam(comm, team, COUNT, 0, 0)
        self._taken = self.device.upload(bytes(8 * COUNT))

    def put(self, origin: Buffer, address: int, rank: int, signal: int) -> Any:
        """Enqueue a copy to an address in a rank's memory, then the signal; returns the stream."""
        number, stream = _number("Put_signal", signal), stream_for(self.device, (origin,))
        nbytes, data = origin.nbytes, _PUT.pack(origin.address, address, origin.nbytes)
        if nbytes > _BLOCK:
            self._move(address, origin, data, stream)
            nbytes, data = 0, bytes(_PUT.size)
        threads = min(self.device.threads, max(32, -(-nbytes // 512) * 32))  # of 16 bytes each
        parameters = _SIGNAL.pack(self.team.signal_address(number, rank)) + data
        self.device.launch(self._signal, 1, threads, parameters, stream, early=True)
        return stream

    def _move(self, address: int, origin: Buffer, data: bytes, stream: Any) -> None:
        """Enqueue a copy of what is too long for one block."""
        if origin.nbytes >= _LONG:
            self.device.copy(address, origin.address, origin.nbytes, stream)
        else:
            grid = min(self.device.max_channels, -(-origin.nbytes // _BLOCK))
            self.device.launch(self._put, grid, self.device.threads, data, stream)

    def wait(self, signal: int, count: int) -> None:
        """Enqueue a wait for `count` more of a signal."""
        number = _number("Wait_signal", signal)
        if operator.index(count) < 0:
            raise ValueError(f"Wait_signal: count is {count}; it must be 0 or more")
        addresses = self.team.pointer, self.team.signal_address(number), self._taken.address + 8 * number
        parameters = _WAIT.pack(*addresses, count, number)
        let_receives_leave()
        self.device.launch(self._wait, 1, 1, parameters, stream_for(self.device, ()), early=True)

    def close(self) -> None:
        """Give the memory back, if the communicator's end has not done so."""
        if self.team.is_open:
            self.team.close()


def _number(operation: str, signal: int) -> int:
    if not 0 <= operator.index(signal) < COUNT:
        raise ValueError(f"{operation}: signal is {signal}; a window has the signals 0 to {COUNT - 1}")
    return signal
