"""Comparison of calls between nodes: each rank sends its calls to the next rank.

Inside a node, kernels compare calls. Between nodes, engines move bytes that do not describe the call. So the ranks form
a ring. Each rank sends the next rank a text (*label*) of each of its calls, by MPI. Whenever a rank makes a call or
waits for results, it compares the labels of the previous rank with its own calls. A rank that finds a difference
raises, and passes the difference on around the ring. A message of MPI takes longer than the rest of a short call. So
labels of cached calls are sent several at a time, if a thread can send them when the program makes no further call.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap.own_errors import own_error

from ..errors import Aborted, CollectiveMismatch, MPIError, PeerTimeout, RankFailed
from ..failures.comm_failures import left_by
from ..failures.policy import explained
from ..recording.failures import noted
from .engine import Failed
from .host_exchange import LABEL_NBYTES, text_of
from .mpi_engine import Outbox

_TAG = 9  # pieces and records use other tags
_CALLS, _STOP = b"c", b"s"  # first bytes of messages: labels follow; no labels follow any more
_NEWS: dict[bytes, type[Exception]] = {b"n": CollectiveMismatch, b"e": Aborted}  # first bytes of error texts
_TOGETHER = 16  # labels in one message
_STEP = "comparison of calls"  # name of the step in error messages
_LOOKS = 10  # polls for calls of the previous rank
_PATIENCE_S, _PAUSE_S = 0.5, 1e-3  # longest wait for another rank's error text, once, and seconds between polls
_CLOSE_S = 1.0  # seconds for the last messages


class Comparison:
    """Calls of this rank and of the previous rank that have not been compared.

    Parameters
    ----------
    rank, size : int
    make : callable
        Returns a duplicate of the communicator for messages with a tag of this module. Collective, called once.
    failed : callable
    look_soon : callable
        Makes a thread call the given function soon.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        make: Callable[[], MPI.Intracomm],
        failed: Failed,
        look_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._make, self._failed, self._rank, self._look_soon = make, failed, rank, look_soon
        self._before, self._behind = (rank - 1) % size, (rank + 1) % size
        # The communicator of the labels; None before the first call, and after the end.
        self.comm: MPI.Intracomm | None = None
        self._own: deque[bytes] = deque()
        self._theirs: deque[bytes] = deque()
        self._outbox = Outbox(_TAG)
        self._last = self._unsent = b""  # labels
        self._has_threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._goes_on = True  # whether this rank and the previous one send all their calls
        self._sends = True
        self._failure: Exception | None = None
        self._patience_s = _PATIENCE_S
        # A step that waits in a thread polls, too.
        self._lock = threading.RLock()

    def add(self, label: bytes, *, later: bool = False) -> None:
        """Compare a call that begins. Collective at the first call.

        `label` comes from `label_of` and is the same on all ranks. With `later` it may be sent together with the labels
        of the next calls.
        """
        self._begin()
        with self._lock:
            try:
                self._add(label, later=later)
            except BaseException as error:
                self._leave_by(error)
                raise

    def _add(self, label: bytes, *, later: bool) -> None:
        self._last = label
        if self._goes_on:
            self._own.append(label)
        if self._sends:
            self._unsent += label
        if not (later and self._has_threads) or len(self._unsent) >= _TOGETHER * LABEL_NBYTES:
            self._send_calls()
        elif len(self._unsent) == LABEL_NBYTES:
            self._look_soon(self.check_aside)

    def _leave_by(self, error: BaseException) -> None:
        """End the communicator if a signal handler's exception may have lost a label."""
        if own_error(error) is None and self._failure is None:
            operation = text_of(self._last).partition("(")[0]
            self._fail(left_by(self._rank, operation, error).exception())

    def _begin(self) -> None:
        if self.comm is None:
            # If this rank left the call before this collective, the other ranks would wait in MPI forever.
            with mpi_bootstrap.interrupts_deferred():
                self.comm = self._make()

    def stop(self) -> None:
        """Stop comparing, because the host does not see the replays of a graph.

        Collective at the first call, as `add` is.
        """
        self._begin()
        with self._lock:
            self._send_calls()
            if self._sends:
                self._send(_STOP)
            self._sends = False
            self._end()

    def check(self) -> None:
        """Compare the calls whose labels have arrived.

        Raises
        ------
        CollectiveMismatch, Aborted
            If calls differ, or (Aborted) if a rank has left a call. Every later check raises it again.
        RankFailed, Revoked
            If the previous or the next rank has failed, or the communicator was revoked.
        """
        with self._lock:
            if self.comm is not None:
                try:
                    self._look(self.comm)
                except BaseException as error:
                    self._leave_by(error)
                    raise
        if self._failure is not None:
            raise self._failure

    def _look(self, comm: MPI.Intracomm) -> None:
        self._send_calls()
        self._compare()  # with labels that arrived before this rank made its call
        while self._failure is None and (message := self._next(comm)) is not None:
            self._take(message[:1], message[1:])
            self._compare()
            # A poll that finds no message takes the longest, if MPI then yields the processor.
            if not self._own:
                break

    @property
    def has_failed(self) -> bool:
        """Whether `check` raises from now on."""
        return self._failure is not None

    @property
    def is_clear(self) -> bool:
        """Whether this rank has found no error, and a thread will poll for more."""
        return bool(self._unsent) and self._failure is None

    def check_aside(self) -> None:
        """Call `check` from a helper thread, if MPI may be called there."""
        if self._has_threads:
            self.check()

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raise a mismatch of the ranks' calls, if any, in place of the block's exception."""
        try:
            yield
        # A RankFailed, which is an MPIError, is its own reason.
        except RankFailed:
            raise
        except (CollectiveMismatch, PeerTimeout, Aborted, MPIError):
            with suppress(MPI.Exception):  # the previous rank has failed
                self._check_for_news()
            raise

    def check_all(self) -> None:
        """Compare all calls, after the results have arrived; raise what `check` raises.

        At that time, the labels of the previous rank have usually arrived.
        """
        for _ in range(_LOOKS):
            self.check()
            if not self._own:
                break

    def _check_for_news(self) -> None:
        """Wait briefly for another rank's report of a difference, which may be the reason.

        Call this after a failure without a known reason. It raises what `check` raises.
        """
        end, self._patience_s = time.monotonic() + self._patience_s, 0.0
        self.check()
        while time.monotonic() < end:
            time.sleep(_PAUSE_S)
            self.check()

    def close(self) -> None:
        """Receive the last messages, after all ranks have made their calls."""
        end = time.monotonic() + _CLOSE_S
        with suppress(CollectiveMismatch, Aborted, MPI.Exception):
            while (self._own or not self._outbox.is_empty()) and time.monotonic() < end:
                self.check()

    def end(self) -> None:
        """Stop polling: the communicator is being freed or abandoned."""
        with self._lock:
            self.comm = None

    def _send_calls(self) -> None:
        labels, self._unsent = self._unsent, b""
        if labels:
            self._send(_CALLS + labels)

    def _send(self, message: bytes) -> None:
        assert self.comm is not None
        try:
            # Drop the messages that have been sent.
            self._outbox.is_empty()
            self._outbox.send(self.comm, message, self._behind)
        except MPI.Exception as error:
            raise explained(self.comm, error, text_of(self._last).partition("(")[0]) from error

    def _next(self, comm: MPI.Intracomm) -> bytes | None:
        status = MPI.Status()
        try:
            if not comm.Iprobe(self._before, _TAG, status):
                return None
            message = bytearray(status.Get_count(MPI.BYTE))
            comm.Recv([message, MPI.BYTE], self._before, _TAG)
        except MPI.Exception as error:
            raise explained(comm, error, text_of(self._last).partition("(")[0]) from error
        return bytes(message)

    def _take(self, kind: bytes, content: bytes) -> None:
        if kind in _NEWS:
            self._fail(_NEWS[kind](content.decode()))
        elif kind == _STOP:
            self._end()
        elif self._goes_on:
            ends = range(LABEL_NBYTES, len(content) + 1, LABEL_NBYTES)
            self._theirs.extend(content[end - LABEL_NBYTES : end] for end in ends)

    def _compare(self) -> None:
        while self._failure is None and self._own and self._theirs:
            own, other = self._own.popleft(), self._theirs.popleft()
            if own != other:
                calls = {self._rank: own, self._before: other}
                texts = [f"rank {rank} called {text_of(calls[rank])}" for rank in sorted(calls)]
                self._fail(CollectiveMismatch(f"ranks disagree about a call: {'; '.join(texts)}"))

    def _end(self) -> None:
        self._goes_on = False
        self._own.clear()
        self._theirs.clear()

    def leave(self, reason: Aborted) -> None:
        """Report to all ranks that this one left a call; `check` raises `reason` from now."""
        with self._lock:
            if self._failure is None:
                self._failure = reason
                self._pass_on(reason)

    def differ(self, reason: CollectiveMismatch) -> None:
        """End the communicator on all ranks: PYNCCLX_CHECK=1 found a call that differs."""
        with self._lock:
            if self._failure is None:
                self._fail(reason)

    def _fail(self, reason: Exception) -> None:
        self._failure = noted(reason)
        self._pass_on(reason)
        self._failed(_STEP, reason)

    def _pass_on(self, reason: Exception) -> None:
        kind = next(kind for kind, cls in _NEWS.items() if isinstance(reason, cls))
        if self.comm is not None:
            with suppress(MPI.Exception):  # the next rank has failed
                self._send(kind + str(reason).encode())
