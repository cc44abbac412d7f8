"""Alltoallv with counts on the host, as in MPI.

`alltoallv_dynamic` has the form with counts on the device.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .. import backends
from ..arrays.buffers import Buffer
from ..arrays.places import on_device, on_host
from ..arrays.vectors import resolve_vector
from ..derived.calls import VECTOR
from ..errors import NotSupported
from ..launch.call import Call, is_in_place
from ..team.base import IntraBase as Intracomm
from .alltoallv_dynamic import DynamicCall, DynamicOptions, dynamic_call, resolve_call
from .calls import FixedCounts, announced_call, choose_exchange
from .lowering import lowered_by

choose = choose_exchange


def _lower(comm: Intracomm, given: FixedCounts | DynamicCall) -> Call:
    if isinstance(given, DynamicCall):
        return dynamic_call(comm, given)
    buffers = given.send, given.recv
    return announced_call("Alltoallv", choose_exchange, given.pack(), buffers, ("counts on the host",))


@lowered_by(_lower, VECTOR, VECTOR)
def alltoallv(comm: Intracomm, sendbuf: Any, recvbuf: Any, **keywords: Any) -> FixedCounts | DynamicCall | None:
    """Check the arguments of `Intracomm.Alltoallv`; return its call.

    The keywords are the fields of `DynamicOptions`.
    """
    options = DynamicOptions(**keywords)
    if counts_on_device(sendbuf) or options.given:
        return resolve_call(comm, sendbuf, recvbuf, options)
    if options.algorithm is not None:
        raise NotSupported("Alltoallv: only counts on the device let one choose; leave out algorithm")
    return None if on_host(sendbuf, recvbuf) else _fixed(comm, sendbuf, recvbuf)


def counts_on_device(spec: Any) -> bool:
    """Return whether a spec's counts are a device array; NumPy arrays never are."""
    if not isinstance(spec, (list, tuple)) or len(spec) < 2 or isinstance(spec[1], (str, MPI.Datatype)):
        return False
    return on_device(spec[1][0] if isinstance(spec[1], tuple) and spec[1] else spec[1])


def _fixed(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> FixedCounts:
    """Check and return the arguments of MPI's form, with counts on the host."""
    device, size = backends.select(), comm.size
    recv, recv_counts, recv_displs = resolve_vector(recvbuf, "Alltoallv: recvbuf", size, writable=True, device=device)
    send, send_counts, send_displs = recv, recv_counts, recv_displs
    if not is_in_place(sendbuf):
        send, send_counts, send_displs = resolve_vector(
            sendbuf, "Alltoallv: sendbuf", size, writable=False, device=device
        )
    return FixedCounts(
        send,
        recv,
        _in_bytes(send_counts, send),
        _in_bytes(send_displs, send),
        _in_bytes(recv_counts, recv),
        _in_bytes(recv_displs, recv),
    )


def _in_bytes(values: list[int] | Buffer | None, buffer: Buffer) -> list[int]:
    if not isinstance(values, list):
        raise ValueError(
            "Alltoallv: some counts or displs are on the device and some on the host; give all of them as device "
            "arrays, or all on the host"
        )
    return [buffer.datatype.itemsize * value for value in values]
