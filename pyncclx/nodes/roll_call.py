"""The roll call: a rank asks all ranks which call they have begun.

A rank does this when a step between nodes has timed out: NCCL cannot say for which rank it waits, and the rank that MPI
waits for may itself wait for another one. The rank asks all ranks of the communicator for the number of the call that
each began last. Its error names the ranks that have not begun the call which timed out. The monitor thread of a rank
answers, even while the rank makes no call.

A rank whose step has timed out also tells all ranks that it has stopped waiting, and for which rank. Then the calls of
the late rank, and of others that wait for it, raise before their own timeout.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable

from mpi4py import MPI

from .mpi_engine import Outbox

_TAG = 10  # texts, pieces and records use other tags
_MESSAGE = struct.Struct("=qbq")  # the number of the sender's last call, the kind, and the late rank of _STOPPED
# Kinds: the sender tells its number; it also asks for the receiver's; it has stopped waiting.
_ANSWERS, _ASKS, _STOPPED = range(3)
ANSWERS_S = 0.25  # seconds between the answers of a rank that makes no call
POLL_S = 1e-3  # seconds between polls for answers
# A rank waits for this number of polls, not for a time. If the whole machine is suspended, time passes and no rank
# answers.
POLLS = int(4 * ANSWERS_S / POLL_S)
_MOST_RANKS = 64  # larger communicators call no roll; not measured


class RollCall:
    """This rank's part of the roll calls on one communicator over nodes.

    Parameters
    ----------
    rank, size : int
    comm_of : callable
        Returns the engine's communicator of MPI; None if there is none yet, or no longer.
    last : callable
        Returns the number of the call that this rank began last.

    Attributes
    ----------
    is_open : bool
        Whether this rank asks and answers. It needs a thread that calls MPI.
    stopped_by : callable
        Called with a rank that has stopped waiting, and the late rank that it has waited for.
    """

    def __init__(
        self, rank: int, size: int, comm_of: Callable[[], MPI.Intracomm | None], last: Callable[[], int]
    ) -> None:
        self._others = [each for each in range(size) if each != rank] if size <= _MOST_RANKS else []
        self._comm_of, self._last = comm_of, last
        self._begun: dict[int, int] = {}  # the last call of each rank, as far as it is known
        self._heard: set[int] = set()  # ranks that have reported since this rank asked
        self._outbox = Outbox(_TAG)
        self._lock = threading.Lock()
        self.stopped_by: Callable[[int, int], None] = lambda rank, late: None
        self.is_open = MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def ask(self) -> None:
        """Ask all other ranks which call they began last, and tell them this rank's."""
        self._heard.clear()
        self._tell(_ASKS)

    def stop(self, late: int) -> None:
        """Tell all other ranks that this one has stopped waiting for a rank."""
        self._tell(_STOPPED, late)

    def _tell(self, kind: int, late: int = -1) -> None:
        with self._lock:
            comm = self._comm_of() if self.is_open else None
            if comm is not None:
                for rank in self._others:
                    self._send(comm, rank, kind, late)

    def absent(self, number: int) -> tuple[int, ...]:
        """Return the ranks that have not reported that they have begun call `number`."""
        return tuple(rank for rank in self._others if self._begun.get(rank, -1) < number)

    def late(self, number: int, peers: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ranks that have not begun call `number`; `peers` if all have.

        If some of these ranks have answered, the result has only those of them that have begun the fewest calls, for
        which the others may wait. If none has answered, perhaps because their programs have ended, the result has those
        of them that are in `peers`.
        """
        absent = self.absent(number)
        answered = {rank: self._begun.get(rank, -1) for rank in absent if rank in self._heard}
        last = tuple(rank for rank, begun in answered.items() if begun == min(answered.values()))
        return last or tuple(rank for rank in absent if rank in peers) or absent or peers

    def answer(self) -> None:
        """Receive what ranks report, and answer those that ask."""
        stopped = []
        with self._lock:
            comm = self._comm_of() if self.is_open else None
            status = MPI.Status()
            while comm is not None and (message := comm.Improbe(MPI.ANY_SOURCE, _TAG, status)) is not None:
                content = bytearray(_MESSAGE.size)
                message.Recv([content, MPI.BYTE])
                number, kind, late = _MESSAGE.unpack(content)
                self._begun[status.source] = number
                self._heard.add(status.source)
                if kind == _ASKS:
                    self._send(comm, status.source, _ANSWERS)
                elif kind == _STOPPED:
                    stopped.append((status.source, late))
        for rank, late in stopped:
            self.stopped_by(rank, late)

    def close(self) -> None:
        """Stop: the communicator is about to be freed."""
        with self._lock:
            self.is_open = False

    def _send(self, comm: MPI.Intracomm, rank: int, kind: int, late: int = -1) -> None:
        self._outbox.is_empty()  # drops what has been sent
        self._outbox.send(comm, _MESSAGE.pack(self._last(), kind, late), rank)
