"""Launches of receives, alone or together.

If an interrupt ends a launch, the next launch continues it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from mpi_bootstrap.own_errors import own_error

from ..backends import Event
from ..derived.buffers import TypedBuffer
from .memory.scratch import KEPT_NBYTES
from .persistent.starts import Message, launch
from .progress.beside_stream import event_of

#: `Incoming`, whose module imports this one.
_Incoming = Any

_ENTRY = operator.attrgetter("_entry")


def launch_together(receives: Sequence[_Incoming]) -> None:
    """Launch receives of one endpoint and stream, with one kernel for their data."""
    fetched: list[_Incoming] = []
    left = messages = list[Message]()
    try:
        for each in receives:
            try:
                message = None if each._is_enqueued else each._begin_launch()
                if message is not None:
                    each._fetches = True
                    messages.append(message)
                    fetched.append(each)
            except BaseException as error:
                _keep(error, (each,))
        left = messages[:]
        try:
            if fetched:
                launch(fetched[0].endpoint, "Irecv", left, fetched[0]._kernel_stream)
        except BaseException as error:
            _keep(error, fetched)
    except BaseException:
        for each, message in zip(fetched, messages, strict=False):
            each._interrupt(has_launched=all(message is not other for other in left))
        raise
    for each in receives:
        if each.start_event is not None or each._has_opened:
            leave(receives)
            break
    end_launch(receives)


def leave(receives: Sequence[_Incoming]) -> None:
    """Record the end of a launch on the side stream, and release opened memory."""
    end, uses = None, list[Event | None]()
    for each in receives:
        try:
            if each.start_event is not None and each._fetches:
                if end is None:
                    end = event_of(each.endpoint)
                    # The side stream is never captured.
                    end.record_eager(each._kernel_stream)
                uses.append(None if uses else end)
                each._end_uses, each._end_event = uses, end
            if each._has_opened and each.envelope is not None:
                each._has_opened = False
                each._release(each.envelope)
        except BaseException as error:
            _keep(error, (each,))


def _keep(error: BaseException, receives: Sequence[_Incoming]) -> None:
    """Keep an error for the calls that wait for these receives.

    Raise an exception of a signal handler again.
    """
    own = own_error(error)
    if own is None:
        raise error
    for each in receives:
        each._error = each._error or own


def end_launch(receives: Sequence[_Incoming]) -> None:
    """Mark receives of one endpoint as launched, and return their host memory."""
    calls = receives[0].endpoint.calls
    if calls is not None:
        for each in receives:
            if each.plan.is_wild and not (each._is_cancelling and each.status.Is_cancelled()):
                calls.match(each._entry, each.status.source, each.status.tag)
        calls.ring.end(*map(_ENTRY, receives))
    for each in receives:
        message, scratch, each._message = each._message, each._scratch, None
        try:
            # Without a communicator, the memory came from `accept`.
            if each._comm is None:
                scratch.drop(message, each._copied)
            # The message is None after an interrupt.
            elif message is not None and each._copied is None and len(message) == KEPT_NBYTES:
                scratch.free.append(message)
            elif message is not None:
                scratch.give_back(message, each._copied)
        except BaseException:
            each.context.receives.pending_sends.keep_lost(message)
            raise
        event, each.start_event = each.start_event, None
        if event is not None:
            each.context.spare_events.append(event)
        if each.is_abandoned:
            each._finish_alone()
        is_full, is_typed = each.context.opened.is_full, isinstance(each.buffer, TypedBuffer)
        each.is_settled = each._error is None and each._kernel_stream is each.stream and not (is_full or is_typed)
        # Set this last, because another thread may wait for it.
        each.launched = True
