"""What a communicator has for partitioned messages: letters, its ends, and the kernels that all of them use."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from .. import backends
from ..launch import kernels
from ..system.process import PerProcess
from .letters import Correspondent, Letters

#: The kernels of cuda/messages/partitioned.cu.
FUNCTIONS = PerProcess(lambda: kernels.load_alone(backends.select(), "messages/partitioned.cu"))


class End(Protocol):
    """An end of a partitioned message, with what kernels wait for.

    Attributes
    ----------
    peer : int
        The rank that has the other end.
    active : bool
        From its start to the end of its round.
    """

    peer: int
    active: bool

    def let_go(self) -> bool:
        """Let kernels leave that wait for the peer, which has failed; return whether there may be some."""


class PartitionedEnds:
    """The ends of a communicator's partitioned messages.

    Attributes
    ----------
    letters : Letters
        By which they find each other.
    spare_streams : list of stream
        That ended ends have had for what waits for their receivers.
    """

    def __init__(self, owner: Correspondent) -> None:
        self.letters = Letters(owner)
        self.spare_streams: list[Any] = []
        self._ends: weakref.WeakSet[End] = weakref.WeakSet()

    def add(self, end: End) -> None:
        """Let an end go when its peer fails."""
        self._ends.add(end)

    def are_active(self) -> bool:
        """Return whether a round of an end has begun and is not over."""
        return any(end.active for end in list(self._ends))

    def let_go(self, rank: int) -> bool:
        """Let kernels leave that wait for a rank, which has failed; return whether there may be some."""
        waiting = [end.let_go() for end in list(self._ends) if end.peer == rank]
        return any(waiting)
