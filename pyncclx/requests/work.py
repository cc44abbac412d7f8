"""What a request stands for: a message, a collective, or a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mpi4py import MPI

from ..errors import MPIError
from . import late
from .failures import Failures
from .status import fill_empty

#: What the host waits for at the end of a call: equal for requests that share the wait.
Wait = Callable[[], None]
Starter = Callable[[Sequence[Any]], None]
Finisher = Callable[[dict[int, Any], Failures, dict[Wait, None]], None]


class Work:
    """The operation of a request.

    Attributes
    ----------
    active : bool
        From its begin to `finish`.
    is_asked : bool
        Whether MPI has finished it where it was asked for the status; then the request has still to be completed.
    asked_error : BaseException or None
        What it raised then: Open MPI does not pass it on.
    is_persistent : bool
        Whether its request can be started again.
    shown : Shown or None
        What mpi4py's own calls find in the request.
    finisher : callable or None
        Finishes several that have the same one: by the index of each request; adds their errors to `Failures`, and what
        the host has to wait for.
    """

    active = True
    is_asked = is_persistent = False
    asked_error: BaseException | None = None
    shown: Any = None
    finisher: Finisher | None = None

    def finish(self) -> Wait | None:
        """Let what is enqueued on the current stream from now on come after it; raise its errors, once.

        Return what the host has to wait for, if the communicator's calls block.
        """
        raise NotImplementedError

    def is_over(self) -> bool:
        """Whether `finish` would return at once. What it returns may still let the host wait for the stream."""
        raise NotImplementedError

    def fill(self, status: MPI.Status) -> None:
        """Set all of the status: to the empty one, unless it is a message."""
        fill_empty(status)

    def cancel(self) -> None:
        """Cancel a receive that nothing has matched; a send goes on."""
        raise MPIError(MPI.ERR_REQUEST, "Cancel: only a send or a receive that is under way can be cancelled")

    def abandon(self) -> None:
        """Let it go on without its request; raise MPI.Exception, of class ERR_REQUEST, if it cannot."""
        raise MPIError(MPI.ERR_REQUEST, "Free: the operation is under way, and is no message; Wait for it first")

    def drop(self) -> None:
        """Abandon it soon, if it can be; a destructor calls this, at any time."""


def finish(work: Work) -> None:
    """Finish an operation, and let the host wait if it has to; raise the error of one that MPI has finished."""
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
    """Let the host wait for all, each whatever the others raise."""
    for wait in waits:
        try:
            wait()
        except Exception as error:
            failures.add_of_call(error)


def together(waits: Iterable[Wait]) -> Wait | None:
    """Return what waits for all, and then raises the first error; None if there is nothing to wait for."""
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
    """The work of a request that has none."""

    active = False

    def is_over(self) -> bool:
        return True


NOTHING = Over()


class Startable(Work):
    """An operation that is started again and again, on the same arrays.

    Attributes
    ----------
    name : str
        Of the method that has made its request.
    starter : callable
        Starts several that have the same one, in their order; all have been checked.
    places : sequence of (callable, int)
        What reads the address of each array that may get other memory, and the address when the request was made.
    owner : object or None
        What `check_owner` asks: of several works in a row with the same one, the first is asked.
    starts_alone : bool
        Whether `start` starts one in fewer steps than `starter`.
    """

    active, is_persistent, starts_alone = False, True, False
    name: str
    starter: Starter
    places: Sequence[tuple[Callable[[], int], int]] = ()
    owner: object = None

    def start(self) -> None:
        """Start it after what the current stream has; it has been checked."""
        self.starter((self,))

    def close(self) -> None:
        """Free what only its request needs; that is being freed."""

    def check_owner(self) -> None:
        """Raise if its communicator has been freed, and what kernels or other ranks have recorded."""
        raise NotImplementedError

    def freed(self) -> MPIError:
        """Return the error of a communicator that has been freed."""
        return MPIError(MPI.ERR_REQUEST, f"{self.name}: the request's communicator has been freed")


def check(works: Iterable[Startable]) -> None:
    """Raise if some cannot be started."""
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
