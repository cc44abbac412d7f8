"""Signals of a window: counters that streams wait for (cuda/windows/signals.cu)."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

import mpi_bootstrap

from ..arrays.buffers import Buffer
from ..device.team import DeviceTeam
from ..launch import kernels
from ..launch.sources import FILES
from ..memory.cstruct import U32, U64, CStruct
from ..requests.open_receives import let_receives_leave
from ..team.streams import Enqueuing, stream_for
from ..team.team import Team

COUNT = 64  # signals of each rank in a window
_FILE = "windows/signals.cu"
# Up to the first limit, the kernel that sets the signal moves the data with its only block. From the second limit on, a
# copy engine moves the data; it starts later, but is faster. Times with these limits:
# examples/benchmarks/results/h200-x2-put-signal.json (2 H200, 2026-11-21). Times with other limits were not stored.
_BLOCK_NBYTES = 32 << 10
_COPY_ENGINE_NBYTES = 16 << 20
_WORD_NBYTES = 8  # bytes of a signal


@dataclass(slots=True, kw_only=True)
class PutArgs(CStruct):
    """`PutArgs` of the kernel `put_blocks`."""

    origin: U64  # address
    target: U64  # address
    nbytes: U64


@dataclass(slots=True, kw_only=True)
class PutSignalArgs(CStruct):
    """`PutSignalArgs` of the kernel `put_signal`; the last three are its `data`."""

    word: U64  # address of the signal
    origin: U64  # address
    target: U64  # address
    nbytes: U64  # 0 if an earlier copy moves the data


@dataclass(slots=True, kw_only=True)
class WaitSignalArgs(CStruct):
    """`WaitSignalArgs` of the kernel `wait_signal`."""

    team: U64  # address
    word: U64  # address of the signal
    taken: U64  # address of the sum of counts of earlier waits
    count: U64
    signal: U32


class Signals:
    """The signals of one window. Creation is collective.

    All ranks load the kernels before any rank waits.
    """

    def __init__(self, comm: MPI.Intracomm, team: Team) -> None:
        self.device, self._of = team.device, team
        self._put, self._signal, self._wait = kernels.get_several(comm, team, _FILE, FILES[_FILE].kernels)
        self.team = DeviceTeam(comm, team, signals=COUNT, blocks=0, counters=0, for_program=False)
        try:
            self._taken = mpi_bootstrap.agree(comm, lambda: self.device.upload(bytes(_WORD_NBYTES * COUNT)))
        except BaseException:
            self.team.close()
            raise

    def put(self, origin: Buffer, address: int, rank: int, signal: int) -> None:
        """Enqueue a copy to an address in a rank's memory, then the signal."""
        number, stream = _checked("Put_signal", signal), self._stream(origin)
        nbytes = origin.nbytes
        if nbytes > _BLOCK_NBYTES:
            self._move(PutArgs(origin=origin.address, target=address, nbytes=nbytes), stream)
            nbytes = 0
        threads = min(self.device.threads, max(32, -(-nbytes // 512) * 32))  # 16 bytes for each thread
        word = self.team.signal_address(number, rank)
        arguments = PutSignalArgs(word=word, origin=origin.address, target=address, nbytes=nbytes)
        self.device.launch(self._signal, 1, threads, arguments.pack(), stream, early=True)

    def _move(self, data: PutArgs, stream: Any) -> None:
        """Enqueue a copy that is too long for one block."""
        if data.nbytes >= _COPY_ENGINE_NBYTES:
            self.device.copy(data.target, data.origin, data.nbytes, stream)
        else:
            grid = min(self.device.max_channels, -(-data.nbytes // _BLOCK_NBYTES))
            self.device.launch(self._put, grid, self.device.threads, data.pack(), stream)

    def wait(self, signal: int, count: int) -> None:
        """Enqueue a wait until a signal has arrived `count` more times."""
        number = _checked("Wait_signal", signal)
        if operator.index(count) < 0:
            raise ValueError(f"Wait_signal: count is {count}; it must be 0 or more")
        arguments = WaitSignalArgs(
            team=self.team.pointer,
            word=self.team.signal_address(number),
            taken=self._taken.address + _WORD_NBYTES * number,
            count=count,
            signal=number,
        )
        let_receives_leave()
        self.device.launch(self._wait, 1, 1, arguments.pack(), self._stream(), early=True)

    def _stream(self, *buffers: Buffer) -> Any:
        """Return the stream to launch on; `Free` will wait for it."""
        stream = stream_for(self.device, buffers, Enqueuing(self._of.caller))
        self._of.order.note(stream)
        return stream

    def close(self) -> None:
        """Release the memory, if the communicator has not been freed."""
        if self.team.is_open:
            self.team.close()


def _checked(operation: str, signal: int) -> int:
    if not 0 <= operator.index(signal) < COUNT:
        raise ValueError(f"{operation}: signal is {signal}; a window has the signals 0 to {COUNT - 1}")
    return signal
