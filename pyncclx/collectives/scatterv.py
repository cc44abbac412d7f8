"""Scatterv: blocks of any length; only root has all counts."""

from __future__ import annotations

from typing import Any

from ..derived.calls import ONE, VECTOR
from ..launch.call import Call
from ..team.base import IntraBase as Intracomm
from .lowering import lowered_by
from .rooted import Rooted, rooted, rooted_call
from .transports import choose_announced

choose = choose_announced("scatterv")


def _lower(comm: Intracomm, given: Rooted) -> Call:
    return rooted_call(given, choose)


@lowered_by(_lower, VECTOR, ONE, at_root="sendbuf")
def scatterv(comm: Intracomm, sendbuf: Any, recvbuf: Any, root: int = 0) -> Rooted | None:
    """See `Intracomm.Scatterv`."""
    return rooted(comm, "Scatterv", recvbuf, sendbuf, root, equal=False)
