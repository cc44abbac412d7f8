"""The engine that is there everywhere: mpi4py on the arrays themselves, or on pieces in pinned host memory.

MPI is given the arrays' memory on the host device, and where it is CUDA-aware. Elsewhere each transfer is cut into
pieces: while MPI has one, the next is copied from the GPU, and the last to it.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from mpi4py import MPI

from ..backends import Device
from ..errors import MPIError, StepTimeout
from ..recovery.meetings import JUDGE, explained
from ..system import settings
from .engine import Failed, Transfer
from .pieces import PieceOfTransfer, pieces_of

_TAG = 7  # the engine has a communicator of its own
_POLLS = 200  # without a pause
_LONGEST_PAUSE_S = 1e-3


class MpiEngine:
    """Moves bytes by MPI on a duplicate of the communicator; see `Engine`.

    Parameters
    ----------
    comm : MPI.Intracomm
        Of the engine alone, mpi4py's.
    device : Device
    direct : bool
        Whether MPI takes the addresses of device arrays.
    failed : callable
    """

    name = "mpi"
    follows_streams = False

    def __init__(self, comm: MPI.Intracomm, device: Device, failed: Failed, *, direct: bool) -> None:
        self._comm, self._device, self._failed, self._direct = comm, device, failed, direct
        self._streams = (None, None) if direct else (device.new_stream(), device.new_stream())  # of copies
        self._timeout_s = settings.TIMEOUT.get()
        self._failure: Exception | None = None
        self._refusal: MPIError | None = None  # of one message; the engine goes on
        self._left: list[Any] = []  # requests and memory of a step that has failed: MPI may still use them

    def exchange(self, step: str, sends: Sequence[Transfer], receives: Sequence[Transfer], stream: Any) -> None:
        """As `Engine.exchange`."""
        if self._failure is not None:
            raise self._failure
        if sends or receives:
            self._device.call_between(stream, functools.partial(self._exchange, step, sends, receives))

    def check(self) -> None:
        """As `Engine.check`."""
        if self._failure is not None:
            raise self._failure
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def abort(self, step: str, reason: Exception) -> None:
        """As `Engine.abort`: waits look whether there is a failure."""
        if self._failure is None:
            self._failure = reason
            self._failed(step, reason)

    def close(self) -> None:
        """As `Engine.close`."""
        if self._failure is None:
            self._comm.Free()

    def _exchange(self, step: str, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        pieces: list[PieceOfTransfer] = []
        try:
            if self._failure is not None:
                raise self._failure
            device = None if self._direct else self._device
            pieces += pieces_of(receives, device, self._streams[0], receives=True)
            pieces += pieces_of(sends, device, self._streams[1], receives=False)
            self._move(step, pieces)
        except Exception as error:
            self._left += pieces
            reason = explained(self._comm, error, step) if isinstance(error, MPI.Exception) else error
            self.abort(step, reason)
            raise reason from error

    def _move(self, step: str, pieces: list[PieceOfTransfer]) -> None:
        """Begin the pieces in order, as many at once as each allows, until all are over."""
        began, polls, waiting = time.monotonic(), 0, pieces
        while waiting := [piece for piece in waiting if not self._advance(step, piece)]:
            polls += 1
            if polls < _POLLS:
                os.sched_yield()
                continue
            self._check_hope(step, time.monotonic() - began, waiting)
            time.sleep(min(1e-5 * (polls - _POLLS), _LONGEST_PAUSE_S))

    def _check_hope(self, step: str, waited_s: float, waiting: list[PieceOfTransfer]) -> None:
        """Raise if a wait is over: a rank has failed, another step has, or it was too long."""
        reason = self._failure or JUDGE.get().hopeless(self._comm, waited_s)
        if reason is None and waited_s > self._timeout_s:
            reason = StepTimeout(step, self._comm.rank, _peers(waiting))
        if reason is not None:
            raise reason

    def _advance(self, step: str, piece: PieceOfTransfer) -> bool:
        try:
            return piece.advance(self._begin)
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
        operation = step.partition(",")[0]
        text = f"rank {piece.peer} sent more than the {piece.nbytes} bytes for it on rank {self._comm.rank}"
        self._refusal = MPIError(MPI.ERR_TRUNCATE, f"{operation}: {text}")
        return True

    def _begin(self, piece: PieceOfTransfer) -> MPI.Request:
        spec = [MPI.memory.fromaddress(piece.host_address, piece.nbytes), MPI.BYTE]
        start = self._comm.Irecv if piece.receives else self._comm.Isend
        return start(spec, piece.peer, _TAG)


def _peers(pieces: Iterable[PieceOfTransfer]) -> tuple[int, ...]:
    return tuple(sorted({piece.peer for piece in pieces}))
