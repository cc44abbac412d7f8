"""Starts of persistent sends and receives.

One launch moves a *batch*: the messages of all requests that start together on a stream.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

from mpi4py import MPI

from mpi_bootstrap.own_errors import own_error

from ...system.threads import has_begun
from ...team.streams import stream_for
from ..arguments import BATCH, MESSAGE, MOST_MESSAGES, PULL_MESSAGE
from ..endpoint import Endpoint

# A message gets one more block for each BLOCK_NBYTES (not measured).
BLOCK_NBYTES = 32 << 10
_ARRIVED_NBYTES = struct.calcsize("=I")
_KIND = operator.itemgetter(0)
#: Work of a batch for one message: the fields of `ChannelMessage`.
Message = tuple[int, ...]
#: `PersistentMessage`, whose module imports this one.
_Persistent = Any

_BATCH_OF = operator.attrgetter("batch")


class ChannelMessage(NamedTuple):
    """Work of a batch for one message of a channel; see `arguments.MESSAGE`.

    Messages outside channels have neither `epoch` nor `stride`.
    """

    kind: int
    data: int = 0
    buffer: int = 0
    nbytes: int = 0
    ready: int = 0
    done: int = 0
    clock: int = 0
    arrived: int = 0
    epoch: int = 0
    stride: int = 0
    peer: int = 0
    tag: int = 0


def launch(endpoint: Endpoint, operation: str, messages: list[Message], stream: Any) -> None:
    """Launch the kernels that move an endpoint's messages on a stream.

    Messages that signal peers are launched before messages that wait for peers, also across launches. Otherwise the
    first launches of two ranks could wait for each other's second.

    Afterwards `messages` is empty. After an exception it contains those that have not been launched.
    """
    messages.sort(key=_KIND)  # the order of MessageKind
    while messages:
        some, packed, grid, total = messages[:MOST_MESSAGES], b"", 0, 0
        words = endpoint.context.bounce.arrived[getattr(stream, "ptr", 0), get_ident(), MOST_MESSAGES]
        for each in some:
            total += each[3] if each[0] == PULL_MESSAGE else 0
        for kind, data, buffer, nbytes, ready, done, clock, arrived, epoch, stride, peer, tag in some:
            blocks = 1
            # Long messages share the device's blocks in proportion to their lengths.
            if kind == PULL_MESSAGE and nbytes > BLOCK_NBYTES:
                blocks = max(1, min(-(-nbytes // BLOCK_NBYTES), endpoint.device.max_channels * nbytes // total))
            fields = data, buffer, nbytes, ready, done, clock, arrived or words, epoch, stride
            packed += MESSAGE.pack(*fields, grid, blocks, kind, peer, tag, 0)
            grid, words = grid + blocks, words + _ARRIVED_NBYTES
        arguments = BATCH.pack(len(some), 0, packed)
        try:
            endpoint.launch(operation, "move_messages", grid, endpoint.device.threads, arguments, stream)
        except BaseException:
            if has_begun(arguments):
                del messages[: len(some)]
            raise
        del messages[: len(some)]


class Group:
    """Persistent messages of one endpoint that are started on one stream.

    Attributes
    ----------
    launch : callable
        Launches the messages of `batch`.
    """

    endpoint: Endpoint
    stream: Any
    is_captured: bool
    batch: list[Message]
    captured: list[_Persistent]
    launch: Callable[[], None]

    def launch_captured(self) -> None:
        """Launch all messages into a capture, and mark each as active."""
        order = self.endpoint.order
        stream = order.aside(self.stream)
        with order.following(stream):
            launch(self.endpoint, "Startall", self.batch, stream)
        event = order.mark(stream)
        for work in self.captured:
            work.capture_end(event, self.stream)


def start_several(works: Sequence[_Persistent]) -> None:
    """Start messages in their order, with one launch for each communicator and stream.

    After an interrupt, all or none have been started.
    """
    groups = _groups_of(works)
    # Producers may share a group.
    every = dict.fromkeys(groups.values())
    try:
        for work in works:
            group = groups.get(work.producer)
            if group is not None and group.is_captured:
                work.capture(group.stream, group.batch)
                group.captured.append(work)
                continue
            if group is not None:
                if work.needs_channel:
                    work.make_channel(group.stream)
                message = work.make()
                work.messages = (message,)
                message.begin(work.comm, work.endpoint, work._plan, None, group.stream, work.channel)
                if work.receives:
                    work.status = message.status
                    message.context.receives.post(message)
                elif len(works) == 1:
                    message.signal_ready()
                else:
                    message.signal_ready_by(group.batch)
                if not (work.receives or message.plan.is_free_at_once):
                    message.post()
            work.active = True
    except BaseException as error:
        _end_start(works, groups, error)
        raise
    # Launch even after an exception: the receivers of messages that have begun already have the envelopes.
    finally:
        try:
            for group in filter(_BATCH_OF, every):
                group.launch()
        except BaseException as error:
            _launch_left(every, error)
            raise


def end_lone_start(work: _Persistent, stream: Any, error: BaseException) -> None:
    """Withdraw a message whose start has raised; after an interrupt, start it instead."""
    group = Group()
    group.stream, group.is_captured = stream, False
    _end_start((work,), {work.producer: group}, error)


def _end_start(works: Sequence[_Persistent], groups: dict[Hashable, Group], error: BaseException) -> None:
    """Withdraw the message whose start has raised.

    After an interrupt, start it and the later messages instead; in a capture, add no more messages.
    """
    for work in works:
        group = groups.get(work.producer)
        if work.active or (group is not None and group.is_captured):
            continue
        if own_error(error) is not None:
            messages, work.messages = work.messages, ()
            for message in messages:
                message.leave()
            continue
        if group is not None:
            _start_again(work, group)
        work.active = True


def _start_again(work: _Persistent, group: Group) -> None:
    """Start a message after an interrupt, or complete a start that has begun."""
    message = work.messages[0] if work.messages else None
    if message is None or not message.has_begun:
        if message is not None:
            message.leave()
        message = work.make()
        work.messages = (message,)
        message.begin(work.comm, work.endpoint, work._plan, None, group.stream, work.channel)
    if work.receives:
        work.status = message.status
        message.post()
    else:
        message.signal_ready()
        message.keep_lost()
        message.post()


def _launch_left(groups: Iterable[Group], error: BaseException) -> None:
    """Launch the messages that an interrupted launch has not launched."""
    if own_error(error) is None:
        for group in groups:
            if group.batch and not group.is_captured:
                group.launch()


def _groups_of(works: Sequence[_Persistent]) -> dict[Hashable, Group]:
    """Return the group of each producer; raise if a message cannot start.

    Messages to and from MPI.PROC_NULL have no group.
    """
    groups: dict[Hashable, Group] = {}
    by_stream: dict[Hashable, Group] = {}
    for work in works:
        if work.peer != MPI.PROC_NULL:
            endpoint, caller, device = work.endpoint, work.endpoint.caller, work.endpoint.device
            if endpoint.comm_failure is not None and not work.receives:
                endpoint.check_peer(work.name, work.peer)
            if work.producer not in groups:
                if work.buffer.stream is None and caller.stream is None and caller.blocking != "host":
                    stream = device.current_stream()
                else:
                    stream = stream_for(device, (work.buffer,), caller, work.of_current)
                key = endpoint.serial, getattr(stream, "ptr", 0)
                if key not in by_stream:
                    group = by_stream[key] = Group()
                    group.endpoint, group.stream, group.is_captured = endpoint, stream, device.is_capturing(stream)
                    group.batch, group.captured = [], []
                    eager = partial(launch, endpoint, "Startall", group.batch, stream)
                    group.launch = group.launch_captured if group.is_captured else eager
                groups[work.producer] = by_stream[key]
            if groups[work.producer].is_captured:
                work.check_capture()
    return groups
