"""Work of requests: the message, collective or copy behind a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mpi4py import MPI

from mpi_bootstrap.own_errors import own_error

from ..errors import MPIError
from . import late
from .failures import Failures
from .status import fill_empty

#: Function that makes the host wait at the end of a call. Requests that share a wait have equal functions.
Wait = Callable[[], None]
Starter = Callable[[Sequence[Any]], None]
Finisher = Callable[[dict[int, Any], Failures, dict[Wait, None]], None]


class Work:
    """The operation of a request.

    Attributes
    ----------
    active : bool
        Whether it has begun and `finish` has not been called.
    is_asked : bool
        Whether MPI's query of the status has finished it. The request still has to be completed.
    asked_error : BaseException or None
        The error raised in that query, because Open MPI does not pass it on.
    is_persistent : bool
        Whether its request can be started again.
    is_received : bool
        Whether `finish` received a message before a signal handler raised; `fill` then sets the message's status.
    shown : Shown or None
        The generalized request for mpi4py's own calls.
    finisher : callable or None
        Function that finishes all works of a call that have this finisher. Its arguments are these works by the index
        of their requests, the `Failures` to add errors to, and the dict to add the host's waits to.
    """

    active = True
    is_asked = is_persistent = is_received = False
    asked_error: BaseException | None = None
    shown: Any = None
    finisher: Finisher | None = None

    @property
    def caller(self) -> Any:
        """The state of the operation's communicator; None if unknown."""
        return getattr(self, "_state", None)

    def finish(self) -> Wait | None:
        """Make later work on the current stream wait for the operation; raise its errors.

        An error is raised once. If the communicator's calls block, return a function with which the host waits.
        """
        raise NotImplementedError

    def is_over(self) -> bool:
        """Return whether `finish` would return at once.

        The function that `finish` returns may still make the host wait for the stream.
        """
        raise NotImplementedError

    def fill(self, status: MPI.Status) -> None:
        """Set a status to that of the message, or to MPI's empty status."""
        fill_empty(status)

    def cancel(self) -> None:
        """Cancel a receive that no message has matched. A send is not cancelled."""
        raise MPIError(MPI.ERR_REQUEST, "Cancel: only a send or a receive that is under way can be cancelled")

    def abandon(self) -> None:
        """Let the operation complete without its request.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if the operation is not a message.
        """
        raise MPIError(MPI.ERR_REQUEST, "Free: the operation is under way, and is no message; Wait for it first")

    def drop(self) -> None:
        """Abandon the operation later, if possible. Destructors may call this at any time."""


def finish(work: Work) -> None:
    """Finish an operation, and wait on the host if its calls block.

    If MPI's query has already finished it, raise the error recorded then.
    """
    if late.INTERRUPTED:
        late.raise_kept()
    if work.active:
        wait = work.finish()
        if wait is not None:
            wait()
    elif work.asked_error is not None:
        error, work.asked_error = work.asked_error, None
        raise error


def wait_for(waits: Iterable[Wait], failures: Failures) -> None:
    """Call all waits of the host, even if some raise; record their errors."""
    for wait in waits:
        try:
            wait()
        except BaseException as error:
            own = own_error(error)
            if own is None:
                raise
            failures.add_of_call(own)


def together(waits: Iterable[Wait]) -> Wait | None:
    """Combine several waits into one that raises the first error at its end.

    Return None if there is nothing to wait for.
    """
    every = tuple(waits)
    if len(every) < 2:
        return every[0] if every else None

    def wait() -> None:
        failures = Failures()
        wait_for(every, failures)
        if failures.of_call is not None:
            raise failures.of_call

    return wait


class Over(Work):
    """Work that is always complete, for requests without an operation."""

    active = False

    def is_over(self) -> bool:
        return True


NOTHING = Over()


class Startable(Work):
    """Work of a persistent request, which can be started repeatedly on its arrays.

    Attributes
    ----------
    name : str
        The method that has made its request.
    starter : callable
        Function that starts several works that have this starter, in order; `check` has accepted them.
    places : sequence of (callable, int)
        For each array whose memory may move: a function that reads its address, and the original address.
    owner : object or None
        The object that `check_owner` checks. Of consecutive works with the same owner only the first is checked.
    """

    active, is_persistent = False, True
    name: str
    starter: Starter
    places: Sequence[tuple[Callable[[], int], int]] = ()
    owner: object = None

    def start(self) -> None:
        """Start the operation, accepted by `check`, after the current stream's work.

        Override this if a single work can start in fewer steps than with `starter`.
        """
        self.starter((self,))

    def close(self) -> None:
        """Free the resources of this work; called when its request is freed."""

    def check_owner(self) -> None:
        """Raise if the communicator has been freed, or if kernels or ranks have failed."""
        raise NotImplementedError

    def freed(self) -> MPIError:
        """Return the error for a start after the communicator has been freed."""
        return MPIError(MPI.ERR_REQUEST, f"{self.name}: the request's communicator has been freed")


def check(works: Iterable[Startable]) -> None:
    """Raise the error of the first work that cannot be started, if there is one."""
    owner: object = None
    for work in works:
        if work.active or work.is_asked:
            raise MPIError(MPI.ERR_REQUEST, f"{work.name}: the request has been started; Wait for it first")
        for read, first in work.places:
            if read() != first:
                text = "an array has other memory than when the request was made; make a new request"
                raise MPIError(MPI.ERR_BUFFER, f"{work.name}: {text}")
        if work.owner is None or work.owner is not owner:
            owner = work.owner
            work.check_owner()
