"""Locks of a window's ranks: waits for them end, and Linux releases those of a process that dies.

MPI's own lock is taken after such a one, when no other rank holds it: MPI waits for ever for one that a dead rank held.
"""

from __future__ import annotations

import fcntl
import os
import struct
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
    """Locks in a file in memory that all ranks have open: rank r's is byte r. Collective to make, on one node."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._rank, self._size = comm.rank, comm.size
        made = mpi_bootstrap.agree(comm, lambda: os.memfd_create("pyncclx-locks") if comm.rank == 0 else -1)
        try:
            own = os.open(os.devnull, os.O_RDONLY) if made < 0 else made
            self._fd = mpi_bootstrap.allgather_fds(comm, own, [0])[0]
        finally:
            os.close(own)
        pids = mpi_bootstrap.allgather_objects(comm, os.getpid())
        self._ranks = {pid: rank for rank, pid in enumerate(pids)}

    def acquire(self, rank: int, *, shared: bool, check: Callable[[], None]) -> None:
        """Wait for a rank's lock.

        Parameters
        ----------
        rank : int
        shared : bool
            Whether others may have it, too.
        check : callable
            Raises if the wait is in vain.

        Raises
        ------
        PeerTimeout
            It was not to be had within PYNCCLX_TIMEOUT.
        """
        check()
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        deadline, pause = time.monotonic() + settings.TIMEOUT.get(), _SHORTEST_S
        while not self._try(kind, rank):
            check()
            if time.monotonic() > deadline:
                raise noted(self._late(rank))
            waiting.let_go_on()  # the holder may need this rank's MPI
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)
        if pause > _SHORTEST_S:  # Linux may have released it, since its holder has died: that is known by now
            blame.look_now()
            try:
                check()
            except BaseException:
                self.release(rank)
                raise

    def release(self, rank: int) -> None:
        """Let others have a rank's lock."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, rank)

    def _try(self, kind: int, rank: int) -> bool:
        try:
            fcntl.lockf(self._fd, kind | fcntl.LOCK_NB, 1, rank)
        except BlockingIOError:
            return False
        return True

    def _late(self, rank: int) -> PeerTimeout:
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0)
        pid = _LOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))[-1]
        holder = self._ranks.get(pid, -1)
        error = PeerTimeout(f"Lock of rank {rank}", 0, self._rank, holder, 0, 0)
        error.detail = f"process {pid} holds the lock"
        return error

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
