"""Gather, Gatherv, Scatter and Scatterv inside a node.

The blocks of Gatherv and Scatterv have any length, and only root has all counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..derived.calls import BLOCKS, ONE, VECTOR
from ..launch.call import Call, is_in_place
from ..memory.parameters import MoveArgs
from ..operations import COLLECTIVES
from ..team.base import IntraBase as Intracomm
from .arguments import (
    Blocks,
    check_fits,
    check_not_in_place,
    check_room,
    check_root,
    pack_blocks,
    resolve_blocks,
    resolve_equal,
    rooted_on_host,
)
from .calls import announced_call, move_call
from .lowering import lowered_by
from .transports import choose_announced, choose_spans

CHOOSE = {
    "Gather": choose_spans("gather", both_ways=False),
    "Gatherv": choose_announced("gatherv"),
    "Scatter": choose_spans("scatter", both_ways=False),
    "Scatterv": choose_announced("scatterv"),
}


class Rooted(NamedTuple):
    """The checked arguments of an operation in which root has a block for each rank."""

    operation: str
    root: int
    address: int  # address of this rank's data; root's block if in place
    nbytes: int
    blocks: Blocks | None  # at root
    buffers: tuple[Buffer, ...]  # the buffers that this rank uses, the send buffer first
    equal: bool  # whether all blocks are equally long

    @property
    def gathers(self) -> bool:
        """Whether root receives the blocks."""
        return COLLECTIVES[self.operation].on_all_ranks == "sendbuf"

    @property
    def ends(self) -> tuple[int, int]:
        """The addresses of the data to send and of the memory to receive into.

        On ranks other than root, kernels ignore the address of root's buffer.
        """
        whole = self.address if self.blocks is None else self.blocks.buffer.address
        return (self.address, whole) if self.gathers else (whole, self.address)


def _lower(comm: Intracomm, given: Rooted) -> Call:
    operation, root, nbytes, (send, recv) = given.operation, given.root, given.nbytes, given.ends
    choose = CHOOSE[operation]
    if given.equal:
        args = MoveArgs(send=send, recv=recv, nbytes=nbytes, root=root)
        return move_call(operation, choose, args, given.buffers, root)
    # Only root has all counts, so messages carry their lengths.
    arguments = pack_blocks(given.blocks, send=send, recv=recv, nbytes=nbytes, root=root)
    return announced_call(operation, choose, arguments, given.buffers, (f"root {root}",), root)


@lowered_by(_lower, ONE, BLOCKS, at_root="recvbuf")
def gather(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Rooted | None:
    """Check the arguments of `Intracomm.Gather`; return its call."""
    return _describe(comm, "Gather", sendbuf, recvbuf, root, equal=True)


@lowered_by(_lower, ONE, VECTOR, at_root="recvbuf")
def gatherv(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Rooted | None:
    """Check the arguments of `Intracomm.Gatherv`; return its call."""
    return _describe(comm, "Gatherv", sendbuf, recvbuf, root, equal=False)


@lowered_by(_lower, BLOCKS, ONE, at_root="sendbuf")
def scatter(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Rooted | None:
    """Check the arguments of `Intracomm.Scatter`; return its call."""
    return _describe(comm, "Scatter", recvbuf, sendbuf, root, equal=True)


@lowered_by(_lower, VECTOR, ONE, at_root="sendbuf")
def scatterv(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Rooted | None:
    """Check the arguments of `Intracomm.Scatterv`; return its call."""
    return _describe(comm, "Scatterv", recvbuf, sendbuf, root, equal=False)


def _describe(comm: Intracomm, operation: str, own: Any, whole: Any, root: Any, *, equal: bool) -> Rooted | None:
    """Check and describe a rooted operation's arguments; None for host arrays.

    Parameters
    ----------
    comm : Intracomm
    operation : str
    own : buffer
        This rank's data.
    whole : buffer
        Root's buffer, with the blocks of all ranks.
    root : int
    equal : bool
        Whether all blocks, and `own`, are equally long.
    """
    if rooted_on_host(own, whole):
        return None
    root = check_root(comm, operation, root)
    name = COLLECTIVES[operation].on_all_ranks
    gathers = name == "sendbuf"
    if comm.rank != root:
        check_not_in_place(comm, operation, name, own)
        buffer = _resolve(operation, name, own)
        return Rooted(operation, root, buffer.address, buffer.nbytes, None, (buffer,), equal)
    blocks = (resolve_equal if equal else resolve_blocks)(comm, whole, operation, "recvbuf" if gathers else "sendbuf")
    block = blocks.nbytes[root]
    if is_in_place(own):
        return Rooted(operation, root, blocks.address(root), block, blocks, (blocks.buffer,), equal)
    buffer = _resolve(operation, name, own)
    sent, received = (buffer.nbytes, block) if gathers else (block, buffer.nbytes)
    (check_fits if equal else check_room)(operation, sent, received)
    buffers = (buffer, blocks.buffer) if gathers else (blocks.buffer, buffer)
    return Rooted(operation, root, buffer.address, buffer.nbytes, blocks, buffers, equal)


def _resolve(operation: str, name: str, own: Any) -> Buffer:
    return resolve(own, f"{operation}: {name}", writable=name == "recvbuf", device=backends.select())
