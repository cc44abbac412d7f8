"""Exceptions for errors that kernels record."""

from __future__ import annotations

from mpi4py import MPI

from ..errors import Aborted, CapacityExceeded, MPIError, PeerTimeout
from ..memory.error_words import ABORTED, TIMED_OUT, ErrorWords
from ..operations import DEVICE_TEAM, NAMES
from . import device_errors

CUT, BAD_COUNTS, TRUNCATED, BAD_EXPERT, BAD_SEGMENT = 1, 2, 3, 4, 5  # values of Watch::overflow; CUT: rows did not fit

_REFUSED = {
    BAD_COUNTS: (
        "send count {wanted} for rank {source} is negative or reaches past the {capacity} rows of sendbuf; nothing was "
        "sent to it. An earlier call was given these counts on the device"
    ),
    TRUNCATED: "rank {source} sent {wanted} bytes, the receive count for it on rank {rank} is {capacity}",
    BAD_EXPERT: (
        "token {source} of rank {rank} chose expert {wanted}; there are {capacity}, and -1 chooses none. An earlier "
        "call was given this number on the device, and left the choice out"
    ),
    BAD_SEGMENT: (
        "entry {source} of the segments' counts, lengths or ids is {wanted}; 0 to {capacity} is possible there. An "
        "earlier call was given this number on the device, and took it for none"
    ),
}


def failure(record: ErrorWords, rank: int) -> Exception:
    """Return the exception for a kernel's wait that ended early."""
    operation, peer = NAMES[record.operation], record.peer
    if operation == DEVICE_TEAM:
        return device_errors.failure(record, rank)
    if record.failure == ABORTED:
        return Aborted(f"{operation}: rank {rank} was made to stop waiting for rank {peer} (epoch {record.epoch})")
    return PeerTimeout(operation, record.epoch, rank, peer, record.expected, record.seen)


def wait_of(record: ErrorWords, rank: int) -> PeerTimeout:
    """Return a kernel's wait that ended early as a PeerTimeout."""
    error = failure(record._replace(failure=TIMED_OUT), rank)
    assert isinstance(error, PeerTimeout)
    return error


def overflow(record: ErrorWords, rank: int) -> Exception:
    """Return the exception for numbers on the device that a kernel refused."""
    operation = NAMES[record.operation]
    if operation == DEVICE_TEAM:
        return device_errors.misuse(record)
    if record.overflow not in _REFUSED:
        return CapacityExceeded(rank, record.source, record.wanted, record.capacity)
    text = _REFUSED[record.overflow].format(rank=rank, **record._asdict())
    if record.overflow == TRUNCATED:
        return MPIError(MPI.ERR_TRUNCATE, f"{operation}: {text}")
    return ValueError(f"{operation}: {text}")
