"""Collectives with one buffer on the device and the other on the host.

CUDA-aware MPIs accept such calls. All ranks must run such a call by kernels, or all must run it by MPI, but a rank does
not know where the buffers of its peers are. So the rule is: an operation with a root runs where the buffer is that
every rank passes; all other operations run on the device. On the device, kernels use a copy of the host buffer. A
persistent request keeps its copy: each start copies the host buffer to it, and each completion copies the result back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .. import backends
from ..arrays.places import where
from ..arrays.readers import read_torch, reader_of
from ..errors import NotSupported
from ..operations import COLLECTIVES, blocking_form
from ..requests.persistent import Prequest
from ..requests.request import Request
from ..requests.shown import show
from ..staging.arguments import OPERATIONS, PAIR, Argument, GivenCall, is_persistent
from ..team.base import Base, wait_for_calls
from ..team.plans import Producer
from ..team.state import State, state_of
from ..team.streams import LEGACY_DEFAULT_STREAM, current_stream
from .device_copies import DeviceCopy, Finishing, Repeating, array_of


def host_buffer(given: GivenCall) -> Argument | None:
    """Return the argument whose host buffer kernels need on the device, or None.

    There is none if both buffers are in the same kind of memory, or if MPI has to run the call.
    """
    if OPERATIONS.get(given.operation) is not PAIR:
        return None
    places = {each.name: where(given.value(each)) for each in PAIR}
    if set(places.values()) != {"device", "host"}:
        return None
    if places.get(COLLECTIVES[blocking_form(given.operation)].on_all_ranks) == "host":
        return None
    return next(each for each in PAIR if places[each.name] == "host")


def with_copy(comm: Base, given: GivenCall, native: Callable[..., Any], which: Argument) -> Any:
    """Call the method for device arrays with a device copy of the host buffer.

    Return NotImplemented if kernels do not support the call; this is the same on all ranks.
    """
    arrays = [array_of(given.value(each)) for each in PAIR]
    producers = [Producer(LEGACY_DEFAULT_STREAM, reader_of(array) is read_torch) for array in arrays]
    check = partial(_check_stream, state_of(comm), f"{given.operation}: {which.name}", producers)
    copy = DeviceCopy(given.value(which), which)
    if not is_persistent(given.operation):
        check()
        copy.fill()
    try:
        result = given.with_value(which, copy.spec).run(partial(native, comm))
    except NotSupported:
        return NotImplemented
    if isinstance(result, Prequest):
        result._work = Repeating(result._work, copy, check)
    elif isinstance(result, Request):
        _finish_by(result, copy)
    else:
        wait_for_calls(comm, producers)
        copy.bring_back()
    return result


def _check_stream(state: State, what: str, producers: list[Producer]) -> None:
    """Raise NotSupported if the stream of a call is being captured."""
    device = backends.select()
    if device.is_capturing(current_stream(device, producers, state)):
        raise NotSupported(f"{what} is in host memory, whose copies cannot be part of a graph; pass a device array")


def _finish_by(request: Request, copy: DeviceCopy) -> None:
    """Make an active request copy the result to the host when it completes."""
    work, request._work = request._work, Finishing(request._work, copy)
    request._work.shown, work.shown = work.shown, None
    show((request,))
