"""Steps of a call over nodes among the ranks of one node: addresses, no checks."""

from __future__ import annotations

from collections.abc import Sequence

from ...arrays.buffers import Buffer
from ...arrays.datatypes import TABLE
from ...launch.call import Call
from ...memory.parameters import FIXED, AlltoallvArgs, MoveArgs, ReduceArgs
from .. import allgatherv, allreduce, alltoallv_exchange, barrier, bcast, gatherv, reduce_scatter, scatterv
from ..blocks import Blocks, pack_blocks
from ..calls import announced_call

_BYTE = TABLE["uint8"]


def memory(address: int, nbytes: int) -> Buffer:
    """Return device memory as a buffer, so that kernels can find its window."""
    return Buffer(address, nbytes, _BYTE, (nbytes,), False, None, None)


def barrier_call() -> Call:
    """Return a barrier of the ranks' streams."""
    return Call(operation="Barrier", choose=barrier.choose, sized=(0,), arguments=b"", buffers=(), signature=())


def bcast_call(address: int, nbytes: int, root: int) -> Call:
    """Return a broadcast of root's bytes."""
    return Call(
        operation="Bcast",
        choose=bcast.choose,
        sized=(nbytes, None),
        arguments=MoveArgs(send=address, recv=address, nbytes=nbytes, root=root).pack(),
        buffers=(memory(address, nbytes),),
        signature=(),
    )


def allreduce_call(send: int, recv: int, nbytes: int, template: tuple[str, ...]) -> Call:
    """Return a fold of the ranks' vectors, with the result on all ranks."""
    return Call(
        operation="Allreduce",
        choose=allreduce.choose,
        sized=(nbytes, None),
        template=template,
        arguments=ReduceArgs(send=send, recv=recv, nbytes=nbytes).pack(),
        buffers=(memory(send, nbytes), memory(recv, nbytes)),
        signature=(),
    )


def reduce_scatter_call(
    send: int, begins: Sequence[int], lengths: Sequence[int], recv: int, mine: int, template: tuple[str, ...]
) -> Call:
    """Return a reduction in which rank r gets the fold of the ranks' blocks r.

    Blocks may begin anywhere; `mine` is the length of this rank's, in bytes.
    """
    end = max(begin + length for begin, length in zip(begins, lengths, strict=True))
    blocks = Blocks(memory(send, end), list(lengths), list(begins))
    return Call(
        operation="Reduce_scatter",
        choose=reduce_scatter.choose,
        sized=(max(lengths), None),
        template=template,
        arguments=pack_blocks(blocks, send=send, recv=recv, nbytes=0),
        buffers=(blocks.buffer, memory(recv, mine)),
        signature=(),
    )


def allgatherv_call(own: int, recv: int, begins: Sequence[int], lengths: Sequence[int], rank: int) -> Call:
    """Return a call in which rank r's bytes at `own` become block r on all ranks.

    In place if `own` is that block's address.
    """
    end = max(begin + length for begin, length in zip(begins, lengths, strict=True))
    blocks = Blocks(memory(recv, end), list(lengths), list(begins))
    return Call(
        operation="Allgatherv",
        choose=allgatherv.choose,
        sized=(max(lengths),),
        arguments=pack_blocks(blocks, send=own, recv=recv, nbytes=lengths[rank]),
        buffers=(memory(own, lengths[rank]), blocks.buffer),
        signature=(),
    )


def gatherv_call(
    own: int, nbytes: int, recv: int, begins: Sequence[int], lengths: Sequence[int], root: int, *, is_root: bool
) -> Call:
    """Return a call in which rank r's bytes at `own` become block r at root."""
    send = memory(own, nbytes)
    if not is_root:
        arguments = pack_blocks(None, send=own, recv=own, nbytes=nbytes, root=root)
        return announced_call("Gatherv", gatherv.choose, arguments, (send,), ())
    end = max(begin + length for begin, length in zip(begins, lengths, strict=True))
    blocks = Blocks(memory(recv, end), list(lengths), list(begins))
    arguments = pack_blocks(blocks, send=own, recv=recv, nbytes=nbytes, root=root)
    return announced_call("Gatherv", gatherv.choose, arguments, (send, blocks.buffer), ())


def scatterv_call(
    send: int, begins: Sequence[int], lengths: Sequence[int], own: int, nbytes: int, root: int, *, is_root: bool
) -> Call:
    """Return a call in which root's block r goes to rank r, to `own`.

    In place at root if `own` is the address of its block.
    """
    recv = memory(own, nbytes)
    if not is_root:
        arguments = pack_blocks(None, send=own, recv=own, nbytes=nbytes, root=root)
        return announced_call("Scatterv", scatterv.choose, arguments, (recv,), ())
    end = max(begin + length for begin, length in zip(begins, lengths, strict=True))
    blocks = Blocks(memory(send, end), list(lengths), list(begins))
    arguments = pack_blocks(blocks, send=send, recv=own, nbytes=nbytes, root=root)
    return announced_call("Scatterv", scatterv.choose, arguments, (blocks.buffer, recv), ())


def alltoallv_call(
    send: int,
    send_begins: Sequence[int],
    sent: Sequence[int],
    recv: int,
    begins: Sequence[int],
    got: Sequence[int],
    *,
    drops: bool = False,
) -> Call:
    """Return a call in which every rank sends bytes to every rank, not in place.

    Receiving more than `got` is an error, unless the call `drops` the rest.
    """
    send_end = max(begin + length for begin, length in zip(send_begins, sent, strict=True))
    recv_end = max(begin + length for begin, length in zip(begins, got, strict=True))
    arguments = AlltoallvArgs(
        send=send,
        recv=recv,
        row_nbytes=1,
        send_rows=send_end,
        placement=FIXED,
        drop=drops,
        fixed_send_counts=sent,
        fixed_send_displs=send_begins,
        fixed_recv_counts=got,
        fixed_recv_displs=begins,
    ).pack()
    buffers = memory(send, send_end), memory(recv, recv_end)
    return announced_call("Alltoallv", alltoallv_exchange.choose, arguments, buffers, ())
