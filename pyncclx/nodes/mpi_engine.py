"""The engine that works everywhere: mpi4py on arrays or on pinned host memory.

On the host device, and where MPI is CUDA-aware, MPI takes the addresses of the arrays. Elsewhere each transfer is cut
into pieces, which are copied through pinned memory: while MPI transfers a piece, the next one is copied from the
sender's GPU, and the previous one to the receiver's.
"""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from mpi4py import MPI

from mpi_bootstrap.polls import WHILE_FREED_S, poll, polls_stopped

from ..backends import Device
from ..errors import MPIError, StepTimeout
from ..failures.policy import POLICY, explained
from ..system import settings
from ..system.process import held
from .engine import Engine, Failed, Transfer
from .pieces import PieceOfTransfer, pieces_of

# The engine has a communicator of its own, and each call has a tag. If a rank sends a message that another one does not
# expect (the counts of an Alltoallv differ), a later call must not receive that message.
_FIRST_TAG, _TAGS = 16, 1 << 14  # MPI allows tags up to 32767 at least
_SPIN_S = 1e-3  # seconds of polls without a pause
# Pieces of steps that have failed, and memory that MPI may still use for them.
_left: list[PieceOfTransfer] = held([])
_memory: list[object] = held([])
_LONGEST_PAUSE_S = 1e-3
_CLOSE_S = 1.0  # longest wait for the other ranks before the communicator is freed


class MpiEngine(Engine):
    """An engine that moves bytes by MPI on a communicator of its own.

    Parameters
    ----------
    comm : MPI.Intracomm
        mpi4py's communicator, used by the engine alone.
    device : Device
    direct : bool
        Whether MPI takes the addresses of device arrays.
    failed : callable

    Attributes
    ----------
    look : callable
        Called in waits. If it raises, the wait ends.
    absent : callable
        Called at a timeout with the number of the call and the ranks that a step waits for. It returns the ranks that
        have not begun the call, or the given ones.
    """

    name = "mpi"
    follows_streams = False

    def __init__(self, comm: MPI.Intracomm, device: Device, failed: Failed, *, direct: bool) -> None:
        super().__init__(failed)
        self.comm, self._device, self._direct = comm, device, direct
        self._timeout_s = settings.TIMEOUT.get()
        self._refusal: MPIError | None = None  # error of a message that was too long; the engine stays usable
        self.look: Callable[[], None] = lambda: None
        self.absent: Callable[[int, tuple[int, ...]], tuple[int, ...]] = lambda call, peers: peers

    @functools.cached_property
    def _streams(self) -> tuple[Any, Any]:
        """The streams for copies, which the first copy creates."""
        return (None, None) if self._direct else (self._device.new_stream(), self._device.new_stream())

    def exchange(
        self, step: str, sends: Sequence[Transfer], receives: Sequence[Transfer], stream: Any, call: int
    ) -> None:
        """Send and receive pieces; the host waits until MPI has transferred them."""
        if sends or receives:
            self.do(step, functools.partial(self._exchange, step, sends, receives, call), stream)

    def do(self, step: str, function: Callable[[], None], stream: Any) -> None:
        """Run a host function on `stream`. If it raises, end all steps with `abort`."""
        self._raise_failure()
        self._device.call_between(stream, functools.partial(self._do, step, function))

    def wait(self, step: str, call: int, over: Callable[[], bool], late: Callable[[], tuple[int, ...]]) -> None:
        """Wait in a step until `over` returns true.

        `call` is the number of the call, and `late` returns the ranks that the step still waits for.

        Raises
        ------
        StepTimeout, RankFailed
            If the step timed out, a rank has failed, or another step has failed for this reason.
        """
        began = time.monotonic()
        while not poll(over):
            waited_s = time.monotonic() - began
            if waited_s < _SPIN_S:
                os.sched_yield()
                continue
            self._check_hope(step, call, waited_s, late)
            time.sleep(min(waited_s / 100, _LONGEST_PAUSE_S))

    @property
    def has_failed(self) -> bool:
        """Whether `check` would raise."""
        return self._failure is not None or self._refusal is not None

    def check(self, step: str = "") -> None:
        """Raise a failure at every call; raise once if a message was too long."""
        self._raise_failure()
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def abort(self, step: str, reason: Exception) -> None:
        """Record a failure: waits end, and `check` raises the reason from now on."""
        if self._failure is None:
            self._failure = reason
            self._failed(step, reason)

    def close(self) -> None:
        """Free the engine's communicator if all ranks do so now.

        Every rank must call this, except ranks with a failure, which may still send messages. If the others freed the
        communicator, MPI could give its number to a new one, and deliver such a message there. So each rank waits up to
        a second until all ranks have called this, and keeps the communicator if one has not.
        """
        if self._failure is None and self._have_all_come():
            with polls_stopped(WHILE_FREED_S):
                self.comm.Free()

    def _have_all_come(self) -> bool:
        """Return whether all ranks close the engine now."""
        request, end = self.comm.Ibarrier(), time.monotonic() + _CLOSE_S
        with suppress(MPI.Exception):  # a rank has died
            while not request.Test():
                if time.monotonic() > end:
                    return False
                time.sleep(_LONGEST_PAUSE_S)
            return True
        return False

    def _do(self, step: str, function: Callable[[], None]) -> None:
        try:
            self._raise_failure()
            function()
        except Exception as error:
            reason = explained(self.comm, error, step) if isinstance(error, MPI.Exception) else error
            self.abort(step, reason)
            raise reason from error

    def _exchange(self, step: str, sends: Sequence[Transfer], receives: Sequence[Transfer], call: int) -> None:
        """Transfer the pieces, those of one peer in order, until all have been moved."""
        device = None if self._direct else self._device
        pieces = [*pieces_of(receives, device, self._streams[0], receives=True)]
        pieces += pieces_of(sends, device, self._streams[1], receives=False)
        waiting, begin = pieces, functools.partial(self._begin, step, _FIRST_TAG + call % _TAGS)

        def over() -> bool:
            nonlocal waiting
            waiting = [piece for piece in waiting if not piece.advance(begin)]
            return not waiting

        try:
            self.wait(step, call, over, lambda: _peers(waiting))
        # Also after Ctrl-C.
        except BaseException:
            _left.extend(waiting)
            raise

    def _check_hope(self, step: str, call: int, waited_s: float, late: Callable[[], tuple[int, ...]]) -> None:
        """Raise if a wait must end: a rank or another step has failed, or it timed out.

        A rank whose program has ended does not end the wait at once, because it may have done its part of the step. If
        it has not, `late` names it at the timeout.
        """
        self.look()
        reason = self._failure or POLICY.get().hopeless(self.comm, waited_s, step, with_ended=False)
        if reason is None and waited_s > self._timeout_s:
            waiting_for = late()
            # All data has arrived just now, so the step ends at the next poll.
            if not waiting_for and waited_s < 2 * self._timeout_s:
                return
            found = self.absent(call, waiting_for)
            # Meanwhile another rank may have reported which rank is late.
            reason = self._failure or StepTimeout(step, self.comm.rank, found)
        if isinstance(reason, StepTimeout):
            reason = StepTimeout(step, self.comm.rank, reason.peers)
        if reason is not None:
            raise reason

    def _begin(self, step: str, tag: int, piece: PieceOfTransfer) -> MPI.Request | None:
        """Start a piece in MPI; return None if the message to receive has not arrived.

        A message that is too long is received and truncated, and `check` raises once.
        """
        place = [MPI.memory.fromaddress(piece.host_address, piece.nbytes), MPI.BYTE]
        if not piece.receives:
            return self.comm.Isend(place, piece.peer, tag)
        status = MPI.Status()
        message = self.comm.Improbe(piece.peer, tag, status)
        if message is None:
            return None
        sent = status.Get_count(MPI.BYTE)
        if sent <= piece.nbytes:
            return message.Irecv(place)
        operation, rank = step.partition(",")[0], self.comm.rank
        text = f"rank {piece.peer} sent {sent} bytes, where rank {rank} has room for {piece.nbytes}"
        self._refusal = MPIError(MPI.ERR_TRUNCATE, f"{operation}: {text}; make counts and types equal")
        whole = bytearray(sent)
        message.Recv([whole, MPI.BYTE])
        MPI.memory.fromaddress(piece.host_address, piece.nbytes)[:] = whole[: piece.nbytes]
        return MPI.Request()


