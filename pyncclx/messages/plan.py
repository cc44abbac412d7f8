"""The plan of a send or receive: its checked arguments, and its stream."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from mpi4py import MPI

from ..arrays import datatypes
from ..arrays.buffers import Buffer
from ..arrays.places import on_host
from ..arrays.pointers import reaches
from ..backends import Event
from ..derived.buffers import buffer_of, without_gaps
from ..errors import NotSupported
from ..failures.kernel_errors import FAILURE
from ..launch.keys import MAKERS, NoKey, movable
from ..recording.layout import MESSAGE
from ..requests.open_receives import OPEN_RECEIVES, let_receives_leave
from ..team.streams import is_of_current, stream_for
from .base import MessageBase
from .endpoint import Endpoint
from .envelope import inline_nbytes
from .memory.bounce import SLOT_NBYTES

_SYNCHRONOUS = ("Ssend", "Issend", "Ssend_init")
#: Longest messages that MPI moves if calls block the host, by operation (2 × H200, 2026-11-30). See `staged.py`.
STAGED_NBYTES = {"Send": 128 << 10, "Isend": 16 << 10, "Recv": 128 << 10, "Sendrecv": 128 << 10}


@dataclass(slots=True)
class Plan:
    """The arguments of a send or receive after all checks, cached for equal calls.

    Attributes
    ----------
    operation : str
    buffer : Buffer
        In a cached plan it keeps no array alive; each message keeps its own array.
    rank, tag : int
    facts : bytes
        Packed fields of the message's entry in the flight recorder.
    of_current : bool or None
        Whether the current stream may still be writing the buffer; None if not known.
    record : callable or None
        Writes the entry of a send with `is_free_at_once`; created at the first such send.
    nbytes : int
    room_nbytes : int
        Largest length of MPI's message, with an envelope.
    is_wild : bool
        Whether it is a receive from any rank, or with any tag.
    is_short : bool
        Whether there is data and it fits into a slot of the bounce memory.
    is_synchronous : bool
        Whether it is a send that completes only when it is matched.
    is_free_at_once : bool
        Whether subsequent work on the stream may reuse the buffer of a send without waiting for the receiver.
    is_staged : bool
        Whether MPI moves the data through host memory if the communicator's calls block the host.
    """

    operation: str
    buffer: Buffer
    rank: int
    tag: int
    facts: bytes
    of_current: bool | None = None
    record: Callable[[], None] | None = None
    is_staged: bool = False
    nbytes: int = field(init=False)
    room_nbytes: int = field(init=False)
    is_wild: bool = field(init=False)
    is_short: bool = field(init=False)
    is_synchronous: bool = field(init=False)
    is_free_at_once: bool = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = nbytes = self.buffer.nbytes
        self.is_wild = self.rank == MPI.ANY_SOURCE or self.tag == MPI.ANY_TAG
        self.room_nbytes, fits = inline_nbytes(nbytes), nbytes <= SLOT_NBYTES
        self.is_short, self.is_synchronous = fits and nbytes > 0, self.operation in _SYNCHRONOUS
        self.is_free_at_once = fits and not self.is_synchronous


#: The plan of a send to MPI.PROC_NULL, or a receive from it.
NOTHING = Plan("", Buffer(0, 0, datatypes.of("u1"), (0,), False, None, None), MPI.PROC_NULL, MPI.ANY_TAG, b"")


def planned(
    comm: MessageBase,
    operation: str,
    buf: Any,
    rank: int,
    tag: int,
    name: str = "buf",
    *,
    writable: bool,
    is_matched: bool = False,
) -> Plan | None:
    """Return the plan of a send or, if `writable`, receive; None for a host buffer.

    With `is_matched`, the communicator may have been freed. The endpoint caches plans by the keys of their arguments.
    If there is a cached plan, only failures are checked, not the arguments.
    """
    own, key = comm.known, None
    # The endpoint is None once the communicator has been freed.
    endpoint: Endpoint | None = None if own is None else own.endpoint
    if type(rank) is int and type(tag) is int:
        try:  # noqa: SIM105  contextlib.suppress costs more
            key = operation, writable, MAKERS[type(buf)](buf), rank, tag
        except NoKey:
            pass
    plan: Plan | None = None
    if key is not None and endpoint is not None:
        plan = endpoint.plans.get(key) or _elsewhere(endpoint, key, buf)
    if plan is not None and endpoint is not None:
        if endpoint.failure or endpoint.monitor.failure or endpoint.watch.array[FAILURE]:
            endpoint.check()
        if endpoint.comm_failure is not None and not writable:
            endpoint.check_peer(operation, rank)
        return plan
    if on_host(buf):
        return None
    endpoint = comm.lasting_endpoint if is_matched else comm.endpoint
    return _new_plan(endpoint, operation, buf, rank, tag, name, key, writable=writable)


def _new_plan(
    endpoint: Endpoint, operation: str, buf: Any, rank: int, tag: int, name: str, key: Any, *, writable: bool
) -> Plan:
    """Check the arguments and make the plan; cache it if equal calls can reuse it.

    A cached plan does not keep the array alive.
    """
    check = endpoint.check_receive if writable else endpoint.check_send
    rank, tag = check(operation, rank, tag)
    if rank == MPI.PROC_NULL:
        return NOTHING
    buffer = without_gaps(buffer_of(buf, f"{operation}: {name}", writable=writable, device=endpoint.device))
    plan = plan_of(endpoint, operation, buffer, rank, tag)
    if key is not None and type(buffer) is Buffer:
        plan.is_staged = 0 < plan.nbytes <= STAGED_NBYTES.get(operation, 0)
        if buffer.stream is None:
            plan.of_current = is_of_current((buffer,))
            plan.buffer = replace(buffer, owner=None)
            endpoint.plans[key] = plan
        _keep_movable(endpoint, key, buf, plan)
    return plan


def _movable_key(key: tuple[Any, ...], buf: Any) -> tuple[Hashable, int]:
    """Return the key of a plan without its array's address, and the address or 0."""
    operation, writable, of_array, rank, tag = key
    _, elsewhere, _, addresses = movable((None, of_array), (buf,))
    return (operation, writable, elsewhere, rank, tag), addresses[0] if addresses else 0


