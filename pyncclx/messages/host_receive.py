"""Receives of host arrays, which are mpi4py's: what to do when the message turns out to be a device array's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ..arrays import datatypes
from ..arrays.buffers import Buffer, spec_parts
from ..errors import MPIError
from ..requests.host_receive import ENVELOPE_MAGIC, HostReceiveRequest
from .endpoint import Endpoint
from .envelope import ENVELOPE_NBYTES, inline_nbytes, unpack
from .probe import ProbedMessage
from .receive import Incoming

if TYPE_CHECKING:
    from .base import MessageBase

MOST_MORE = inline_nbytes(1) - 1  # bytes that a message with a device array's data may be longer than that


class FoundInHostReceive(Incoming):
    """A device array's message that a receive of a host array has got, envelope and all."""

    _held = None

    def __init__(self, endpoint: Endpoint, buffer: Buffer, stream: Any, message: Any, status: MPI.Status) -> None:
        self._prepare(endpoint, "Recv", buffer, stream)
        self._message, self.status = message, status
        self._read()
        self.launch()


def receive(comm: MessageBase, call: Callable[[MPI.Status], None], recvbuf: Any, status: MPI.Status | None) -> None:
    """A receive of a host array: mpi4py's `call`. If it has got a device array's message, bring the data."""
    known = MPI.Status() if status is None else status
    try:
        call(known)
    except MPI.Exception as error:
        if error.Get_error_class() != MPI.ERR_TRUNCATE:
            raise
        text = f"a message longer than the buffer (if a device array was sent, of {MOST_MORE} bytes more, and its "
        raise MPIError(MPI.ERR_TRUNCATE, f"{text}data may be lost: receive it into a device array)") from error
    if known.Get_count(MPI.BYTE) >= ENVELOPE_NBYTES:
        _check(comm, _host_memory(recvbuf), known)


def ireceive(
    comm: MessageBase, request: MPI.Request, buf: Any, held: ProbedMessage | None = None
) -> HostReceiveRequest:
    """An Irecv of a host array: mpi4py's request, but waiting for it does the same."""
    checked, memory = (
        HostReceiveRequest(request),
        _host_memory(buf),
    )  # now: when it is over, the datatype may have been freed

    def check(status: MPI.Status) -> None:
        if held is not None:
            held.tell(status)
        _check(comm, memory, status)

    checked._check = check
    return checked


def _check(comm: MessageBase, memory: Any, status: MPI.Status) -> None:
    received = status.Get_count(MPI.BYTE)
    if received >= ENVELOPE_NBYTES and memory is not None and bytes(memory[: len(ENVELOPE_MAGIC)]) == ENVELOPE_MAGIC:
        _unwrap(comm, memory, received, status)


def _unwrap(comm: MessageBase, memory: Any, received: int, status: MPI.Status) -> None:
    """Replace a device array's message in host memory by its data.

    The program's stream may wait for a peer that waits for this: nothing of it is on that.
    """
    device, message = comm.endpoint.device, np.frombuffer(memory[:received], np.uint8).copy()
    found, stream = unpack(message), comm.endpoint.postbox.beside
    nbytes = min(found[0].nbytes if found else 0, len(memory))
    copy = device.allocate_temporary(max(nbytes, 1), stream)
    buffer = Buffer(copy.address, nbytes, datatypes.TABLE["uint8"], (nbytes,), False, None, copy)
    incoming = FoundInHostReceive(comm.endpoint, buffer, stream, message, status)
    device.copy(MPI.Get_address(memory), copy.address, nbytes, stream)
    device.synchronize(stream)
    incoming.finish(stream)


def _host_memory(spec: Any) -> Any:
    """The bytes of a host buffer argument from its displacement on; None if it is of a kind unknown here."""
    array, count, displ, key = spec_parts(spec)
    try:
        view = memoryview(array)
        itemsize = key.Get_extent()[1] if isinstance(key, MPI.Datatype) else _itemsize(view, key)
        whole = np.frombuffer(array.T if view.f_contiguous and not view.c_contiguous else array, np.uint8)
    except (TypeError, ValueError, BufferError):
        return None
    begin = (displ or 0) * itemsize
    return whole[begin : begin + count * itemsize] if count is not None else whole[begin:]


def _itemsize(view: memoryview, key: Any) -> int:
    """Of the elements that a key names; without one, of the buffer's, whose format NumPy need not know."""
    return np.dtype(key).itemsize if key else view.itemsize
