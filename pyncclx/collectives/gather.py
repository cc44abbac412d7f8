"""Gather inside a node."""

from __future__ import annotations

from typing import Any

from ..derived.calls import BLOCKS, ONE
from ..launch.call import Call
from ..team.base import IntraBase as Intracomm
from .lowering import lowered_by
from .rooted import Rooted, rooted, rooted_call
from .transports import choose_spans

choose = choose_spans("gather", both_ways=False)


def _lower(comm: Intracomm, given: Rooted) -> Call:
    return rooted_call(given, choose)


@lowered_by(_lower, ONE, BLOCKS, at_root="recvbuf")
def gather(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Rooted | None:
    """See `Intracomm.Gather`."""
    return rooted(comm, "Gather", sendbuf, recvbuf, root, equal=True)
