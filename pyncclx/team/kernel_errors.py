"""Exceptions for what kernels record when something goes wrong in them."""

from __future__ import annotations

from mpi4py import MPI

from ..errors import Aborted, CapacityExceeded, MPIError, PeerTimeout
from ..memory.error_words import ABORTED, ErrorWords
from . import device_errors
from .operations import DEVICE_TEAM, OPERATIONS

BAD_COUNTS, TRUNCATED, BAD_EXPERT, BAD_SEGMENT = 2, 3, 4, 5  # Watch::overflow; 1: rows did not fit


def failure(record: ErrorWords, rank: int) -> Exception:
    """Return the exception for a wait that a kernel gave up."""
    operation, peer = OPERATIONS[record.operation], record.peer
    if operation == DEVICE_TEAM:
        return device_errors.failure(record, rank)
    if record.failure == ABORTED:
        return Aborted(f"{operation}: rank {rank} was told to stop waiting for rank {peer} (epoch {record.epoch})")
    return PeerTimeout(operation, record.epoch, rank, peer, record.expected, record.seen)


def overflow(record: ErrorWords, rank: int) -> Exception:
    """Return the exception for numbers on the device that a kernel refused."""
    operation, source = OPERATIONS[record.operation], record.source
    wanted, capacity = record.wanted, record.capacity
    if operation == DEVICE_TEAM:
        return device_errors.misuse(record)
    if record.overflow == BAD_COUNTS:
        return ValueError(
            f"{operation}: send count {wanted} for rank {source} is negative or reaches past the {capacity} rows "
            f"of sendbuf; nothing was sent to it. An earlier call was given these counts on the device"
        )
    if record.overflow == BAD_EXPERT:
        return ValueError(
            f"{operation}: token {source} of rank {rank} chose expert {wanted}; there are {capacity}, and -1 "
            "chooses none. An earlier call was given this number on the device, and left the choice out"
        )
    if record.overflow == BAD_SEGMENT:
        return ValueError(
            f"{operation}: entry {source} of the segments' counts, lengths or ids is {wanted}; 0 to {capacity} is "
            "possible there. An earlier call was given this number on the device, and took it for none"
        )
    if record.overflow == TRUNCATED:
        text = f"rank {source} sent {wanted} bytes, the receive count for it on rank {rank} is {capacity}"
        return MPIError(MPI.ERR_TRUNCATE, f"{operation}: {text}")
    return CapacityExceeded(rank, source, wanted, capacity)
