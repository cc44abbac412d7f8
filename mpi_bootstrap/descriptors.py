"""Exchange file descriptors within a node, by MPI and Unix sockets."""

import os
import pickle
import socket
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from mpi4py import MPI

from .agreement import agree, allgather_bytes
from .identity import node_identity
from .interrupts import interrupts_deferred
from .mailbox import Address, Mailbox, close_all
from .waiting import patience


@interrupts_deferred()
def allgather_fds(
    comm: MPI.Intracomm, fd: int, wanted: Collection[int], *, timeout: float | None = None
) -> dict[int, int]:
    """Send this rank's file descriptor; return those of the wanted ranks. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    fd : int
        The descriptor of this rank; the caller still owns it.
    wanted : collection of int
        The ranks whose descriptors this rank gets. May be empty, contain this rank, and differ between ranks.
    timeout : float, optional
        Seconds in which all descriptors must arrive; default: that of the failure policy (`waiting.patience`).

    Returns
    -------
    dict of int to int
        The descriptor of each wanted rank, in rank order; children do not inherit them. The caller closes them.

    Raises
    ------
    ValueError
        On all ranks, if a wanted rank does not exist, or runs on another node or in another container.
    TimeoutError, OSError
        On all ranks, if descriptors do not arrive in time, or if a descriptor or socket fails. Those that have arrived
        are closed.

    Examples
    --------
    >>> with open("/dev/null") as file:
    ...     received = allgather_fds(MPI.COMM_SELF, file.fileno(), [0])
    >>> os.close(received[0])
    """
    seconds = patience() if timeout is None else timeout
    sources, mailbox = agree(comm, lambda: (frozenset(wanted), Mailbox(fd)), undo=lambda opened: opened[1].close())
    try:
        requests = [pickle.loads(data) for data in allgather_bytes(comm, pickle.dumps(_request(mailbox, sources)))]
        _check(requests)
        receivers = {rank: request.address for rank, request in enumerate(requests) if comm.rank in request.wanted}
        received = agree(
            comm,
            lambda: _exchange(mailbox, comm.rank, receivers, sources, seconds),
            undo=lambda descriptors: close_all(descriptors.values()),
        )
    finally:
        # Since agree() has returned, all ranks have sent everything.
        mailbox.close()
    return dict(sorted(received.items()))


class _Request(NamedTuple):
    """A rank's request: the ranks whose descriptors it wants, and its address."""

    address: Address
    hostname: str
    node: bytes
    wanted: frozenset[int]


def _request(mailbox: Mailbox, wanted: frozenset[int]) -> _Request:
    return _Request(mailbox.address, socket.gethostname(), node_identity(), wanted)


def _check(requests: list[_Request]) -> None:
    """Raise an error for the first bad request.

    Every rank checks all requests, so all raise the same error.
    """
    size = len(requests)
    for rank, request in enumerate(requests):
        for source in sorted(request.wanted):
            if not 0 <= source < size:
                raise ValueError(f"rank {rank} wants a file descriptor of rank {source}, but there are {size} ranks")
            other = requests[source]
            if other.node != request.node:
                raise ValueError(
                    f"rank {rank} wants a file descriptor of rank {source}, but they run on different nodes or in "
                    f"different containers, {request.hostname} and {other.hostname}; descriptors do not travel between "
                    "them"
                )


def _exchange(
    mailbox: Mailbox, rank: int, receivers: Mapping[int, Address], wanted: frozenset[int], timeout: float
) -> dict[int, int]:
    """Send this rank's descriptor to all receivers; return those of the wanted ranks.

    It alternates between sends and receives. A socket's queue holds about ten datagrams, so ranks that first sent
    everything and only then received could deadlock.
    """
    received: dict[int, int] = {}
    unsent = deque(receiver for receiver in receivers if receiver != rank)
    deadline = time.monotonic() + timeout
    try:
        if rank in wanted:
            received[rank] = os.dup(mailbox.fd)
        while True:
            unsent = deque(receiver for receiver in unsent if not mailbox.post(rank, receivers[receiver]))
            while (letter := mailbox.collect()) is not None:
                received[letter[0]] = letter[1]
            if not unsent and received.keys() == wanted:
                return received
            if time.monotonic() > deadline:
                raise TimeoutError(_unfinished(timeout, wanted - received.keys(), unsent, mailbox.strangers))
            mailbox.wait(0.001 if unsent else deadline - time.monotonic())
    except BaseException:
        close_all(received.values())
        raise


def _unfinished(timeout: float, missing: Iterable[int], unsent: Iterable[int], strangers: int) -> str:
    flood = f"; {strangers} letters of processes that are no ranks came in between" if strangers else ""
    return (
        f"exchange of file descriptors: not finished after {timeout:g} s; nothing came from ranks "
        f"{sorted(missing)}, ranks {sorted(unsent)} did not take this rank's{flood}"
    )
