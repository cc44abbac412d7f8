"""The messages of a communicator that probes have found: kept until somebody receives them."""

from __future__ import annotations

from mpi4py import MPI

from .base import MessageBase
from .envelope import may_be_one
from .probe import ProbedMessage


def find(comm: MessageBase, source: int, tag: int) -> ProbedMessage | None:
    """The first message that an earlier probe has taken."""
    held = comm.mail.held
    return next((each for each in held if each.fits(source, tag)), None) if held else None


def look(comm: MessageBase, source: int, tag: int) -> ProbedMessage | None:
    """The same, read."""
    held = find(comm, source, tag)
    if held is None:
        return None
    read = held.read()
    comm.mail.held[comm.mail.held.index(held)] = read
    return read


def take(comm: MessageBase, source: int, tag: int) -> ProbedMessage | None:
    """The same, to be received."""
    held = find(comm, source, tag)
    if held is not None:
        comm.mail.held.remove(held)
    return held


def hold(comm: MessageBase, known: MPI.Status) -> ProbedMessage | None:
    """Take a message that a probe has found, if it may be an envelope: the next probe or receive finds it here.

    Messages with other tags that came before it from the same rank are taken along, unread, for a receive with
    MPI.ANY_TAG must get them first.
    """
    if not may_be_one(known.Get_elements(MPI.BYTE)):
        return None
    status = MPI.Status()
    while True:
        held = ProbedMessage.of(MPI.Comm.Mprobe(comm, known.source, MPI.ANY_TAG, status), status)
        if held.tag == known.tag:
            held = held.read()
        comm.mail.held.append(held)
        if held.tag == known.tag:
            return held
