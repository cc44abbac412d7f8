"""Bcast."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .. import devices
from ..buffers import on_host, resolve
from ..layout import REDUCE, Layout
from .launch import Call, Choice, as_chunks, by_length, check_root

if TYPE_CHECKING:
    from ..base import IntraBase as Intracomm

# root sends the message size - 1 times: worth it for the trip it saves while it is short.
DIRECT_NBYTES = 32 << 10


@lru_cache  # the same few sizes come again and again
def choose(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """Directly while short; scattered and relayed by the peers when long. Two ranks have nobody to relay to."""
    if layout.size <= 2 and nbytes > layout.packet_nbytes and algorithm is None:
        return as_chunks(layout, "bcast_direct")
    limit = DIRECT_NBYTES if layout.size > 2 else layout.packet_nbytes
    return by_length(layout, nbytes, "bcast_direct", "bcast_two_shot", algorithm, limit)


def bcast(comm: Intracomm, buf: Any, root: int = 0, *, algorithm: str | None = None) -> Call | None:
    """See `Intracomm.Bcast`."""
    if on_host(buf):
        return None
    check_root(comm, "Bcast", root)
    buffer = resolve(buf, "Bcast: buf", writable=comm.rank != root, device=devices.select())
    nbytes = buffer.nbytes
    return Call(
        "Bcast",
        choose,
        (nbytes, algorithm),
        (),
        REDUCE.pack(buffer.address, buffer.address, nbytes, root),
        (buffer,),
        (nbytes, root, algorithm),
        nbytes == 0,
    )
