"""Locks of a window's ranks. Waits are bounded; Linux frees a dead rank's locks.

A rank acquires MPI's own lock only while it holds this lock, so it never has to wait in MPI. MPI would wait forever for
a lock that a dead rank holds.
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
from mpi_bootstrap.interrupts import interrupts_allowed

from ..errors import PeerTimeout
from ..failures import attribution
from ..recording.failures import noted
from ..system import settings

_SHORTEST_S, _LONGEST_S = 20e-6, 2e-3  # seconds between two polls
_LOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid


class Locks:
    """Locks in a memory file that all ranks of a node open. Creation is collective.

    The lock of rank r is byte r of the file. Byte ``size + r`` is the lock's gate. A rank holds the gate while it waits
    for the lock, and ranks that come later wait for the gate. Without gates, shared locks that overlap in time could
    keep a rank that wants an exclusive lock waiting forever.
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
        """Wait for a rank's lock, and return True.

        Return False if this rank already has the lock, or if another of its threads is waiting for it.

        Parameters
        ----------
        rank : int
        shared : bool
            Whether other ranks may hold the lock at the same time.
        check : callable
            Called while waiting; raises if the wait can never end.

        Raises
        ------
        PeerTimeout
            If other ranks have held it for longer than PYNCCLX_TIMEOUT.
        """
        # The lock belongs to the process, and another thread of it may request the lock too.
        with self._claiming:
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
        # Linux may have released the lock because its holder has died.
        if has_waited:
            attribution.look_now()
            check()

    def release(self, rank: int) -> None:
        """Release a rank's lock, if this rank has it."""
        # A thread that requests the lock at this time acquires it after the release, or not at all.
        with self._claiming:
            self._unlock(rank)
            self._held.discard(rank)

    def _wait(self, byte: int, kind: int, deadline: float, check: Callable[[], None]) -> bool:
        """Wait for one byte's lock; return whether another rank had it."""
        pause = _SHORTEST_S
        while not self._try(kind, byte):
            check()
            if time.monotonic() > deadline:
                raise noted(self._late(byte % self._size))
            # The holder may wait for MPI to make progress on this rank.
            waiting.let_go_on()
            with interrupts_allowed():
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
        """Return the error that names the holder of the lock or of its gate."""
        pid = self._holder(rank) or self._holder(self._size + rank)
        error = PeerTimeout(f"Lock of rank {rank}", 0, self._rank, self._ranks.get(pid, -1), 0, 0)
        error.detail = f"process {pid} holds the lock"
        return error

    def _holder(self, byte: int) -> int:
        """Return the process that has locked a byte; 0 if no other process has."""
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, *_, pid = _LOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))
        return 0 if kind == fcntl.F_UNLCK else int(pid)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
