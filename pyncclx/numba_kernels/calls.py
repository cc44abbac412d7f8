"""Calls of the collectives written in Python: their grids, and what their kernels are told."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..arrays.buffers import Buffer
from ..launch.call import Call
from ..launch.choice import Choice
from ..memory.layout import Layout
from ..memory.parameters import AlltoallvArgs
from .compiled import PREFIX, check_aligned, function_of, pack, template
from .workspace import BLOCKS, packet_nbytes, workspace_of

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm

NAME = "numba"  # of the algorithm
WORTH_A_BLOCK = 1024  # bytes of a message that goes as packets
WORTH_A_BLOCK_OF_CHUNKS = 4096
THREADS = 512  # of a block that moves chunks
ONE_SHOT_NBYTES = {2: 1 << 20, 3: 128 << 10, 4: 96 << 10}  # as cuda/'s
ONE_SHOT_NBYTES_OF_MANY = 64 << 10
TWO_SHOT_PACKETS_NBYTES = 2 << 20


def wanted(algorithm: str | None) -> bool:
    """Whether the caller asks for a kernel written in Python."""
    return algorithm == NAME


def _most_blocks(layout: Layout) -> int:
    return max(1, BLOCKS // layout.sharing)


def _most_packets(layout: Layout) -> int:
    """The longest message that the packet slots of all blocks hold."""
    return _most_blocks(layout) * packet_nbytes(layout.size)


def _as_packets(layout: Layout, kernel: str, nbytes: int) -> Choice:
    """As few blocks as there is work for; a warp for each peer, and some to fold."""
    grid = max(1, min(_most_blocks(layout), -(-nbytes // WORTH_A_BLOCK)))
    return Choice(PREFIX + kernel, grid, max(128, 32 * layout.peers), "written in Python; packets")


def _as_chunks(layout: Layout, kernel: str, nbytes: int) -> Choice:
    grid = max(1, min(_most_blocks(layout), -(-nbytes // WORTH_A_BLOCK_OF_CHUNKS)))
    return Choice(PREFIX + kernel, grid, THREADS, "written in Python; chunks")


@lru_cache  # the same few sizes come again and again
def choose_allreduce(layout: Layout, nbytes: int) -> Choice:
    """One shot while short, then two shots of packets, of chunks when long."""
    limit = min(ONE_SHOT_NBYTES.get(layout.size, ONE_SHOT_NBYTES_OF_MANY), _most_packets(layout))
    if nbytes <= limit:
        return _as_packets(layout, "allreduce_one_shot", nbytes)
    if nbytes <= TWO_SHOT_PACKETS_NBYTES:
        return _as_packets(layout, "allreduce_two_shot_packets", nbytes)
    return _as_chunks(layout, "allreduce_two_shot", nbytes)


@lru_cache
def choose_move(layout: Layout, kernel: str, nbytes: int) -> Choice:
    """As many blocks as pay; each decides whether its part goes as packets."""
    if nbytes <= _most_packets(layout):
        return _as_packets(layout, kernel, nbytes)
    return _as_chunks(layout, kernel, nbytes)


def choose_barrier(layout: Layout, name: str) -> Choice:
    """One block."""
    return Choice(f"{PREFIX}barrier", 1, 32, "written in Python; one signal to every peer")


def choose_alltoallv(layout: Layout, nbytes: int, name: str) -> Choice:
    """All blocks: how much a pair of ranks moves is known on the device only."""
    why = "written in Python; packets or chunks, decided on the device"
    return Choice(f"{PREFIX}alltoallv", _most_blocks(layout), THREADS, why)


def barrier(comm: Intracomm) -> Call:
    """See `Intracomm.Barrier`."""
    return Call(
        operation="Barrier",
        choose=choose_barrier,
        sized=(NAME,),
        arguments=pack(workspace_of(comm, "Barrier")),
        buffers=(),
        signature=(NAME,),
        load=function_of,
    )


def allreduce(comm: Intracomm, send: Buffer, recv: Buffer, reduction: Any) -> Call:
    """See `Intracomm.Allreduce`."""
    kind = template("Allreduce", reduction, recv)
    check_aligned("Allreduce", send)
    check_aligned("Allreduce", recv)
    nbytes = recv.nbytes
    return Call(
        operation="Allreduce",
        choose=choose_allreduce,
        sized=(nbytes,),
        template=kind,
        arguments=pack(workspace_of(comm, "Allreduce"), send.address, recv.address, nbytes),
        buffers=(send, recv),
        signature=(recv.count, *kind, NAME),
        empty=nbytes == 0,
        load=function_of,
    )


def move(comm: Intracomm, operation: str, address: int, nbytes: int, buffers: tuple[Buffer, Buffer]) -> Call:
    """See `Intracomm.Allgather` and `Alltoall`: blocks of `nbytes`, sent from `address`."""
    return Call(
        operation=operation,
        choose=choose_move,
        sized=(operation.lower(), nbytes),
        arguments=pack(workspace_of(comm, operation), address, buffers[1].address, nbytes),
        buffers=buffers,
        signature=(nbytes, NAME),
        empty=nbytes == 0,
        load=function_of,
    )


def alltoallv(
    comm: Intracomm, arguments: AlltoallvArgs, buffers: tuple[Buffer, ...], signature: tuple[Any, ...]
) -> Call:
    """See `Intracomm.Alltoallv` with counts on the device."""
    return Call(
        operation="Alltoallv",
        choose=choose_alltoallv,
        sized=(0, NAME),
        arguments=pack(workspace_of(comm, "Alltoallv"), *arguments.numbers()),
        buffers=buffers,
        signature=(*signature, NAME),
        load=function_of,
    )
