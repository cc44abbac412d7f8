"""Base class of engines, which move bytes between nodes, and errors of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import MPIError


class Transfer(NamedTuple):
    """Bytes to send or to receive. All transfers of one exchange run at once."""

    peer: int  # a rank of the communicator
    address: int
    nbytes: int


#: A function called with the name of a failed step and the reason. It ends the waits of this node's kernels for this
#: rank.
Failed = Callable[[str, Exception], None]


class EngineError(MPIError):
    """An error of an engine's library, which ends the engine. Usually a rank has died."""


class Engine:
    """Base class of engines, which move bytes between ranks that share no memory.

    All ranks run the same steps in the same order. Bytes sent to a rank arrive in the order of the sends, so an
    exchange may have several transfers with one peer.

    Parameters
    ----------
    failed : callable

    Attributes
    ----------
    name : str
        ``"mpi"`` or ``"nccl"``.
    follows_streams : bool
        Whether a step is enqueued like a kernel and can be captured. Otherwise the host waits for the step.
    """

    name: str
    follows_streams: bool

    def __init__(self, failed: Failed) -> None:
        self._failed = failed
        self._failure: Exception | None = None

    @property
    def has_failed(self) -> bool:
        """Whether this process has recorded an error for `check`; cheaper than `check`."""
        return self._failure is not None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def exchange(
        self, step: str, sends: Sequence[Transfer], receives: Sequence[Transfer], stream: Any, call: int
    ) -> None:
        """Send and receive on `stream`.

        `step` is the step's name for error messages, `call` the number of its call.

        Raises
        ------
        StepTimeout, MPI.Exception
            If the host waits for the step, and it fails. An engine that follows streams raises later, in `check`.
        """

    def check(self, step: str = "a step between nodes") -> None:
        """Raise an error that has occurred since the last check.

        If the engine stays usable, the error is raised once, otherwise at every call. `step` is the name of the current
        step, for error messages.
        """

    def abort(self, step: str, reason: Exception) -> None:
        """End all steps in progress; `check` raises the reason from now on.

        `step` is the name of one of these steps.
        """

    def close(self) -> None:
        """Release all resources, after all steps have ended. Collective among its ranks."""

    def abandon(self) -> None:
        """Release the resources of this rank alone, now or later. Not collective.

        Call it after the end of this rank's steps.
        """
