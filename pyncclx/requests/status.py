"""Check statuses, and set those that MPI does not set."""

from __future__ import annotations

from collections.abc import Iterable

from mpi4py import MPI

from ..system.mpi_library import goes_on_after_failures
from ..system.process import PerProcess

_KINDS = {MPI.Status}
# A request that never ends.
_NEVER = PerProcess(lambda: MPI.Grequest.Start(None, None, None))


def check_status(status: object) -> None:
    """Raise TypeError, as mpi4py does, if an argument is not a status.

    Call this before the operation completes: an error after that would lose the message.
    """
    if not isinstance(status, MPI.Status):
        kind = type(status).__name__
        raise TypeError(f"Argument 'status' has incorrect type (expected mpi4py.MPI.Status, got {kind})")


def check_statuses(statuses: Iterable[object]) -> None:
    """Raise TypeError if an item of a sequence is not a status."""
    if not _KINDS.issuperset(map(type, statuses)):
        for status in statuses:
            check_status(status)


def fill_empty(status: MPI.Status) -> None:
    """Set a status to MPI's empty status."""
    status.Set_source(MPI.ANY_SOURCE)
    status.Set_tag(MPI.ANY_TAG)
    status.Set_error(MPI.SUCCESS)
    status.Set_elements(MPI.BYTE, 0)
    status.Set_cancelled(False)


def has_ended(request: MPI.Request, status: MPI.Status | None = None) -> bool:
    """Return whether a request's operation has ended, without completing the request.

    Do not call it for persistent requests, because MPICH completes them here. MPICH also raises the operation's error
    here; it is set in the status, and the call that completes the request raises it.
    """
    try:
        if MPI.Request.Get_status(request, status):
            return True
        if not goes_on_after_failures():
            return False
        # Open MPI's Get_status finds no failures, but its Testall does. This Testall completes no request, because
        # one of the two never ends.
        MPI.Request.Testall([request, _NEVER.get()])
        return MPI.Request.Get_status(request, status)
    except MPI.Exception as error:
        if status is not None:
            status.Set_error(error.Get_error_code())
        return True


def copy_status(status: MPI.Status, other: MPI.Status) -> None:
    """Copy source, tag, length and cancellation to a status, without the error."""
    status.Set_source(other.source)
    status.Set_tag(other.tag)
    status.Set_error(MPI.SUCCESS)
    # For a collective, Open MPI leaves the length uninitialized, so it may be negative.
    status.Set_elements(MPI.BYTE, max(other.Get_elements(MPI.BYTE), 0))
    status.Set_cancelled(other.Is_cancelled())


def status_of_no_source() -> MPI.Status:
    """Return the status of a receive from MPI.PROC_NULL."""
    status = MPI.Status()
    status.Set_source(MPI.PROC_NULL)
    return status
