"""Messages of calls that block the host: MPI moves copies in host memory.

These are messages of `Send`, `Isend`, `Recv` and `Sendrecv` up to `STAGED_NBYTES`. The host waits for such a call, or
for its request, in any case. Two copies and MPI's message take less time than two kernels (see docs/design_notes.md,
"Short messages and latency"). MPI transfers only the data, as from a host array. A message longer than a slot is sent
by an `Outgoing`, because the sender has to wait for the receiver.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mpi4py import MPI

from mpi_bootstrap import interrupts_deferred
from mpi_bootstrap.own_errors import own_error, own_errors_suppressed

from .. import events
from ..errors import NotSupported
from ..requests.open_receives import OPEN_RECEIVES
from ..requests.status import copy_status
from .base import MessageBase
from .endpoint import Endpoint
from .envelope import may_be_envelope
from .host.dropped import DROPPED
from .memory.scratch import host_memory
from .pending import end_call
from .plan import Plan, stream_of
from .probe import HOLDING
from .progress.pending_sends import UNFOLLOWED
from .receive import Incoming
from .send import Outgoing


def send(comm: MessageBase, plan: Plan, began: float | None) -> None:
    """Send a copy of the data; do not wait for the receiver (Send, Isend)."""
    endpoint: Endpoint = comm.known.endpoint
    memory, begun, kept = _downloaded(endpoint, plan), list[MPI.Request](), endpoint.context.receives.pending_sends
    try:
        # Python runs no signal handler between MPI's call and the append to the list.
        begun += map(MPI.Comm.Isend, (comm,), ([memory, MPI.BYTE],), (plan.rank,), (plan.tag,))
        if not begun[0].Test() or kept.dropped:
            kept.keep(begun[0], memory)
    except MPI.Exception as error:
        raise endpoint.explained(error, plan.operation) from error
    except BaseException:
        # MPI may be sending the copy.
        kept.keep_lost(memory)
        raise
    if began is not None:
        events.emit(plan.operation, events.STAGED, plan.nbytes, began, comm=comm, peer=plan.rank)


def _downloaded(endpoint: Endpoint, plan: Plan) -> memoryview:
    """Record the send, and return a copy of its data in host memory."""
    device, stream, ring = endpoint.device, _current(endpoint, plan), endpoint.ring
    if ring is not None:
        record = plan.record = plan.record or ring.writer_of_ended(plan.facts)
        record()
    memory = host_memory(device, plan.nbytes, is_pinned=True).data
    device.copy(MPI.Get_address(memory), plan.buffer.address, plan.nbytes, stream)
    device.synchronize(stream)
    return memory


def may_wait() -> bool:
    """Return whether a call may wait in MPI, because no other receive needs progress."""
    return not (OPEN_RECEIVES or UNFOLLOWED or DROPPED or HOLDING)


def receive(comm: MessageBase, plan: Plan, buf: Any, status: MPI.Status | None, began: float | None) -> None:
    """Receive a message (Recv)."""
    _receive(comm, partial(MPI.Comm.Recv, comm), plan, buf, status, began)


def exchange(
    comm: MessageBase,
    sending: Plan,
    sendbuf: Any,
    plan: Plan,
    recvbuf: Any,
    status: MPI.Status | None,
    began: float | None,
) -> None:
    """Send a message and receive another one (Sendrecv)."""
    endpoint: Endpoint = comm.known.endpoint
    if sending.is_short:
        sent = [_downloaded(endpoint, sending), MPI.BYTE]
        _receive(comm, partial(MPI.Comm.Sendrecv, comm, sent, sending.rank, sending.tag), plan, recvbuf, status, began)
        return
    outgoing = Outgoing()
    try:
        outgoing.begin(comm, endpoint, sending, sendbuf, stream_of(endpoint, sending))
        outgoing.signal_ready()
        receive(comm, plan, recvbuf, status, began)
        outgoing.finish(outgoing.stream)
    except BaseException:
        outgoing.leave()
        raise
    end_call(endpoint, outgoing)


def _receive(
    comm: MessageBase,
    call: Callable[..., None],
    plan: Plan,
    buf: Any,
    status: MPI.Status | None,
    began: float | None,
) -> None:
    """Receive by mpi4py's ``call(memory, source, tag, status)``."""
    endpoint: Endpoint = comm.known.endpoint
    stream, found, calls, context = _current(endpoint, plan), MPI.Status(), endpoint.calls, endpoint.context
    scratch = context.scratch if plan.is_short else context.pinned_scratch
    entry = 0 if calls is None else calls.ring.add_packed(0, plan.facts)
    memory, moving = scratch.take(plan.room_nbytes), list[Incoming]()
    try:
        try:
            call([memory, MPI.BYTE], plan.rank, plan.tag, found)
        except MPI.Exception as error:
            # MPI may still use the memory. If the message is too long, Open MPI may have written past the memory's end.
            context.receives.pending_sends.keep_lost((memory, call))
            raise endpoint.explained(error, plan.operation) from error
        _upload(endpoint, plan, buf, memory, found, stream, moving)
    except BaseException as error:
        # A signal handler may have raised just after MPI had received the message.
        if own_error(error) is None and not moving:
            with own_errors_suppressed():
                _upload(endpoint, plan, buf, memory, found, stream, moving)
        raise
    finally:
        if status is not None:
            copy_status(status, moving[0].status if moving else found)
        if calls is not None:
            if plan.is_wild:
                calls.match(entry, found.source, found.tag)
            calls.ring.end(entry)
    scratch.give_back(memory)
    if began is not None:
        how = events.NATIVE if moving and not moving[0].is_inline else events.STAGED
        events.emit(plan.operation, how, plan.nbytes, began, comm=comm, peer=found.source)


def _upload(
    endpoint: Endpoint,
    plan: Plan,
    buf: Any,
    memory: memoryview,
    status: MPI.Status,
    stream: Any,
    moving: list[Incoming],
) -> None:
    """Move the data of a message that MPI has received to the array, and wait for it.

    If a kernel has to fetch the data, or if the message is too long, add an `Incoming` for it to `moving`.
    """
    nbytes, device = status.Get_count(MPI.BYTE), endpoint.device
    if nbytes > plan.nbytes or may_be_envelope(nbytes):
        with interrupts_deferred():
            moving.append(Incoming())
            _accept(endpoint, plan, buf, memory, status, moving[0])
            stream = moving[0].stream
    elif nbytes:
        device.copy(plan.buffer.address, MPI.Get_address(memory), nbytes, stream)
    device.synchronize(stream)


def _accept(
    endpoint: Endpoint, plan: Plan, buf: Any, memory: memoryview, status: MPI.Status, incoming: Incoming
) -> None:
    incoming.begin(None, endpoint, plan, buf, stream_of(endpoint, plan))
    incoming.accept(memory, status)
    incoming.finish(incoming.stream)


def _current(endpoint: Endpoint, plan: Plan) -> Any:
    """Return the stream of a copy: the program's, unless the array is ready."""
    if endpoint.caller.stream is not None or plan.buffer.stream is not None:
        return stream_of(endpoint, plan)
    stream, private = endpoint.device.current_and_private()
    if private is not None:
        return stream if plan.of_current else private
    if endpoint.device.is_capturing(stream):
        raise NotSupported(f"{plan.operation}: a call that waits cannot be captured in a graph; call it outside")
    return stream
