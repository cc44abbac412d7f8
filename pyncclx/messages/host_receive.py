"""Receives of host arrays, which are mpi4py's: what to do when the message turns out to be a device array's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ..arrays import datatypes
from ..arrays.buffers import Buffer
from ..arrays.specs import spec_parts
from ..errors import MPIError
from ..recovery.meetings import raise_explained
from ..requests.host_receive import ENVELOPE_MAGIC, HostReceiveRequest
from ..team.base import Base
from .envelope import ENVELOPE_NBYTES, STEP_NBYTES, inline_nbytes, may_be_envelope, unpack
from .probe import ProbedMessage
from .receive import Incoming
from .unsent import going_on

if TYPE_CHECKING:
    from .base import MessageBase

_BYTE = MPI.BYTE
_REST_NBYTES = ENVELOPE_NBYTES % STEP_NBYTES
_MAX_EXTRA_NBYTES = inline_nbytes(1) - 1  # that a message with a device array's data may be longer than the data


def receive(
    comm: MessageBase, call: Callable[..., None], arguments: tuple[Any, ...], recvbuf: Any, status: MPI.Status | None
) -> None:
    """Receive into a host array by mpi4py's ``call(*arguments, status)``; bring the data of a device array's message.

    `recvbuf` is the array among the arguments.
    """
    if status is None:
        status = MPI.Status()
    try:
        call(*arguments, status)
    except MPI.Exception as error:
        if error.Get_error_class() != MPI.ERR_TRUNCATE:
            raise_explained(comm, error, call.__name__)
        text = f"a message longer than the buffer (if a device array was sent, of {_MAX_EXTRA_NBYTES} bytes more, and "
        raise MPIError(MPI.ERR_TRUNCATE, f"{text}its data may be lost: receive it into a device array)") from error
    if may_be_envelope(status.Get_count(_BYTE)):
        _check(comm, _host_memory(recvbuf), status)


def ireceive(
    comm: MessageBase, request: MPI.Request, buf: Any, probed: ProbedMessage | None = None
) -> HostReceiveRequest:
    """Do the same when mpi4py's request of a nonblocking receive is waited for."""
    memory = _host_memory(buf)  # now: by the end of the receive the datatype may have been freed
    checked = HostReceiveRequest(request)

    def check(status: MPI.Status) -> None:
        if probed is not None:
            probed.set_origin(status)
        if may_be_envelope(status.Get_count(_BYTE)):
            _check(comm, memory, status)

    checked.check = check
    return going_on(checked)


def ireceive_plain(comm: MessageBase, request: MPI.Request, array: np.ndarray[Any, Any]) -> HostReceiveRequest:
    """As `ireceive`, for all of a NumPy array: its memory is looked up only if an envelope may have arrived."""
    checked = HostReceiveRequest(request)

    def check(status: MPI.Status) -> None:
        if status.Get_count(_BYTE) % STEP_NBYTES == _REST_NBYTES:  # at once what `may_be_envelope` finds out
            _check(comm, _host_memory(array), status)

    checked.check = check
    return going_on(checked)


def _check(comm: MessageBase, memory: Any, status: MPI.Status) -> None:
    """Bring the data if there is an envelope at the beginning of the memory."""
    if memory is None or bytes(memory[: len(ENVELOPE_MAGIC)]) != ENVELOPE_MAGIC:
        return
    if isinstance(comm, Base):  # not one of mpi4py's: MPI.Comm.Recv(comm, array)
        _unwrap(comm, memory, status.Get_count(_BYTE), status)


def _unwrap(comm: MessageBase, memory: Any, received_nbytes: int, status: MPI.Status) -> None:
    """Replace a device array's message in host memory by its data.

    The program's stream may wait for a peer that waits for this, so nothing here is on that stream.
    """
    device, message = comm.endpoint.device, np.frombuffer(memory[:received_nbytes], np.uint8).copy()
    envelope, stream = unpack(message, received_nbytes), comm.endpoint.postbox.host_array_stream
    nbytes = min(envelope.nbytes if envelope else 0, len(memory))
    copy = device.allocate_temporary(max(nbytes, 1), stream)
    buffer = Buffer(copy.address, nbytes, datatypes.TABLE["uint8"], (nbytes,), False, None, copy)
    incoming = Incoming(comm.endpoint, "Recv", buffer, stream)
    incoming.accept(message, status)
    device.copy(MPI.Get_address(memory), copy.address, nbytes, stream)
    device.synchronize(stream)
    incoming.finish(stream)


def _host_memory(spec: Any) -> Any:
    """Return the bytes of a host buffer argument from its displacement on; None if it is of an unknown kind."""
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
    """Return the size of the elements that a key names; without one, of the buffer's, in any format."""
    return np.dtype(key).itemsize if key else view.itemsize
