"""Starts of partitioned messages.

One launch serves all messages that start together on a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi_bootstrap.own_errors import own_error

from ... import backends
from ...errors import NotSupported
from ...launch import kernels
from ...system.process import PerProcess
from ...system.threads import forget, has_begun
from ..arguments import MOST_ROUNDS, begin_arguments

#: `PartitionedMessage`, whose module imports this one.
_Partitioned = Any
# The messages of one launch, and its stream.
_Batch = tuple[list[_Partitioned], Any]
#: The kernels of cuda/messages/partitioned.cu.
FUNCTIONS = PerProcess(lambda: kernels.load_alone(backends.select(), "messages/partitioned.cu"))


def start_several(messages: Sequence[_Partitioned]) -> None:
    """Start messages, with one launch for each communicator and stream.

    After an interrupt, all or none have been started.
    """
    batches = _batches(messages)
    try:
        _begin_all(batches, messages)
    except BaseException as error:
        if own_error(error) is None:
            _begin_all(batches, messages)
        raise


def _begin_all(batches: Sequence[_Batch], messages: Sequence[_Partitioned]) -> None:
    """Begin the rounds of all messages whose rounds have not begun."""
    for batch, stream in batches:
        if not batch[0].active:
            _begin(batch, stream)
    for message in messages:
        if message.is_nobodys:
            message.activate(None)


def _batches(messages: Sequence[_Partitioned]) -> list[_Batch]:
    """Prepare messages, and return the batch of each launch.

    Messages with MPI.PROC_NULL have none.
    """
    groups: dict[tuple[int, int], tuple[Any, list[_Partitioned]]] = {}
    for message in messages:
        if message.is_nobodys:
            continue
        stream = message.stream()
        if message.endpoint.device.is_capturing(stream) and not message.is_met:
            how = "start it once before, and wait for it, or ask for its pointer"
            raise NotSupported(f"{message.name}: a graph cannot hold the first start, when both ends meet: {how}")
        message.prepare()
        key = message.endpoint.serial, getattr(stream, "ptr", 0)
        groups.setdefault(key, (stream, []))[1].append(message)
    return [
        (group[first : first + MOST_ROUNDS], stream)
        for stream, group in groups.values()
        for first in range(0, len(group), MOST_ROUNDS)
    ]


def _begin(messages: Sequence[_Partitioned], stream: Any) -> None:
    """Begin a round of each message.

    If an exception is raised after the launch, the rounds have begun.
    """
    endpoint = messages[0].endpoint
    arguments = begin_arguments([message.epoch for message in messages])
    forget()
    try:
        endpoint.enqueue(FUNCTIONS.get()["begin_rounds"], 1, endpoint.device.threads, arguments, stream)
        _activate(messages, stream)
    except BaseException:
        if has_begun(arguments):
            _activate(messages, stream)
        raise


def _activate(messages: Sequence[_Partitioned], stream: Any) -> None:
    device, began = messages[0].endpoint.device, None
    if not device.is_capturing(stream):
        began = device.event()
        began.record(stream)
    for message in messages:
        message.activate(began)
