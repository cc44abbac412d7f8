"""Messages that MPI has still to send.

MPI cannot take any number of envelopes before their receiver looks for them, and sends the others inside its own calls.
This rank may make none until then, for it waits in a kernel, or computes. So the watcher lets MPI go on while there are
such messages.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from mpi_bootstrap.waiting import let_go_on

from ..requests.open_receives import LOCK

STEPS = 16  # of MPI's at a look: the receiver may take as little as one message between two (MPICH)


class Unsent:
    """The messages of this process that MPI may still have to send.

    Parameters
    ----------
    wake : callable
        Wakes the watcher; called with `LOCK` held.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._open = weakref.WeakSet[Any]()  # those that a call will end
        self._kept: deque[tuple[MPI.Request, Any]] = deque()  # those that no call waits for, and their memory

    def __bool__(self) -> bool:
        return bool(self._open or self._kept)

    def add(self, message: Any) -> None:
        """Let MPI go on until the message is discarded."""
        with LOCK:
            self._open.add(message)
            self._wake()

    def discard(self, message: Any) -> None:
        """MPI has sent it, or a call waits for that."""
        with LOCK:
            self._open.discard(message)

    def keep(self, request: MPI.Request, memory: Any) -> None:
        """Keep a message that no call waits for until MPI has sent it."""
        with LOCK:
            if not _is_over(request):
                self._kept.append((request, memory))
                self._wake()
            self._sweep()

    def go_on(self) -> None:
        """Let MPI send what it can."""
        if self:
            with LOCK:
                for _ in range(STEPS):
                    let_go_on()
                self._sweep()

    def _sweep(self) -> None:
        """Let go of those that MPI has sent."""
        while self._kept and _is_over(self._kept[0][0]):
            self._kept.popleft()


def _is_over(request: MPI.Request) -> bool:
    """Whether MPI has sent a message, or never will: its receiver has failed, and no call waits for it."""
    try:
        return request.Test()
    except MPI.Exception:
        return True
