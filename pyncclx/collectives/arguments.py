"""Checks of arguments that operations share: buffers, blocks, root, algorithm.

All raise the error that mpi4py raises for the same mistake: TypeError, ValueError, KeyError, BufferError or
MPI.Exception.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mpi4py import MPI

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..arrays.places import on_host, where
from ..arrays.vectors import integer, resolve_vector
from ..errors import MPIError, NotSupported, out_of_range
from ..launch.call import is_in_place
from ..memory.parameters import EachRankU64, ReduceArgs


def resolve_sendbuf(operation: str, spec: Any, blocks: int = 1, *, rows: bool = False) -> Buffer:
    """Return the send buffer, whose count is that of one block out of `blocks`."""
    return resolve(spec, f"{operation}: sendbuf", writable=False, device=backends.select(), blocks=blocks, rows=rows)


def resolve_recvbuf(operation: str, spec: Any, blocks: int = 1) -> Buffer:
    """Return the receive buffer, whose count is that of one block out of `blocks`."""
    return resolve(spec, f"{operation}: recvbuf", writable=True, device=backends.select(), blocks=blocks)


def resolve_pair(operation: str, sendbuf: Any, recvbuf: Any) -> tuple[Buffer, Buffer]:
    """Return a reduction's send and receive buffers; in place they are the same."""
    recv = resolve_recvbuf(operation, recvbuf)
    if is_in_place(sendbuf):
        return recv, recv
    send = resolve_sendbuf(operation, sendbuf)
    check_same_type(operation, send, recv)
    if send.count != recv.count:
        raise ValueError(
            f"{operation}: mismatch in send count {send.count} and receive count {recv.count}; make them equal"
        )
    return send, recv


def check_same_type(operation: str, send: Buffer, recv: Buffer) -> None:
    """Raise ValueError unless both buffers have the same datatype."""
    if send.datatype is not recv.datatype:
        raise ValueError(
            f"{operation}: mismatch in datatypes: sendbuf has {send.datatype.name}, recvbuf {recv.datatype.name}; "
            "make them equal"
        )


def check_fits(operation: str, send_nbytes: int, recv_nbytes: int) -> None:
    """Raise MPI.Exception (ERR_TRUNCATE) if a rank's data and block differ in length."""
    if send_nbytes != recv_nbytes:
        text = f"each rank sends {send_nbytes} bytes to a block of {recv_nbytes} bytes of recvbuf; make them equal"
        raise MPIError(MPI.ERR_TRUNCATE, f"{operation}: {text}")


def check_algorithm(operation: str, algorithm: str | None, *names: str) -> None:
    """Raise ValueError unless `algorithm` is None or one of the names."""
    if algorithm is not None and algorithm not in names:
        known = " or ".join(map(repr, names))
        raise ValueError(f"{operation}: algorithm is {algorithm!r}; it can be {known}, or None for the kernel")


def check_root(comm: MPI.Comm, operation: str, root: Any) -> int:
    """Return `root` as an integer; raise MPI.Exception (ERR_ROOT) if it is not a rank."""
    rank = integer(root)
    if not 0 <= rank < comm.size:
        text = f"{operation}: root is {rank}, the communicator's ranks are 0 to {comm.size - 1}"
        raise out_of_range(MPI.ERR_ROOT, rank, text)
    return rank


def rooted_on_host(single: Any, whole: Any) -> bool:
    """Return whether a rooted operation has host buffers, which mpi4py handles.

    The location of `single` decides, which is the buffer that every rank passes. If `single` is MPI.IN_PLACE or has no
    memory, the location of `whole` decides, which is the buffer that only root passes.
    """
    return on_host(single, *([whole] if where(single) is None else []))


def check_not_in_place(comm: MPI.Comm, operation: str, argument: str, spec: Any) -> None:
    """Raise MPI.Exception (ERR_ARG) for MPI.IN_PLACE on a rank other than root."""
    if is_in_place(spec):
        text = f"{operation}: {argument} is {spec!r} on rank {comm.rank}; only root's can be in place"
        raise MPIError(MPI.ERR_ARG, text)


