"""Statuses of operations that MPI itself has not filled in."""

from __future__ import annotations

from mpi4py import MPI


def fill_empty(status: MPI.Status) -> None:
    """Make a status MPI's empty one."""
    status.Set_source(MPI.ANY_SOURCE)
    status.Set_tag(MPI.ANY_TAG)
    status.Set_error(MPI.SUCCESS)
    status.Set_elements(MPI.BYTE, 0)


def copy_status(status: MPI.Status, known: MPI.Status) -> None:
    """Set a status to the source, tag and length of another one, without an error."""
    status.Set_source(known.source)
    status.Set_tag(known.tag)
    status.Set_error(MPI.SUCCESS)
    status.Set_elements(MPI.BYTE, known.Get_elements(MPI.BYTE))


def status_of_no_source() -> MPI.Status:
    """Return the status of a receive from MPI.PROC_NULL."""
    status = MPI.Status()
    status.Set_source(MPI.PROC_NULL)
    return status
