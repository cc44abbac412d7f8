"""Statuses of operations that MPI itself has not filled in."""

from __future__ import annotations

from mpi4py import MPI


def fill_empty(status: MPI.Status) -> None:
    """Make a status MPI's empty one."""
    status.Set_source(MPI.ANY_SOURCE)
    status.Set_tag(MPI.ANY_TAG)
    status.Set_error(MPI.SUCCESS)
    status.Set_elements(MPI.BYTE, 0)


def copy_status(status: MPI.Status, other: MPI.Status) -> None:
    """Set a status to the source, tag and length of another one, without its error."""
    status.Set_source(other.source)
    status.Set_tag(other.tag)
    status.Set_error(MPI.SUCCESS)
    status.Set_elements(MPI.BYTE, other.Get_elements(MPI.BYTE))


def status_of_no_source() -> MPI.Status:
    """Return the status of a receive from MPI.PROC_NULL."""
    status = MPI.Status()
    status.Set_source(MPI.PROC_NULL)
    return status
