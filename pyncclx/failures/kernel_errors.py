"""Words in which kernels and device functions record errors, and their exceptions.

The words are the twin of `Watch` in cuda/protocol/layout.cuh.
"""

from __future__ import annotations

from typing import NamedTuple

from mpi4py import MPI

from ..backends import Watch
from ..errors import Aborted, CapacityExceeded, MPIError, PeerTimeout
from ..operations import DEVICE_TEAM, NAMES


class ErrorWords(NamedTuple):
    """The 64-bit words of a `Watch`, in order."""

    # Set by the host to make kernels stop waiting.
    abort: int
    # Set by a kernel whose wait failed, with the next six words.
    failure: int
    operation: int
    epoch: int
    channel: int
    peer: int
    expected: int
    seen: int
    # Set by a kernel that rejects numbers on the device, with the next three words.
    overflow: int
    source: int
    wanted: int
    capacity: int


WORDS_NBYTES = 8 * len(ErrorWords._fields)
ABORT, FAILURE, OPERATION, EPOCH, PEER, OVERFLOW = map(
    ErrorWords._fields.index, ("abort", "failure", "operation", "epoch", "peer", "overflow")
)
TIMED_OUT, ABORTED, MISMATCH = 1, 2, 4  # values of Watch::failure
# Value of Watch::failure that the host sets when no kernel has recorded anything.
LOST = 3


def read_words(watch: Watch, dtype: str = "u8") -> ErrorWords:
    """Return the present values of the error words of a `Watch`."""
    return ErrorWords(*watch.array.view(dtype).tolist())


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
# The functions of cuda/pyncclx.cuh: DeviceFunction in cuda/device/team.cuh.
FUNCTIONS = (
    *("peer_pointer", "put", "get", "put_signal", "signal_set", "signal_add", "signal_read", "wait_until", "barrier"),
    *("grid_barrier", "last_block", "atomic_add", "atomic_cas", "expect_size", "Wait_signal"),
    *("put_packets", "receive_packets", "allgather_block", "alltoall_block", "allreduce_block"),
)
# Texts for arguments that these functions refuse, by value of the enumeration Misuse.
MISUSES = {
    16: "peer {given} is no rank of the {most} there are",
    17: "signal {given} of {most}; make the team with more: comm.device_team(signals=...)",
    18: "a grid of {given} blocks, the team was made for {most}; make it with comm.device_team(blocks=...)",
    19: "counter {given} of {most}; make the team with more: comm.device_team(counters=...)",
    20: "{most} bytes at {given:#x} are not in an array from this communicator's Alloc, here and on the peer",
    21: "the word at {given:#x} is not at a multiple of its {most} bytes",
    22: "the kernel is made for {given} ranks, the communicator has {most}; compile it for as many",
}
# What has the number in the word `epoch`, for each function that waits.
_NUMBERS = {
    **dict.fromkeys(("wait_until", "Wait_signal"), "signal"),
    "barrier": "block",
    "grid_barrier": "counter",
    "receive_packets": "epoch",
}
_RANKS = 1 << 31  # unsigned words from here on, such as kAnyRank, are no ranks


def failure(record: ErrorWords, rank: int) -> Exception:
    """Return the exception for a kernel's wait that ended early."""
    operation, peer = NAMES[record.operation], record.peer
    if operation == DEVICE_TEAM:
        return _device_failure(record, rank)
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
        text = MISUSES[record.overflow].format(given=record.wanted, most=record.capacity)
        return ValueError(f"pyncclx_{FUNCTIONS[record.source]}, called by a kernel: {text}")
    if record.overflow not in _REFUSED:
        return CapacityExceeded(rank, record.source, record.wanted, record.capacity)
    text = _REFUSED[record.overflow].format(rank=rank, **record._asdict())
    if record.overflow == TRUNCATED:
        return MPIError(MPI.ERR_TRUNCATE, f"{operation}: {text}")
    return ValueError(f"{operation}: {text}")


class GridTimeout(PeerTimeout):
    """A grid barrier timed out; `expected` and `seen` are numbers of blocks."""

    def __str__(self) -> str:
        return (
            f"{self.operation}: rank {self.rank} timed out waiting for blocks of its own grid, {self.seen} of "
            f"{self.expected} had come; launch no more than the GPU can run at once, and let all of them call it"
        )


def _device_failure(record: ErrorWords, rank: int) -> Exception:
    """Return the exception for a wait of a device function that ended early."""
    function, peer = FUNCTIONS[record.channel], record.peer
    prefix = "" if function == "Wait_signal" else "pyncclx_"
    name = f"{prefix}{function} ({_NUMBERS[function]} {record.epoch})"
    if record.failure == ABORTED:
        return Aborted(f"{name}, called by a kernel: rank {rank} was made to stop waiting")
    peer = peer if peer < _RANKS else -1  # a signal may come from any rank
    kind = GridTimeout if function == "grid_barrier" else PeerTimeout
    return kind(name, 0, rank, peer, record.expected, record.seen)
