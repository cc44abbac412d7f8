"""What moves bytes between nodes: the protocol of an engine, and what goes wrong in its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ..errors import MPIError


class Transfer(NamedTuple):
    """Bytes to send or to receive: all of one exchange go at once."""

    peer: int  # a rank of the communicator
    address: int
    nbytes: int


#: Called with the name of a step that has failed, and with why: kernels of the node would wait for this rank.
Failed = Callable[[str, Exception], None]


class EngineError(MPIError):
    """What the library behind an engine reports: mostly that a rank has died. The engine is over."""


class Engine(Protocol):
    """Moves bytes between ranks of a communicator, which share no memory.

    All its ranks make the same steps in the same order. What is sent to a rank arrives there in the order in which it
    was given, so an exchange may have several transfers with one peer.

    Attributes
    ----------
    name : str
        ``"mpi"`` or ``"nccl"``.
    follows_streams : bool
        Whether a step is enqueued as a kernel is, and can be captured; otherwise the host waits for the step.
    """

    name: str
    follows_streams: bool

    @property
    def has_failed(self) -> bool:
        """Whether `check` raises what has been recorded in this process; cheaper than `check`."""

    def exchange(
        self, step: str, sends: Sequence[Transfer], receives: Sequence[Transfer], stream: Any, call: int
    ) -> None:
        """Send and receive, on `stream`; `step` is the step's name for messages, `call` the number of its call.

        Raises
        ------
        StepTimeout, MPI.Exception
            From the host's wait; an engine that follows streams raises later, in `check`.
        """

    def check(self, step: str = "a step between nodes") -> None:
        """Raise what has gone wrong since the last look: once if the engine goes on, else from then on.

        `step` is the step that is under way, for messages.
        """

    def abort(self, step: str, reason: Exception) -> None:
        """End all steps that are under way, one of this name among them: from now on `check` raises the reason."""

    def close(self) -> None:
        """Release what it holds: all steps are over. Collective among its ranks."""

    def abandon(self) -> None:
        """Release, now or later, what does not take its ranks to meet: the steps of this rank are over."""
