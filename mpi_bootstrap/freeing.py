"""Communicators in which ranks may be in different collectives, since some waited no longer for others.

MPI goes on with a collective when the late ranks come. If the communicator was freed by then, Open MPI ends the
program, or gives their messages to a new communicator with its number. So MPI keeps such communicators.
"""

import ctypes
from typing import Protocol

from mpi4py import MPI


class Tested(Protocol):
    """What a wait asks of a request of MPI's."""

    def Test(self) -> bool:
        """Whether it is over."""


_given_up: list[tuple[MPI.Comm, Tested]] = []  # collectives for which this rank waits no more


def give_up(comm: MPI.Comm, request: Tested) -> None:
    """Keep a collective for which this rank waits no more."""
    if isinstance(comm, MPI.Comm) and not any(each is request for _, each in _given_up):
        _given_up.append((MPI.Comm(comm), request))


def come_again(request: Tested) -> None:
    """Forget that this rank gave up a collective: it has waited again, until all ranks were there."""
    _given_up[:] = [(comm, each) for comm, each in _given_up if each is not request]


def has_given_up(comm: MPI.Comm) -> bool:
    """Return whether this rank has left a collective of a communicator in which others may still be.

    Examples
    --------
    >>> has_given_up(MPI.COMM_SELF)
    False
    """
    return any(each == comm for each, _ in _given_up)


def forget(comm: MPI.Comm) -> None:
    """Make an object `MPI.COMM_NULL`, and let MPI keep the communicator.

    Examples
    --------
    >>> comm = MPI.Comm(MPI.COMM_SELF)
    >>> forget(comm)
    >>> comm == MPI.COMM_NULL
    True
    """
    null = MPI.Comm(MPI.COMM_NULL)
    ctypes.memmove(MPI._addressof(comm), MPI._addressof(null), MPI._sizeof(MPI.Comm))
