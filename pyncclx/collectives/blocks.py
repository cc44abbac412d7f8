"""Buffers with a block of any length for each rank, and checks that data fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mpi4py import MPI

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..arrays.vector_buffers import resolve_vector
from ..errors import MPIError, NotSupported
from ..memory.parameters import EachRankU64, ReduceArgs


@dataclass(slots=True, kw_only=True)
class BlocksArgs(ReduceArgs):
    """`BlocksArgs` of cuda/exchange/blocks.cuh after its Team."""

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

    `blocks` is None on ranks whose buffers are not cut; `nbytes` is the length of the other buffer, one block.
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
    """Return the largest unit of a buffer that divides all blocks, of `lengths` bytes."""
    return replace(buffer, count=math.gcd(*lengths) // buffer.datatype.itemsize)


def resolve_equal(comm: MPI.Comm, spec: Any, operation: str, argument: str) -> Blocks:
    """Resolve an argument that has a block for each rank, all of one length.

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
        Raised by `vector_buffers.resolve_vector`.
    """
    name, writable = f"{operation}: {argument}", argument == "recvbuf"
    buffer, counts, displs = resolve_vector(spec, name, comm.size, writable=writable, device=backends.select())
    if not isinstance(counts, list) or not isinstance(displs, list):
        raise NotSupported(f"{name} has counts or displs on the device, which only Alltoallv takes; give them as lists")
    return blocks_of(buffer, counts, displs)


def check_room(operation: str, send_nbytes: int, recv_nbytes: int) -> None:
    """Raise MPI.Exception (ERR_TRUNCATE) unless root's own block fits.

    The kernel checks the other blocks.
    """
    if send_nbytes > recv_nbytes:
        text = f"root's own block has {send_nbytes} bytes, the place for it {recv_nbytes} bytes; make them equal"
        raise MPIError(MPI.ERR_TRUNCATE, f"{operation}: {text}")
