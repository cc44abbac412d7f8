"""Record the communicators on which a collective timed out on this rank.

Late ranks may still enter such a collective, and MPI then continues it. If the communicator had been freed, Open MPI
would abort the program or deliver the messages to a new communicator with the same number. So such communicators are
never freed.
"""

import ctypes
from typing import Protocol

from mpi4py import MPI


class Tested(Protocol):
    """Protocol of MPI requests, and of other objects with a method `Test`."""

    def Test(self) -> bool:
        """Return whether the operation is complete."""


_given_up: list[tuple[MPI.Comm, Tested]] = []  # collectives that this rank no longer waits for


def give_up(comm: MPI.Comm, request: Tested) -> None:
    """Record a collective that this rank has stopped waiting for."""
    if isinstance(comm, MPI.Comm) and not any(each is request for _, each in _given_up):
        _given_up.append((MPI.Comm(comm), request))


def come_again(request: Tested) -> None:
    """Remove a collective from the record, because a later wait has completed it."""
    _given_up[:] = [(comm, each) for comm, each in _given_up if each is not request]


def has_given_up(comm: MPI.Comm) -> bool:
    """Return whether this rank has left a collective that other ranks may still be in.

    Examples
    --------
    >>> has_given_up(MPI.COMM_SELF)
    False
    """
    return any(each == comm for each, _ in _given_up)


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
