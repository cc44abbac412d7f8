"""Alltoallw: each block has its own datatype."""

from __future__ import annotations

from typing import Any

from .. import backends
from ..arrays.places import on_host
from ..derived.typed import Typed, resolve_each
from ..launch.call import is_in_place
from ..team.base import IntraBase as Intracomm
from .lowering import lowered_by
from .typed_exchange import Side, Sides, arrange, choose, exchange

__all__ = ["alltoallw", "choose"]


@lowered_by(exchange)
def alltoallw(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> Sides | None:
    """See `Intracomm.Alltoallw`."""
    if on_host(sendbuf, recvbuf):
        return None
    device, size = backends.select(), comm.size
    recv = resolve_each(recvbuf, "Alltoallw: recvbuf", size, writable=True, device=device)
    send = None
    if not is_in_place(sendbuf):
        send = _by_rank(resolve_each(sendbuf, "Alltoallw: sendbuf", size, writable=False, device=device), size)
    return Sides("Alltoallw", send, _by_rank(recv, size))


def _by_rank(typed: Typed, size: int) -> Side:
    return arrange(typed, enumerate(typed.parts), size)
