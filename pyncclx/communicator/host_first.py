"""Host arrays first: calls with plain NumPy arrays go to mpi4py at once, before anything else is asked of them.

Each function here puts a method in front of another of the same name, which takes all other calls. They add less than
half a microsecond to mpi4py's calls, so they look at little: at types, and not at addresses.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mpi4py import MPI
from numpy import ndarray

from .. import events
from ..arrays import places
from ..messages import host_receive
from ..messages.envelope import ENVELOPE_NBYTES
from ..messages.probe import HOLDING

_Method = Callable[..., Any]
_IN_PLACE = MPI.IN_PLACE


def is_plain(buffer: Any) -> bool:
    """Whether an argument is certainly in host memory: a NumPy array over NumPy's own memory, in a list or alone.

    So are None and `MPI.IN_PLACE`, which have no memory. Of other objects the general way finds out: one of a subclass,
    or over the memory of an object that is no NumPy array, may be on the device.
    """
    kind = type(buffer)
    if (kind is list or kind is tuple) and buffer:
        buffer = buffer[0]
        kind = type(buffer)
    if kind is ndarray:
        base = buffer.base
        return base is None or (type(base) is ndarray and base.base is None)
    return buffer is None or buffer is _IN_PLACE


@functools.cache
def parameters(name: str) -> tuple[str, ...]:
    """The parameters of mpi4py's method, without `self`."""
    return tuple(inspect.signature(getattr(MPI.Cartcomm, name)).parameters)[1:]


def host_first(name: str, general: _Method) -> _Method:
    """Put mpi4py's method of a name in front of another one, for plain arrays."""
    first = _RECEIVES.get(name)
    if first is not None:
        return first(general)
    original = getattr(MPI.Cartcomm, name)
    names = frozenset(parameters(name))

    @functools.wraps(general)
    def of_one(self: Any, buf: Any, *args: Any, **kwargs: Any) -> Any:
        if not places.host_arrays() and is_plain(buf) and not events.listeners and kwargs.keys() <= names:
            return original(self, buf, *args, **kwargs)
        return general(self, buf, *args, **kwargs)

    @functools.wraps(general)
    def of_two(self: Any, sendbuf: Any, recvbuf: Any, *args: Any, **kwargs: Any) -> Any:
        mpis = not places.host_arrays() and is_plain(sendbuf) and is_plain(recvbuf)
        if mpis and not events.listeners and kwargs.keys() <= names:
            return original(self, sendbuf, recvbuf, *args, **kwargs)
        return general(self, sendbuf, recvbuf, *args, **kwargs)

    if "buf" in names:
        return of_one
    return of_two if "sendbuf" in names else general


# Receives look at what has arrived: it may be the envelope of a device array. While a probe holds messages, the general
# way looks for them there.


def _recv(general: _Method) -> _Method:
    original = MPI.Comm.Recv

    @functools.wraps(general)
    def Recv(
        self: Any,
        buf: Any,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        if not places.host_arrays() and is_plain(buf) and not HOLDING and not events.listeners:
            return host_receive.receive(self, original, (self, buf, source, tag), buf, status)
        general(self, buf, source, tag, status)
        return None

    return Recv


def _irecv(general: _Method) -> _Method:
    original = MPI.Comm.Irecv

    @functools.wraps(general)
    def Irecv(self: Any, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Any:
        if type(buf) is ndarray and not places.host_arrays() and is_plain(buf) and not HOLDING and not events.listeners:
            request = original(self, buf, source, tag)
            return request if buf.nbytes < ENVELOPE_NBYTES else host_receive.ireceive_plain(self, request, buf)
        return general(self, buf, source, tag)

    return Irecv


def _sendrecv(general: _Method) -> _Method:
    original = MPI.Comm.Sendrecv

    @functools.wraps(general)
    def Sendrecv(
        self: Any,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        mpis = not places.host_arrays() and is_plain(sendbuf) and is_plain(recvbuf)
        if mpis and not HOLDING and not events.listeners:
            arguments = self, sendbuf, dest, sendtag, recvbuf, source, recvtag
            return host_receive.receive(self, original, arguments, recvbuf, status)
        general(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        return None

    return Sendrecv


def _unchanged(general: _Method) -> _Method:
    return general


_RECEIVES: dict[str, Callable[[_Method], _Method]] = {
    "Recv": _recv,
    "Irecv": _irecv,
    "Sendrecv": _sendrecv,
    **dict.fromkeys(("Isendrecv", "Sendrecv_replace", "Isendrecv_replace"), _unchanged),
}
