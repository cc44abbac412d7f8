"""Alltoallw: each block has its own datatype."""

from __future__ import annotations

from typing import Any

from .. import backends
from ..arrays.places import on_host
from ..derived.typed import Typed, resolve_each
from ..launch.call import Call, is_in_place
from ..team.base import IntraBase as Intracomm
from .typed_exchange import Side, arrange, choose, exchange

__all__ = ["alltoallw", "choose", "sides_of"]


def alltoallw(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> Call | None:
    """See `Intracomm.Alltoallw`."""
    if on_host(sendbuf, recvbuf):
        return None
    call: Call = exchange(comm, "Alltoallw", *sides_of(comm, sendbuf, recvbuf))
    return call


def sides_of(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> tuple[Side | None, Side]:
    """Return what this rank sends and what it receives; in place the first is None."""
    device, size = backends.select(), comm.size
    recv = resolve_each(recvbuf, "Alltoallw: recvbuf", size, writable=True, device=device)
    if is_in_place(sendbuf):
        return None, _by_rank(recv, size)
    received = _by_rank(recv, size)
    send = resolve_each(sendbuf, "Alltoallw: sendbuf", size, writable=False, device=device)
    return _by_rank(send, size), received


def _by_rank(typed: Typed, size: int) -> Side:
    return arrange(typed, enumerate(typed.parts), size)
