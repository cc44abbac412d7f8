"""Exceptions for errors that the device functions of cuda/pyncclx.cuh record."""

from __future__ import annotations

from ..errors import Aborted, PeerTimeout
from ..memory.error_words import ABORTED, ErrorWords
from ..memory.layout import MAX_RANKS

FUNCTIONS = (  # DeviceFunction
    *("peer_pointer", "put", "get", "put_signal", "signal_set", "signal_add", "signal_read", "wait_until", "barrier"),
    *("grid_barrier", "last_block", "atomic_add", "atomic_cas", "expect_size", "Wait_signal"),
    *("put_packets", "receive_packets", "allgather_block", "alltoall_block", "allreduce_block"),
)
MISUSES = {  # Misuse
    16: "peer {given} is no rank of the {most} there are",
    17: "signal {given} of {most}; make the team with more: comm.device_team(signals=...)",
    18: "a grid of {given} blocks, the team was made for {most}; make it with comm.device_team(blocks=...)",
    19: "counter {given} of {most}; make the team with more: comm.device_team(counters=...)",
    20: "{most} bytes at {given:#x} are not in an array from this communicator's Alloc, here and on the peer",
    21: "the word at {given:#x} is not at a multiple of its {most} bytes",
    22: "the kernel is made for {given} ranks, the communicator has {most}; compile it for as many",
}
_NUMBERS = {  # what each function waits for
    **dict.fromkeys(("wait_until", "Wait_signal"), "signal"),
    "barrier": "block",
    "grid_barrier": "counter",
    "receive_packets": "epoch",
}


class GridTimeout(PeerTimeout):
    """A grid barrier timed out; `expected` and `seen` are numbers of blocks."""

    def __str__(self) -> str:
        return (
            f"{self.operation}: rank {self.rank} waited in vain for blocks of its own grid, {self.seen} of "
            f"{self.expected} had come; launch no more than the GPU can run at once, and let all of them call it"
        )


def misuse(record: ErrorWords) -> ValueError:
    """Return the exception for arguments that device function `record.source` refused."""
    text = MISUSES[record.overflow].format(given=record.wanted, most=record.capacity)
    return ValueError(f"pyncclx_{FUNCTIONS[record.source]}, called by a kernel: {text}")


def failure(record: ErrorWords, rank: int) -> Exception:
    """Return the exception for a wait that device function `record.channel` ended."""
    function, peer = FUNCTIONS[record.channel], record.peer
    prefix = "" if function == "Wait_signal" else "pyncclx_"
    name = f"{prefix}{function} ({_NUMBERS[function]} {record.epoch})"
    if record.failure == ABORTED:
        return Aborted(f"{name}, called by a kernel: rank {rank} was made to stop waiting")
    peer = peer if peer < MAX_RANKS else -1  # a signal may come from any rank
    kind = GridTimeout if function == "grid_barrier" else PeerTimeout
    return kind(name, 0, rank, peer, record.expected, record.seen)
