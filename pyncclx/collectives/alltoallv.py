"""Alltoallv with counts on the host, as in MPI.

`alltoallv_dynamic` has the form with counts on the device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mpi4py import MPI

from .. import backends
from ..arrays.buffers import Buffer
from ..arrays.places import on_device, on_host
from ..arrays.vector_buffers import resolve_vector
from ..derived.calls import VECTOR, takes_derived
from ..errors import NotSupported
from ..launch.call import Call, is_in_place
from ..team.base import IntraBase as Intracomm
from .alltoallv_dynamic import dynamic
from .alltoallv_exchange import choose, exchange_call, fixed_arguments
from .alltoallv_options import DynamicOptions

__all__ = ["StaticArguments", "alltoallv", "choose", "counts_on_device", "resolve_static"]


@takes_derived("Alltoallv", VECTOR, VECTOR)
def alltoallv(
    comm: Intracomm,
    sendbuf: Any,
    recvbuf: Any,
    *,
    layout: str | None = None,
    capacity: int | None = None,
    total: Any = None,
    status: Any = None,
    overflow: str | None = None,
    segments: Any = None,
    algorithm: str | None = None,
) -> Call | None:
    """See `Intracomm.Alltoallv`."""
    options = DynamicOptions(layout, capacity, total, status, overflow, segments, algorithm)
    if counts_on_device(sendbuf) or options.given:
        call = dynamic(comm, sendbuf, recvbuf, options)
        call.of_mpi = False
        return call
    if algorithm is not None:
        raise NotSupported("Alltoallv: only counts on the device let one choose; leave out algorithm")
    return None if on_host(sendbuf, recvbuf) else _static(comm, sendbuf, recvbuf)


def counts_on_device(spec: Any) -> bool:
    """Return whether a spec's counts are a device array; NumPy arrays never are."""
    if not isinstance(spec, (list, tuple)) or len(spec) < 2 or isinstance(spec[1], (str, MPI.Datatype)):
        return False
    return on_device(spec[1][0] if isinstance(spec[1], tuple) and spec[1] else spec[1])


class StaticArguments(NamedTuple):
    """The arguments of MPI's form, with counts and displacements in bytes."""

    send: Buffer
    recv: Buffer
    send_counts: list[int]
    send_displs: list[int]
    recv_counts: list[int]
    recv_displs: list[int]


def _static(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> Call:
    """Return the call of MPI's form."""
    send, recv, *fixed = resolve_static(comm, sendbuf, recvbuf)
    names = "send_counts", "send_displs", "recv_counts", "recv_displs"
    arguments = fixed_arguments(send, recv, **dict(zip(names, fixed, strict=True)))
    return exchange_call(arguments, (send, recv), ("counts on the host",))


def resolve_static(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> StaticArguments:
    """Check and return the arguments of MPI's form; in place both buffers are one."""
    device, size = backends.select(), comm.size
    recv, recv_counts, recv_displs = resolve_vector(recvbuf, "Alltoallv: recvbuf", size, writable=True, device=device)
    send, send_counts, send_displs = recv, recv_counts, recv_displs
    if not is_in_place(sendbuf):
        send, send_counts, send_displs = resolve_vector(
            sendbuf, "Alltoallv: sendbuf", size, writable=False, device=device
        )
    return StaticArguments(
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