def _keep_movable(endpoint: Endpoint, key: tuple[Any, ...], buf: Any, plan: Plan) -> None:
    """Cache a plan for equal arrays elsewhere."""
    elsewhere, address = _movable_key(key, buf)
    offset = plan.buffer.address - address
    if offset >= 0:
        template = replace(plan, buffer=replace(plan.buffer, owner=None))
        endpoint.movable_plans[elsewhere] = template, offset


def _elsewhere(endpoint: Endpoint, key: tuple[Any, ...], buf: Any) -> Plan | None:
    """Return the plan of an equal message whose array is elsewhere, for this array.

    Return None if there is none. The plan is cached, unless the array specifies its producer's stream, because that
    stream must be read from the array of each call.
    """
    elsewhere, address = _movable_key(key, buf)
    found = endpoint.movable_plans.get(elsewhere)
    if found is None:
        return None
    template, offset = found
    reach, is_cached = template.buffer.reach, template.buffer.stream is None
    array = buf[0] if type(buf) in (list, tuple) else buf
    if reach and not reaches(array, endpoint.device, address, reach):
        return None
    owner = None if is_cached else array
    plan: Plan = replace(template, buffer=replace(template.buffer, address=address + offset, owner=owner))
    if is_cached:
        endpoint.plans[key] = plan
    return plan


def plan_of(endpoint: Endpoint, operation: str, buffer: Buffer, peer: int, tag: int) -> Plan:
    """Make the plan of a send or receive whose arguments have been checked."""
    facts, calls = b"", endpoint.calls
    if calls is not None:
        nbytes, datatype = buffer.nbytes, buffer.datatype.name
        facts = calls.facts_of_one(operation, MESSAGE, peer=peer, tag=tag, nbytes=nbytes, datatype=datatype)
    return Plan(operation, buffer, peer, tag, facts)


def place_of(endpoint: Endpoint, plan: Plan) -> tuple[Any, Event | None]:
    """Return the stream of a nonblocking receive, and its start event or None.

    For communicators whose calls block. A receive on a private stream leaves that stream at once; this costs one event
    on the current stream. If it left only at the next call, the private stream would have to wait now.
    """
    caller = endpoint.caller
    if plan.of_current and caller.stream is None:
        current, stream = endpoint.device.current_and_private()
        if stream is not None:
            try:
                event = endpoint.context.spare_events.pop()
            except IndexError:
                event = endpoint.device.event()
            event.record_eager(current)
            return stream, event
    return stream_of(endpoint, plan), None


def stream_of(endpoint: Endpoint, plan: Plan) -> Any:
    """Return the message's stream, which waits for the producer of the buffer."""
    device, caller = endpoint.device, endpoint.caller
    if plan.of_current is None or caller.stream is not None:
        stream = stream_for(device, (plan.buffer,), caller, plan.of_current)
    elif caller.blocking == "host":
        stream, private = device.current_and_private()
        if private is not None:
            if plan.of_current:
                # Receives of blocking communicators have already left their stream; see `place_of`.
                for receive in OPEN_RECEIVES[:]:
                    if receive.start_event is None:
                        let_receives_leave()
                        break
                device.order_eager(stream, private)
            # The private stream cannot be in a capture.
            return private
    else:
        stream = device.current_stream()
    if device.is_capturing(stream):
        raise NotSupported(
            f"{plan.operation}: messages are matched on the host, so a graph cannot hold them; send outside of the "
            "capture, by requests of Send_init and Recv_init, or by a collective such as Alltoallv"
        )
    return stream
