"""The description of Gather, Gatherv, Scatter and Scatterv."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..launch.call import is_in_place
from ..operations import COLLECTIVES
from ..team.base import IntraBase as Intracomm
from .arguments import check_fits, check_not_in_place, check_root, rooted_on_host
from .blocks import Blocks, check_room, resolve_blocks, resolve_equal


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
    def whole(self) -> int:
        """Address of root's buffer. Kernels of other ranks ignore it."""
        return self.address if self.blocks is None else self.blocks.buffer.address


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


def _resolve(operation: str, name: str, own: Any) -> Buffer:
    return resolve(own, f"{operation}: {name}", writable=name == "recvbuf", device=backends.select())
