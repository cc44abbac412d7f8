"""Beginning one side of a call: check the arguments, resolve the buffer, start MPI's part."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..errors import NotSupported
from ..launch.keys import MAKERS, NoKey
from ..team.streams import is_of_current, stream_for
from .channels import Outlet
from .departure import SYNCHRONOUS
from .mpi_transfer import start_send
from .probe import HOLDING
from .receive import Incoming
from .send import Outgoing
from .side import Plan
from .typed import TypedBuffer, buffer_of

if TYPE_CHECKING:
    from .base import MessageBase
    from .endpoint import Endpoint


def planned(
    endpoint: Endpoint, operation: str, buf: Any, rank: int, tag: int, name: str = "buf", *, writable: bool
) -> Plan | None:
    """Return the plan of a side, which receives if its buffer is `writable`; None to and from MPI.PROC_NULL.

    The endpoint remembers plans by the key of the array. A call with the same arguments checks for failures only.
    """
    key: Hashable = None
    if type(rank) is int and type(tag) is int:
        try:
            key = operation, writable, MAKERS[type(buf)](buf), rank, tag
        except NoKey:
            pass
        else:
            plan = endpoint.plans.get(key)
            if plan is not None:
                endpoint.check()
                if endpoint.loss is not None and not writable:
                    endpoint.check_peer(operation, rank)
                return plan
    check = endpoint.check_receive if writable else endpoint.check_send
    rank, tag = check(operation, rank, tag)
    if rank == MPI.PROC_NULL:
        return None
    buffer = buf if isinstance(buf, Buffer) else buffer_of(endpoint, f"{operation}: {name}", buf, writable=writable)
    plan = endpoint.plan(operation, buffer, rank, tag)
    is_lasting = key is not None and type(buffer) is Buffer and buffer.stream is None
    return _remembered(endpoint, key, plan) if is_lasting else plan


def _remembered(endpoint: Endpoint, key: Hashable, plan: Plan) -> Plan:
    """Remember a plan, without the array."""
    plan.of_current = is_of_current((plan.buffer,))
    plan.buffer = replace(plan.buffer, owner=None)
    endpoint.plans[key] = plan
    return plan


def stream_of(endpoint: Endpoint, plan: Plan) -> Any:
    """Return the stream to work on, which has waited for the producer of the buffer."""
    device = endpoint.device
    stream = stream_for(device, (plan.buffer,), endpoint.caller, plan.of_current)
    if device.is_capturing(stream):
        raise NotSupported(
            f"{plan.operation}: messages are matched on the host, so a graph cannot hold them; send outside of the "
            "capture, by requests of Send_init and Recv_init, or by a collective such as Alltoallv"
        )
    return stream


def begin_send(
    comm: MessageBase, endpoint: Endpoint, plan: Plan, owner: Any, stream: Any, channel: Outlet | None = None
) -> Outgoing:
    """Begin to send what `owner` has where the plan says; a persistent request's message has a channel."""
    if isinstance(plan.buffer, TypedBuffer):
        plan.buffer.pack(endpoint, stream)
    call = MPI.Comm.Issend if plan.operation in SYNCHRONOUS else MPI.Comm.Isend
    return Outgoing(endpoint, plan, owner, stream, partial(start_send, call, comm, plan.rank, plan.tag), channel)


def begin_receive(comm: MessageBase, endpoint: Endpoint, plan: Plan, owner: Any, stream: Any) -> Incoming:
    """Begin to receive a message that a probe has found, if one matches, or the next one."""
    probed = comm.probed.take(plan.rank, plan.tag) if HOLDING else None
    matched = None if probed is None else probed.message
    return Incoming(comm, endpoint, plan, owner, stream, matched, probed)
