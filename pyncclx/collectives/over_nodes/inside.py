"""The kernels of a call over nodes: calls among the ranks of one node.

Buffers are given by address, and arguments are not checked again. Reductions over nodes cut vectors into parts; each
part is a `Span`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from ...arrays.buffers import Buffer
from ...arrays.datatypes import TABLE
from ...launch.call import Call
from ...memory.layout import PACK_NBYTES
from ...memory.parameters import MoveArgs, ReduceArgs
from ...operators import bound_op
from .. import allgather, allreduce, bcast, reduce_scatter, rooted
from ..arguments import Blocks, pack_blocks
from ..calls import FixedCounts, announced_call, choose_exchange

ALIGNMENT = 256  # bytes; vectors that a rank folds start at multiples
_BYTE = TABLE["uint8"]


class Span(NamedTuple):
    """A part of a vector, in bytes."""

    begin: int
    nbytes: int

    def cut(self, parts: int, unit: int) -> list[Span]:
        """Cut the span into parts of whole units; the last parts may be empty."""
        each = -(-self.nbytes // (parts * unit)) * unit
        begins = [min(part * each, self.nbytes) for part in range(parts + 1)]
        return [Span(self.begin + a, b - a) for a, b in itertools.pairwise(begins)]


def blocks(nbytes: int, count: int) -> list[Span]:
    """Return `count` contiguous spans of equal length."""
    return [Span(number * nbytes, nbytes) for number in range(count)]


def spans_of(blocks: Blocks) -> list[Span]:
    """Return the spans of the ranks' blocks."""
    return [Span(begin, nbytes) for begin, nbytes in zip(blocks.begins, blocks.nbytes, strict=True)]


def aligned(nbytes: int) -> int:
    """Round a length up to the alignment of vectors."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def unit_of(template: tuple[str, ...], itemsize: int) -> int:
    """Return the unit in bytes; a vector to reduce is cut only at multiples of it.

    Kernels reduce such parts at full speed. The unit is a multiple of `itemsize`, so elements stay whole.
    """
    operator = bound_op.named(template)
    return operator.group_nbytes if operator is not None else math.lcm(itemsize, PACK_NBYTES)


def memory(address: int, nbytes: int) -> Buffer:
    """Return device memory as a buffer; kernels look up its window by address."""
    return Buffer(address, nbytes, _BYTE, (nbytes,), False, None, None)


def blocks_from(address: int, spans: Sequence[Span]) -> Blocks:
    """Return the ranks' spans of device memory as blocks; spans may begin anywhere."""
    end = max(span.begin + span.nbytes for span in spans)
    return Blocks(memory(address, end), [span.nbytes for span in spans], [span.begin for span in spans])


def bcast_call(address: int, nbytes: int, root: int) -> Call:
    """Return a broadcast of root's bytes."""
    return Call(
        operation="Bcast",
        choose=bcast.choose,
        sized=(nbytes, None),
        arguments=MoveArgs(send=address, recv=address, nbytes=nbytes, root=root).pack(),
        buffers=(memory(address, nbytes),),
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
    )


def reduce_scatter_call(send: int, spans: Sequence[Span], recv: int, nbytes: int, template: tuple[str, ...]) -> Call:
    """Return a reduction in which rank r receives the fold of all ranks' span r.

    This rank's span has `nbytes`."""
    blocks = blocks_from(send, spans)
    return Call(
        operation="Reduce_scatter",
        choose=reduce_scatter.choose,
        sized=(max(blocks.nbytes), None),
        template=template,
        arguments=pack_blocks(blocks, send=send, recv=recv, nbytes=0),
        buffers=(blocks.buffer, memory(recv, nbytes)),
    )


def allgatherv_call(own: int, recv: int, spans: Sequence[Span], rank: int) -> Call:
    """Return a call that copies each rank's data to its span of `recv` on all ranks.

    The data is at the address `own`. If `own` is the address of this rank's span, the rank copies nothing to itself.
    """
    blocks, nbytes = blocks_from(recv, spans), spans[rank].nbytes
    return Call(
        operation="Allgatherv",
        choose=allgather.CHOOSE["Allgatherv"],
        sized=(max(blocks.nbytes),),
        arguments=pack_blocks(blocks, send=own, recv=recv, nbytes=nbytes),
        buffers=(memory(own, nbytes), blocks.buffer),
    )


def gatherv_call(own: int, nbytes: int, recv: Blocks | None, root: int) -> Call:
    """Return a call that copies rank r's bytes at `own` to block r of root's `recv`."""
    send, to = memory(own, nbytes), own if recv is None else recv.buffer.address
    arguments = pack_blocks(recv, send=own, recv=to, nbytes=nbytes, root=root)
    return announced_call("Gatherv", rooted.CHOOSE["Gatherv"], arguments, (send, recv.buffer) if recv else (send,))


def scatterv_call(send: Blocks | None, own: int, nbytes: int, root: int) -> Call:
    """Return a call that copies block r of root's `send` to rank r's address `own`.

    If `own` is the address of root's own block, root copies nothing to itself.
    """
    source, recv = own if send is None else send.buffer.address, memory(own, nbytes)
    arguments = pack_blocks(send, send=source, recv=own, nbytes=nbytes, root=root)
    return announced_call("Scatterv", rooted.CHOOSE["Scatterv"], arguments, (send.buffer, recv) if send else (recv,))


def alltoallv_call(send: Blocks, recv: Blocks, *, drops: bool = False) -> Call:
    """Return a call in which every rank sends bytes to every rank; not for in place.

    Receiving more than a block of `recv` is an error, unless the call `drops` the excess.
    """
    fixed = FixedCounts(send.buffer, recv.buffer, send.nbytes, send.begins, recv.nbytes, recv.begins)
    arguments = fixed.pack(drops=drops)
    return announced_call("Alltoallv", choose_exchange, arguments, (send.buffer, recv.buffer))
