"""Collectives with one buffer on the device and the other on the host.

CUDA-aware MPIs accept such calls. All ranks must run a call in the same way, in kernels or in MPI, although no rank
knows where the buffers of the others are. So the rule is: an operation with a root runs in kernels if the buffer that
every rank passes is on the device, otherwise in MPI. All other operations run in kernels. Kernels use a device copy of
the host buffer. A persistent request keeps its copy: each start copies the host buffer to it, each completion copies
the result back.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import backends
from ..arrays import datatypes
from ..arrays.buffers import Buffer
from ..arrays.places import where
from ..arrays.readers import places_of, read_numpy, read_torch, reader_of
from ..backends import Upload
from ..errors import NotSupported
from ..operations import COLLECTIVES, blocking_form
from ..requests.open_receives import let_receives_leave
from ..requests.persistent import Prequest
from ..requests.request import Request
from ..requests.shown import show
from ..requests.work import Startable, Work
from ..staging.arguments import OPERATIONS, PAIR, Argument, GivenCall, is_persistent
from ..team.base import Base, wait_for_calls
from ..team.plans import Producer
from ..team.state import State, state_of
from ..team.streams import LEGACY_DEFAULT_STREAM, current_stream


def array_of(spec: Any) -> Any:
    """Return the array of a buffer argument, which is the first item of a list."""
    return spec[0] if isinstance(spec, (list, tuple)) else spec


class _HostMemory:
    """A stand-in device with host memory, so that readers accept host arrays."""

    name, ordinal = "host", 0

    def current_stream(self) -> None:
        return None

    def is_device_pointer(self, address: int) -> bool:
        return True

    def room(self, address: int, nbytes: int) -> int:
        return nbytes


def _read_host(array: Any, name: str) -> tuple[int, int, Any, tuple[int, ...], bool, object]:
    """Return an array's address, bytes, element type, shape, read-only flag and owner."""
    read = reader_of(array)
    if read is None:
        array, read = np.asarray(memoryview(array)), read_numpy
    address, nbytes, key, shape, readonly, _, owner = read(array, name, _HostMemory())
    return address, nbytes, key, shape, readonly, owner


class DeviceCopy:
    """A device copy of a host buffer, copied on a stream that belongs to this library.

    Attributes
    ----------
    spec : buffer argument
        The argument with the copy in place of the host buffer.
    owner : object
        Object that keeps the host buffer alive.
    """

    def __init__(self, spec: Any, which: Argument) -> None:
        self._device = backends.select()
        address, nbytes, key, shape, readonly, self.owner = _read_host(array_of(spec), which.name)
        if which.written and readonly:
            raise BufferError(f"{which.name} is read-only, and the operation writes to it; pass a writable array")
        memory: Any = (ctypes.c_char * nbytes).from_address(address)
        self._host = np.frombuffer(memory, np.uint8)
        self._is_written = which.written
        self._before = self._host[:0]
        self._memory: Upload = self._device.allocate_temporary(max(nbytes, 1), self._device.private_stream())
        datatype = datatypes.of(key)
        count = nbytes // datatype.itemsize
        buffer = Buffer(self._memory.address, count, datatype, shape, False, None, self._memory)
        self.spec: Any = type(spec)((buffer, *spec[1:])) if isinstance(spec, (list, tuple)) else buffer

    def fill(self) -> None:
        """Copy the host buffer to the device, and wait for the copy."""
        if self._is_written:
            self._before = self._host.copy()
        self._move(self._memory.address, MPI.Get_address(self._host))

    def bring_back(self) -> None:
        """Copy the bytes that the completed operation has changed to the host.

        Other bytes are not copied, because the program may have changed them in the host buffer during the operation.
        """
        if self._is_written:
            result = np.empty_like(self._before)
            self._move(MPI.Get_address(result), self._memory.address)
            np.copyto(self._host, result, where=result != self._before)

    def _move(self, to: int, source: int) -> None:
        stream = self._device.private_stream()
        self._device.copy(to, source, self._host.nbytes, stream)
        self._device.synchronize(stream)


class Finishing(Work):
    """The work behind a nonblocking call that uses a device copy of a host buffer."""

    def __init__(self, work: Work, copy: DeviceCopy) -> None:
        self.work, self.copy, self._state = work, copy, work.caller

    def finish(self) -> None:
        """Wait on the host for this operation only, then copy its result to the host.

        The communicator's other operations may take much longer. If the wait was interrupted, call this method again.
        """
        let_receives_leave()
        while not self.work.is_over():
            os.sched_yield()
        self.active = False
        wait = self.work.finish()
        if wait is not None:
            wait()
        self.copy.bring_back()
        if not self.is_persistent:
            del self.copy  # frees the device memory, although the program may keep the request

    def is_over(self) -> bool:
        return self.work.is_over()


def start_several(works: Sequence[Repeating]) -> None:
    """Copy host buffers to the device, and start the works."""
    for work in works:
        work.check_stream()
    for work in works:
        work.copy.fill()
    try:
        for starter, together in itertools.groupby((each.work for each in works), lambda work: work.starter):
            starter(list(together))
    finally:
        # Some works may have been started before one raised.
        for work in works:
            work.active = work.work.active


class Repeating(Finishing, Startable):
    """The work behind a persistent request that uses a device copy of a host buffer.

    Each start copies the host buffer to the device, and each completion copies the result back. `check_stream` raises
    if a start is impossible on the current stream.
    """

    starter = staticmethod(start_several)
    work: Startable

    def __init__(self, work: Startable, copy: DeviceCopy, check_stream: Callable[[], None]) -> None:
        super().__init__(work, copy)
        self.check_stream = check_stream
        self.name, self.places = work.name, [*work.places, *places_of([copy.owner])]

    def check_owner(self) -> None:
        self.work.check_owner()

    def is_over(self) -> bool:
        return not self.active or super().is_over()

    def close(self) -> None:
        self.work.close()


def host_buffer(given: GivenCall) -> Argument | None:
    """Return the argument whose host buffer must be copied to the device, or None.

    None if both buffers are in the same kind of memory, or if MPI has to run the call.
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
