"""Record the communicators on which a rank has left a rendezvous.

A late rank may still enter the MPI collective that another rank has left, and MPI then continues that collective. If
the communicator had been freed, Open MPI would abort the program, or deliver the messages to a new communicator with
the same number. So such communicators are never freed. If a rank that has left called another collective, MPI would
match it with an earlier one of the other ranks. So the rank takes part in no more rendezvous on the communicator.
"""

import copy
import ctypes
from typing import Protocol, cast

from mpi4py import MPI


class Tested(Protocol):
    """Protocol of MPI requests, and of other objects with a method `Test`."""

    def Test(self) -> bool:
        """Return whether the operation is complete."""


_left: list[Tested] = []  # collectives that this rank no longer waits for
# The key of a communicator's attribute: the error for which this rank has left. Duplicates do not inherit it.
_keyvals: list[int] = []


def leave(comm: MPI.Comm, request: Tested | None, error: Exception) -> None:
    """Record the error after which this rank takes part in no more rendezvous."""
    if isinstance(comm, MPI.Comm) and not has_left(comm):
        if request is not None:
            _left.append(request)
        if not _keyvals:
            _keyvals.append(MPI.Comm.Create_keyval())
        # MPI deletes the attribute with the communicator, so a later communicator with the same handle lacks it.
        MPI.Comm.Set_attr(comm, _keyvals[0], error)


def check(comm: MPI.Comm) -> None:
    """Raise the recorded error if this rank has left a rendezvous on a communicator."""
    if has_left(comm):
        raise copy.copy(cast(Exception, MPI.Comm.Get_attr(comm, _keyvals[0])))


def has_left(comm: MPI.Comm) -> bool:
    """Return whether this rank has left a rendezvous that other ranks may still be in.

    Examples
    --------
    >>> has_left(MPI.COMM_SELF)
    False
    """
    return bool(_keyvals) and isinstance(comm, MPI.Comm) and MPI.Comm.Get_attr(comm, _keyvals[0]) is not None


def forget(comm: MPI.Comm) -> None:
    """Set a communicator object to `MPI.COMM_NULL` without freeing it in MPI.

    Examples
    --------
    >>> comm = MPI.Comm(MPI.COMM_SELF)
    >>> forget(comm)
    >>> comm == MPI.COMM_NULL
    True
    """
    null = MPI.Comm(MPI.COMM_NULL)
    ctypes.memmove(MPI._addressof(comm), MPI._addressof(null), MPI._sizeof(MPI.Comm))
