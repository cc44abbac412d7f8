"""The description of Gather, Gatherv, Scatter and Scatterv."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..launch.call import Call, is_in_place
from ..memory.parameters import MoveArgs
from ..operations import COLLECTIVES
from ..team.base import IntraBase as Intracomm
from .arguments import check_fits, check_not_in_place, check_root, rooted_on_host
from .blocks import Blocks, check_room, pack_blocks, resolve_blocks, resolve_equal
from .calls import announced_call, move_call
from .transports import Choose


class Rooted(NamedTuple):
    """The checked arguments of an operation in which root has a block for each rank."""

    operation: str
    root: int
    address: int  # address of this rank's data; in place it is root's block
    nbytes: int
    blocks: Blocks | None  # at root
    buffers: tuple[Buffer, ...]  # those in use, the send buffer first
    equal: bool  # whether all blocks are equally long

    @property
    def gathers(self) -> bool:
        """Whether root receives the blocks."""
        return COLLECTIVES[self.operation].on_all_ranks == "sendbuf"

    @property
    def ends(self) -> tuple[int, int]:
        """Addresses to send from and to receive at.

        Kernels of other ranks ignore that of root's buffer.
        """
        whole = self.address if self.blocks is None else self.blocks.buffer.address
        return (self.address, whole) if self.gathers else (whole, self.address)


def rooted(comm: Intracomm, operation: str, own: Any, whole: Any, root: Any, *, equal: bool) -> Rooted | None:
    """Describe a call; None for host arrays.

    Parameters
    ----------
    comm : Intracomm
    operation : str
    own : buffer
        This rank's data.
    whole : buffer
        Root's, with the blocks of all ranks.
    root : int
    equal : bool
        Whether all blocks are equally long, and so is `own`.
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


def rooted_call(given: Rooted, choose: Choose) -> Call:
    """Return the call inside a node."""
    operation, root, nbytes, (send, recv) = given.operation, given.root, given.nbytes, given.ends
    if given.equal:
        return move_call(
            operation, choose, MoveArgs(send=send, recv=recv, nbytes=nbytes, root=root), given.buffers, root
        )
    # Only root has all counts, so messages carry their lengths.
    arguments = pack_blocks(given.blocks, send=send, recv=recv, nbytes=nbytes, root=root)
    return announced_call(operation, choose, arguments, given.buffers, (f"root {root}",), root)


def _resolve(operation: str, name: str, own: Any) -> Buffer:
    return resolve(own, f"{operation}: {name}", writable=name == "recvbuf", device=backends.select())
