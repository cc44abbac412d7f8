"""Collectives with one buffer on the device and the other on the host.

CUDA-aware MPIs take such calls. Other ranks do not see where both buffers are, but all must choose kernels or MPI
alike. So an operation with a root runs where the buffer is that every rank has; other operations run on the device.
There, kernels use a device copy of the host buffer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import backends
from ..arrays import datatypes
from ..arrays.buffers import Buffer
from ..arrays.checks import not_contiguous
from ..arrays.places import where
from ..arrays.readers import read_torch, reader_of
from ..backends import Upload
from ..requests.request import request_of
from ..requests.work import Work
from ..staging.operations import OPERATIONS, PAIR, Argument, argument, is_nonblocking, is_persistent
from ..team.base import Base, wait_for_calls
from ..team.plans import Producer
from ..team.streams import LEGACY_DEFAULT_STREAM

#: The buffer that every rank has, of each operation with a root. The other buffer matters at root only.
_OF_ALL = {"Gather": "sendbuf", "Gatherv": "sendbuf", "Scatter": "recvbuf", "Scatterv": "recvbuf", "Reduce": "sendbuf"}


def host_buffer(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Argument | None:
    """Return the host buffer that has to be copied for kernels; None if there is none.

    There is none if both buffers are in the same kind of memory, or MPI has to do the call.
    """
    if OPERATIONS.get(name) is not PAIR or is_persistent(name):
        return None
    places = {each.name: where(argument(each, args, kwargs)) for each in PAIR}
    if set(places.values()) != {"device", "host"}:
        return None
    blocking = f"{name[1].upper()}{name[2:]}" if is_nonblocking(name) else name
    if places.get(_OF_ALL.get(blocking, "")) == "host":
        return None
    return next(each for each in PAIR if places[each.name] == "host")


def with_copy(
    comm: Base, native: Callable[..., Any], which: Argument, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a method for device arrays, with a device copy instead of a host buffer."""
    copy = _Copy(argument(which, args, kwargs), which)
    if which.position < len(args):
        args = (*args[: which.position], copy.spec, *args[which.position + 1 :])
    else:
        kwargs = {**kwargs, which.name: copy.spec}
    result = native(comm, *args, **kwargs)
    if isinstance(result, MPI.Request):
        return request_of(_Finishing(result, copy))
    arrays = map(_array_of, (argument(each, args, kwargs) for each in PAIR))
    wait_for_calls(comm, [Producer(LEGACY_DEFAULT_STREAM, reader_of(array) is read_torch) for array in arrays])
    copy.bring_back()
    return result


def _array_of(spec: Any) -> Any:
    return spec[0] if isinstance(spec, (list, tuple)) else spec


class _Copy:
    """A device copy of a host buffer, copied on a stream of this library's own."""

    def __init__(self, spec: Any, which: Argument) -> None:
        self._device = backends.select()
        array = _array_of(spec)
        host = np.asarray(array if isinstance(array, np.ndarray) else memoryview(array))
        if not host.flags.forc:
            raise not_contiguous(which.name, host.shape, host.strides)
        if which.written and not host.flags.writeable:
            raise BufferError(f"{which.name} is read-only, and the operation writes to it; pass a writable array")
        self._host = host.ravel("K").view(np.uint8)
        self._before = self._host.copy() if which.written else None
        self._memory: Upload = self._device.allocate_temporary(max(host.nbytes, 1), self._device.private_stream())
        self._move(self._memory.address, MPI.Get_address(self._host))
        datatype = datatypes.of(host.dtype)
        count = host.nbytes // datatype.itemsize
        buffer = Buffer(self._memory.address, count, datatype, host.shape, False, None, self._memory)
        self.spec: Any = type(spec)((buffer, *spec[1:])) if isinstance(spec, (list, tuple)) else buffer

    def bring_back(self) -> None:
        """Copy to the host the bytes that the operation has changed, after its end.

        Other bytes stay, because the program may have changed them meanwhile.
        """
        if self._before is not None:
            result = np.empty_like(self._before)
            self._move(MPI.Get_address(result), self._memory.address)
            np.copyto(self._host, result, where=result != self._before)

    def _move(self, to: int, source: int) -> None:
        stream = self._device.private_stream()
        self._device.copy(to, source, self._host.nbytes, stream)
        self._device.synchronize(stream)


class _Finishing(Work):
    """The work of a request that copies the result to the host when it is waited for."""

    def __init__(self, request: MPI.Request, copy: _Copy) -> None:
        self._request = request
        self._copy: _Copy | None = copy

    def finish(self) -> None:
        """Wait on the host for this operation, then copy its result to the host.

        It does not wait for other operations of the communicator, which may take much longer.
        """
        copy, self._copy, self.active = self._copy, None, False
        if copy is not None:
            while not self._request.Get_status():
                os.sched_yield()
            self._request.Wait()
            copy.bring_back()

    def is_over(self) -> bool:
        return self._request.Get_status()