def keep_left(memory: object) -> None:
    """Keep memory for as long as MPI may move pieces of steps that have failed."""
    for piece in _left[:]:
        with suppress(MPI.Exception):
            if not piece.is_moved():
                continue
        with suppress(ValueError):  # another thread has removed it
            _left.remove(piece)
    if _left:
        _memory.append(memory)
    else:
        _memory.clear()


def _peers(pieces: Iterable[PieceOfTransfer]) -> tuple[int, ...]:
    return tuple(sorted({piece.peer for piece in pieces}))


class Outbox:
    """Messages that this rank has begun to send with one tag."""

    def __init__(self, tag: int) -> None:
        self._tag = tag
        self._sent: deque[tuple[MPI.Request, int, bytes]] = deque()  # request, receiver, bytes

    def send(self, comm: MPI.Intracomm, message: bytes, rank: int) -> None:
        """Begin to send a message to a rank."""
        # With `map`, Python runs no signal handler between MPI's return and the end of `extend`.
        begun = map(comm.Isend, ([message, MPI.BYTE],), (rank,), (self._tag,))
        self._sent.extend(zip(begun, (rank,), (message,), strict=False))

    def is_empty(self) -> bool:
        """Return whether MPI has sent all messages."""
        while self._sent and self._sent[0][0].Test():
            self._sent.popleft()
        return not self._sent

    def receivers(self) -> set[int]:
        """Return the ranks to which a message has not been sent yet."""
        return {rank for request, rank, _ in self._sent if not request.Test()}
