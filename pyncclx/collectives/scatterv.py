"""Scatterv: blocks of any length; only root has all counts."""

from __future__ import annotations

from typing import Any

from ..derived.calls import ONE, VECTOR
from ..launch.call import Call
from ..team.base import IntraBase as Intracomm
from .blocks import pack_blocks
from .calls import announced_call
from .lowering import lowered_by
from .rooted import Rooted, rooted
from .transports import choose_announced

# Only root has all counts, so messages carry their lengths.
choose = choose_announced("scatterv")


def _lower(comm: Intracomm, given: Rooted) -> Call:
    send, recv = given.whole, given.address
    arguments = pack_blocks(given.blocks, send=send, recv=recv, nbytes=given.nbytes, root=given.root)
    return announced_call("Scatterv", choose, arguments, given.buffers, (f"root {given.root}",), given.root)


@lowered_by(_lower, VECTOR, ONE, at_root="sendbuf")
def scatterv(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Rooted | None:
    """See `Intracomm.Scatterv`."""
    return rooted(comm, "Scatterv", recvbuf, sendbuf, root, equal=False)
