"""Statuses of operations that MPI itself has not filled in."""

from __future__ import annotations

from mpi4py import MPI


def fill_empty(status: MPI.Status) -> None:
    """Set a status to MPI's empty status."""
    status.Set_source(MPI.ANY_SOURCE)
    status.Set_tag(MPI.ANY_TAG)
    status.Set_error(MPI.SUCCESS)
    status.Set_elements(MPI.BYTE, 0)
    status.Set_cancelled(False)


def has_ended(request: MPI.Request, status: MPI.Status | None = None) -> bool:
    """Return whether MPI has ended its operation, without completing the request.

    Do not call it for persistent requests: MPICH completes them here. MPICH raises the operation's error
    here, too: it is set in the status, and the call that completes the request raises it.
    """
    try:
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
    # Open MPI leaves the length as it was in memory where the operation was a collective: it may be negative.
    status.Set_elements(MPI.BYTE, max(other.Get_elements(MPI.BYTE), 0))
    status.Set_cancelled(other.Is_cancelled())


def status_of_no_source() -> MPI.Status:
    """Return the status of a receive from MPI.PROC_NULL."""
    status = MPI.Status()
    status.Set_source(MPI.PROC_NULL)
    return status
