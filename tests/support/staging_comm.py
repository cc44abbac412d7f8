"""Communicators that stage; make them fixtures."""

from mpi4py import MPI

import pyncclx
from pyncclx import events


def staging(memory):
    """Beside memory that the host device tells from the host's."""
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as made:
        made.staging = True
        yield made
        made.synchronize()


def by_kernels():
    """Every rank's calls must be done by kernels: they wait for each other."""
    ways = []
    events.listeners.append(ways.append)
    try:
        yield from staging(None)
    finally:
        events.listeners.remove(ways.append)
    assert {event.how for event in ways} <= {events.NATIVE}
