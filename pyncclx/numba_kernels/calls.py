"""Make the calls of the collectives written in Python.

A team caches plans by the call's `sized`, so `sized` here differs from that of the call with a built-in kernel.

None of the limits by which kernels are chosen was measured. For a comparison with the built-in kernels see
h200-x2-numba.json and h200-x4-numba.json in examples/benchmarks/results (2 and 4 H200, 2026-11-21).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..arrays.buffers import Buffer
from ..errors import NotSupported
from ..launch.call import Call, Choice
from ..memory.layout import Layout
from ..memory.parameters import AlltoallvArgs
from ..team.base import IntraBase as Intracomm
from .compiled import COMBINE, ELEMENTS, function_of
from .workspace import BLOCKS, packet_nbytes, workspace_of

NAME = "numba"  # name of the algorithm
PACKETS_BLOCK_NBYTES = 1024  # least bytes for each block of a message sent as packets; not measured
CHUNKS_BLOCK_NBYTES = 4096  # least bytes for each block of a message sent as chunks; not measured
CHUNKS_THREADS = 512  # threads of a block that moves chunks: the most that the kernel is compiled for
# Longest messages of Allreduce for one shot, by number of ranks, as in collectives/allreduce.py, and for two shots of
# packets. Not measured.
ONE_SHOT_NBYTES = {2: 1 << 20, 3: 128 << 10, 4: 96 << 10}
ONE_SHOT_NBYTES_OF_MANY = 64 << 10
TWO_SHOT_PACKETS_NBYTES = 2 << 20


def wanted(algorithm: str | None) -> bool:
    """Return whether `algorithm` names the kernels written in Python."""
    return algorithm == NAME


def barrier(comm: Intracomm) -> Call:
    """Return the call of a Barrier on the device."""
    return Call(
        operation="Barrier",
        choose=choose_barrier,
        sized=(NAME,),
        arguments=workspace_of(comm, "Barrier").pack(),
        buffers=(),
        signature=(NAME,),
        load=function_of,
    )


def allreduce(comm: Intracomm, send: Buffer, recv: Buffer, reduction: Any) -> Call:
    """Return the call of an Allreduce."""
    kind = _template("Allreduce", reduction, recv)
    _check_aligned("Allreduce", send)
    _check_aligned("Allreduce", recv)
    nbytes = recv.nbytes
    return Call(
        operation="Allreduce",
        choose=choose_allreduce,
        sized=(nbytes,),
        template=kind,
        arguments=workspace_of(comm, "Allreduce").pack(send.address, recv.address, nbytes),
        buffers=(send, recv),
        signature=(recv.count, *kind, NAME),
        load=function_of,
    )


def move(comm: Intracomm, operation: str, address: int, nbytes: int, buffers: tuple[Buffer, Buffer]) -> Call:
    """Return the call of an Allgather or Alltoall, with blocks of `nbytes`."""
    return Call(
        operation=operation,
        choose=choose_move,
        sized=(operation.lower(), nbytes),
        arguments=workspace_of(comm, operation).pack(address, buffers[1].address, nbytes),
        buffers=buffers,
        signature=(f"{nbytes} bytes", NAME),
        load=function_of,
    )


def alltoallv(
    comm: Intracomm, arguments: AlltoallvArgs, buffers: tuple[Buffer, ...], signature: tuple[Any, ...]
) -> Call:
    """Return the call of an Alltoallv with counts on the device."""
    return Call(
        operation="Alltoallv",
        choose=choose_alltoallv,
        sized=(NAME,),
        arguments=workspace_of(comm, "Alltoallv").pack(*arguments.numbers()),
        buffers=buffers,
        signature=(*signature, NAME),
        load=function_of,
    )


def _template(operation: str, reduction: Any, buffer: Buffer) -> tuple[str, ...]:
    """Return element type and operator of a kernel that reduces."""
    name, op = buffer.datatype.name, getattr(reduction, "name", None)
    if name not in ELEMENTS or op not in COMBINE:
        raise NotSupported(
            f"{operation}: algorithm='numba' folds {', '.join(ELEMENTS)} by {', '.join(COMBINE)}, not {name} by {op}; "
            "leave algorithm out"
        )
    return name, op


def _check_aligned(operation: str, buffer: Buffer) -> None:
    """Raise NotSupported unless a buffer is aligned to its elements' size."""
    if buffer.address % buffer.datatype.itemsize:
        raise NotSupported(
            f"{operation}: algorithm='numba' takes elements at multiples of their {buffer.datatype.itemsize} bytes, "
            f"the array begins at {buffer.address:#x}; leave algorithm out"
        )


@lru_cache
def choose_allreduce(layout: Layout, nbytes: int) -> Choice:
    """Choose the kernel of Allreduce: one shot, two shots of packets, or of chunks."""
    limit = min(ONE_SHOT_NBYTES.get(layout.size, ONE_SHOT_NBYTES_OF_MANY), _most_packets(layout))
    if nbytes <= limit:
        return _as_packets(layout, "numba_allreduce_one_shot", nbytes)
    if nbytes <= TWO_SHOT_PACKETS_NBYTES:
        return _as_packets(layout, "numba_allreduce_two_shot_packets", nbytes)
    return _as_chunks(layout, "numba_allreduce_two_shot", nbytes)


@lru_cache
def choose_move(layout: Layout, operation: str, nbytes: int) -> Choice:
    """Choose the blocks of an operation that moves data in packets or chunks."""
    kernel = f"numba_{operation}"
    return (_as_packets if nbytes <= _most_packets(layout) else _as_chunks)(layout, kernel, nbytes)


def choose_barrier(layout: Layout, algorithm: str) -> Choice:
    """Choose one block of one warp for a barrier."""
    return Choice("numba_barrier", 1, 32, "written in Python; one signal to every peer")


def choose_alltoallv(layout: Layout, algorithm: str) -> Choice:
    """Choose all blocks for Alltoallv, because the host does not have the counts."""
    why = "written in Python; packets or chunks, decided on the device"
    return Choice("numba_alltoallv", _most_blocks(layout), CHUNKS_THREADS, why)


def _most_blocks(layout: Layout) -> int:
    return max(1, BLOCKS // layout.sharing)


def _most_packets(layout: Layout) -> int:
    """Return the length of the longest message that all blocks' packet slots hold."""
    return _most_blocks(layout) * packet_nbytes(layout.size)


def _as_packets(layout: Layout, kernel: str, nbytes: int) -> Choice:
    """Choose blocks for a message in packets: one for each 1024 bytes.

    A block has a warp for each peer, and at least 128 threads, because all of them reduce.
    """
    grid = max(1, min(_most_blocks(layout), -(-nbytes // PACKETS_BLOCK_NBYTES)))
    return Choice(kernel, grid, max(128, 32 * layout.peers), "written in Python; packets")


def _as_chunks(layout: Layout, kernel: str, nbytes: int) -> Choice:
    """Choose blocks for a message in chunks: one for each 4096 bytes."""
    grid = max(1, min(_most_blocks(layout), -(-nbytes // CHUNKS_BLOCK_NBYTES)))
    return Choice(kernel, grid, CHUNKS_THREADS, "written in Python; chunks")
