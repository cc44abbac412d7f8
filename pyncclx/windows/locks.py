"""Locks of a window's ranks: waits for them end, and Linux releases those of a process that dies.

MPI's own lock is taken after such a one, when no other rank holds it: MPI waits for ever for one that a dead rank held.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable

from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap import waiting

from ..errors import PeerTimeout
from ..recording.failures import noted
from ..recovery import blame
from ..system import settings

_SHORTEST_S, _LONGEST_S = 20e-6, 2e-3  # between two looks
_LOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid


class Locks:
    """Locks in a file in memory that all ranks have open. Collective to make, on one node.

    The lock of rank r is byte r. Byte ``size + r`` is the gate before it, which a rank holds while it waits for the
    lock: who comes later waits for the gate. Otherwise shared locks that overlap would keep an exclusive one out for
    ever.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._rank, self._size = comm.rank, comm.size
        self._held: set[int] = set()
        self._claiming = threading.Lock()
        made = mpi_bootstrap.agree(comm, lambda: os.memfd_create("pyncclx-locks") if comm.rank == 0 else -1)
        try:
            own = os.open(os.devnull, os.O_RDONLY) if made < 0 else made
            self._fd = mpi_bootstrap.allgather_fds(comm, own, [0])[0]
        finally:
            os.close(own)
        pids = mpi_bootstrap.allgather_objects(comm, os.getpid())
        self._ranks = {pid: rank for rank, pid in enumerate(pids)}

    def acquire(self, rank: int, *, shared: bool, check: Callable[[], None]) -> bool:
        """Wait for a rank's lock; return False if this rank has it already, or another thread waits for it.

        Parameters
        ----------
        rank : int
        shared : bool
            Whether others may have it, too.
        check : callable
            Raises if no wait can succeed any more.

        Raises
        ------
        PeerTimeout
            Others have kept it for longer than PYNCCLX_TIMEOUT.
        """
        with self._claiming:  # another thread of this rank may ask for it, too
            if rank in self._held:
                return False
            self._held.add(rank)
        try:
            self._take(rank, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, check)
        except BaseException:
            self.release(rank)
            raise
        return True

    def _take(self, rank: int, kind: int, check: Callable[[], None]) -> None:
        """Wait for the gate, then for the lock."""
        check()
        deadline, gate = time.monotonic() + settings.TIMEOUT.get(), self._size + rank
        try:
            has_waited = self._wait(gate, fcntl.LOCK_EX, deadline, check)
            has_waited |= self._wait(rank, kind, deadline, check)
        finally:
            self._unlock(gate)
        if has_waited:  # Linux may have released it because its holder has died, which is noticed here
            blame.look_now()
            check()

    def release(self, rank: int) -> None:
        """Let others have a rank's lock, if this rank has it."""
        with self._claiming:  # a thread that asks for it now has it after this, or not at all
            self._unlock(rank)
            self._held.discard(rank)

    def _wait(self, byte: int, kind: int, deadline: float, check: Callable[[], None]) -> bool:
        """Wait for one byte; return whether another rank had it."""
        pause = _SHORTEST_S
        while not self._try(kind, byte):
            check()
            if time.monotonic() > deadline:
                raise noted(self._late(byte % self._size))
            waiting.let_go_on()  # the holder may need this rank's MPI
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)
        return pause > _SHORTEST_S

    def _try(self, kind: int, byte: int) -> bool:
        try:
            fcntl.lockf(self._fd, kind | fcntl.LOCK_NB, 1, byte)
        except BlockingIOError:
            return False
        return True

    def _unlock(self, byte: int) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)

    def _late(self, rank: int) -> PeerTimeout:
        """Return the error that names who has the lock, or else who waits for it at the gate."""
        pid = self._holder(rank) or self._holder(self._size + rank)
        error = PeerTimeout(f"Lock of rank {rank}", 0, self._rank, self._ranks.get(pid, -1), 0, 0)
        error.detail = f"process {pid} holds the lock"
        return error

    def _holder(self, byte: int) -> int:
        """Return the number of another process that holds a byte; 0 if none does."""
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, *_, pid = _LOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))
        return 0 if kind == fcntl.F_UNLCK else int(pid)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
