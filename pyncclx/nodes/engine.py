"""Engines move bytes between nodes: their protocol, and the errors of their steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ..errors import MPIError


class Transfer(NamedTuple):
    """Bytes to send or to receive. All transfers of one exchange run at once."""

    peer: int  # a rank of the communicator
    address: int
    nbytes: int


#: Called with the name of a failed step and the reason, because this node's kernels would wait for this rank.
Failed = Callable[[str, Exception], None]


class EngineError(MPIError):
    """An error that an engine's library reports, mostly a dead rank; the engine ends."""


class Engine(Protocol):
    """Protocol of an engine, which moves bytes between ranks that share no memory.

    All ranks run the same steps in the same order. Bytes sent to a rank arrive in the order of the sends, so an
    exchange may have several transfers with one peer.

    Attributes
    ----------
    name : str
        ``"mpi"`` or ``"nccl"``.
    follows_streams : bool
        Whether a step is enqueued like a kernel and can be captured. Otherwise the host waits for the step.
    """

    name: str
    follows_streams: bool

    @property
    def has_failed(self) -> bool:
        """Whether this process has recorded an error for `check`; cheaper than `check`."""

    def exchange(
        self, step: str, sends: Sequence[Transfer], receives: Sequence[Transfer], stream: Any, call: int
    ) -> None:
        """Send and receive on `stream`.

        `step` is the step's name for messages, `call` the number of its call.

        Raises
        ------
        StepTimeout, MPI.Exception
            In the host's wait. An engine that follows streams raises later, in `check`.
        """

    def check(self, step: str = "a step between nodes") -> None:
        """Raise an error since the last check: once if the engine goes on, else always.

        `step` is the current step, for messages.
        """

    def abort(self, step: str, reason: Exception) -> None:
        """End all steps under way; `check` raises the reason from now on.

        `step` is the name of one of them.
        """

    def close(self) -> None:
        """Release all resources, after all steps have ended. Collective among its ranks."""

    def abandon(self) -> None:
        """Release, now or later, what needs no collective call.

        This rank's steps have ended.
        """
