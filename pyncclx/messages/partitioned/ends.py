"""A communicator's partitioned messages: ends, handshakes, kernels."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from ... import backends
from ...errors import PeerTimeout
from ...launch import kernels
from ...system.process import PerProcess
from .letters import Letters

#: The kernels of cuda/messages/partitioned.cu.
FUNCTIONS = PerProcess(lambda: kernels.load_alone(backends.select(), "messages/partitioned.cu"))


class End(Protocol):
    """An end of a partitioned message, for which kernels may be waiting.

    Attributes
    ----------
    peer : int
        The rank of the other end.
    active : bool
        Whether a round has begun and is not over.
    """

    peer: int
    active: bool

    @property
    def is_nobodys(self) -> bool:
        """Whether the other end is MPI.PROC_NULL."""

    def meet(self) -> None:
        """Wait until both ends have each other's addresses, or raise."""

    def let_go(self) -> bool:
        """Release kernels that wait for the peer, which has failed.

        Return whether any may be waiting.
        """


class PartitionedEnds:
    """The ends of a communicator's partitioned messages.

    Attributes
    ----------
    letters : Letters
        Handshakes by which two ends exchange addresses.
    spare_streams : list of stream
        Streams of sending ends that have been freed, to be used again.
    """

    letters: Letters

    def __init__(self) -> None:
        self.spare_streams: list[Any] = []
        self._ends: weakref.WeakSet[End] = weakref.WeakSet()

    def add(self, end: End) -> None:
        """Include an end in `let_go`, as long as it exists."""
        self._ends.add(end)

    def are_active(self) -> bool:
        """Return whether any end has begun a round that is not over."""
        return any(end.active for end in list(self._ends))

    def meet(self) -> None:
        """Wait until the ends of active messages have each other's addresses.

        The calls that wait for the messages raise errors.
        """
        for end in list(self._ends):
            try:
                if end.active and not end.is_nobodys:
                    end.meet()
            except PeerTimeout:
                return
            except Exception:
                continue

    def let_go(self, rank: int) -> bool:
        """Release kernels that wait for a rank that has failed.

        Return whether any may be waiting.
        """
        waiting = [end.let_go() for end in list(self._ends) if end.peer == rank]
        return any(waiting)