@dataclass(slots=True, kw_only=True)
class BlocksArgs(ReduceArgs):
    """The members of `BlocksArgs` (cuda/exchange/blocks.cuh) that follow `team`."""

    nbytes_of: EachRankU64 = ()
    begin_of: EachRankU64 = ()


class Blocks(NamedTuple):
    """A buffer with one block for each rank; lengths and offsets in bytes."""

    buffer: Buffer
    nbytes: list[int]
    begins: list[int]

    def address(self, rank: int) -> int:
        """Return the address of a rank's block."""
        return self.buffer.address + self.begins[rank]


def pack_blocks(blocks: Blocks | None, *, send: int, recv: int, nbytes: int, root: int = 0) -> bytes:
    """Pack a `BlocksArgs`.

    `blocks` is None on ranks without a buffer of blocks. `nbytes` is the length of the other buffer, which is one
    block.
    """
    args = BlocksArgs(send=send, recv=recv, nbytes=nbytes, root=root)
    if blocks is not None:
        args.nbytes_of, args.begin_of = blocks.nbytes, blocks.begins
    return args.pack()


def blocks_of(buffer: Buffer, counts: list[int], displs: list[int]) -> Blocks:
    """Return blocks from counts and displacements in elements.

    The displacement of an empty block is ignored.
    """
    itemsize = buffer.datatype.itemsize
    begins = [displ * itemsize if count else 0 for count, displ in zip(counts, displs, strict=True)]
    return Blocks(buffer, [count * itemsize for count in counts], begins)


def unit_of(buffer: Buffer, lengths: Sequence[int]) -> Buffer:
    """Return `buffer`, cut to the largest unit that divides all `lengths` (bytes)."""
    return replace(buffer, count=math.gcd(*lengths) // buffer.datatype.itemsize)


def resolve_equal(comm: MPI.Comm, spec: Any, operation: str, argument: str) -> Blocks:
    """Resolve an argument with blocks of equal length, one for each rank.

    `argument` is "sendbuf" or "recvbuf".
    """
    name, writable, size = f"{operation}: {argument}", argument == "recvbuf", comm.size
    buffer = resolve(spec, name, writable=writable, device=backends.select(), blocks=size)
    return Blocks(buffer, [buffer.nbytes] * size, [rank * buffer.nbytes for rank in range(size)])


def resolve_blocks(comm: MPI.Comm, spec: Any, operation: str, argument: str) -> Blocks:
    """Resolve an argument of the vector collectives whose counts are on the host.

    `argument` is "sendbuf" or "recvbuf".

    Raises
    ------
    NotSupported
        If counts or displacements are device arrays.
    TypeError, ValueError, KeyError, BufferError, MPI.Exception
        Raised by `vectors.resolve_vector`.
    """
    name, writable = f"{operation}: {argument}", argument == "recvbuf"
    buffer, counts, displs = resolve_vector(spec, name, comm.size, writable=writable, device=backends.select())
    if not isinstance(counts, list) or not isinstance(displs, list):
        raise NotSupported(f"{name} has counts or displs on the device, which only Alltoallv takes; give them as lists")
    return blocks_of(buffer, counts, displs)


def check_room(operation: str, send_nbytes: int, recv_nbytes: int) -> None:
    """Raise MPI.Exception (ERR_TRUNCATE) if root's own block does not fit in recvbuf.

    This is for `Gatherv` and `Scatterv`. Kernels check the other ranks' blocks.
    """
    if send_nbytes > recv_nbytes:
        text = f"root's own block has {send_nbytes} bytes, the place for it {recv_nbytes} bytes; make them equal"
        raise MPIError(MPI.ERR_TRUNCATE, f"{operation}: {text}")
