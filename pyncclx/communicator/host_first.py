"""Host arrays first: calls with plain NumPy arrays go to mpi4py at once, before anything else is asked of them.

This adds less than half a microsecond to mpi4py's calls, so it looks at little: at types, and not at addresses. Calls
with device arrays take no longer for it: what follows is in the same function, not behind another call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI
from numpy import ndarray

from .. import events
from ..arrays import places, pointers
from ..errors import NotSupported
from ..messages import host_receive
from ..messages.envelope import ENVELOPE_NBYTES
from ..messages.probe import HOLDING
from ..messages.unsent import going_on, note_buffered
from ..recording.facts import records_all
from ..recovery.meetings import raise_explained
from ..staging.operations import OPERATIONS, is_nonblocking
from ..system import settings
from ..system.process import cached

_Method = Callable[..., Any]
_IN_PLACE = MPI.IN_PLACE
_CLASSES = frozenset((ndarray, MPI.buffer, list, tuple, type(None), type(MPI.IN_PLACE)))  # of what may be plain


def is_plain(buffer: Any) -> bool:
    """Whether an argument is certainly in host memory: a NumPy array or `MPI.buffer` there, in a list or alone.

    So are None and `MPI.IN_PLACE`, which have no memory. Of other objects the general way finds out.
    """
    kind = type(buffer)
    if (kind is list or kind is tuple) and buffer:
        buffer = buffer[0]
        kind = type(buffer)
    if kind is ndarray:
        base = buffer.base
        if base is None or (type(base) is ndarray and base.base is None):
            return True  # over NumPy's own memory
        return not pointers.is_over_device(buffer)
    if kind is MPI.buffer:
        return bool(buffer.address) and not pointers.is_over_device(buffer)  # else the other buffer decides
    return buffer is None or buffer is _IN_PLACE


@cached
def looks_closely() -> bool:
    """Whether no array is plain: on the host device, and where calls with host arrays are compared or recorded."""
    return places.host_arrays() or settings.CHECK.get() or records_all()


@functools.cache
def parameters(name: str) -> tuple[str, ...]:
    """The parameters of mpi4py's method, without `self`."""
    return tuple(inspect.signature(getattr(MPI.Cartcomm, name)).parameters)[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The ways of a method for what is not plain.

    Attributes
    ----------
    general : callable
        Takes all calls.
    native : callable
        Takes calls of objects whose classes are in `kinds`; raises NotSupported for what it leaves to MPI.
    kinds : set of type
    may_stage : callable
        Returns whether an object leaves such a call with such keywords to `staged`.
    staged : callable
    """

    general: _Method
    native: _Method
    kinds: set[type]
    may_stage: Callable[[Any, dict[str, Any]], bool]
    staged: _Method


def host_first(name: str, ways: Ways) -> _Method:
    """The method of a name: mpi4py's for plain arrays, else by `ways`."""
    names = frozenset(parameters(name))
    if name in RECEIVES:
        return RECEIVES[name](ways)
    if "buf" in names:
        return _of_one(name, names, ways)
    return _of_two(name, names, ways) if "sendbuf" in names else ways.general


def _of_one(name: str, names: frozenset[str], ways: Ways) -> _Method:
    original: _Method = getattr(MPI.Cartcomm, name)
    kinds, native, nonblocking, buffered = ways.kinds, ways.native, is_nonblocking(name), name == "Bsend"

    @functools.wraps(ways.general)
    def method(self: Any, buf: Any, *args: Any, **kwargs: Any) -> Any:
        plain = type(buf) in _CLASSES and not looks_closely() and is_plain(buf)
        if plain and not events.listeners and kwargs.keys() <= names:
            try:
                done = original(self, buf, *args, **kwargs)
                if buffered:
                    note_buffered()
                return going_on(done) if nonblocking else done
            except MPI.Exception as error:
                raise_explained(self, error, name)
        if type(self) not in kinds:
            return ways.general(self, buf, *args, **kwargs)
        try:
            return native(self, buf, *args, **kwargs)
        except NotSupported:
            if not ways.may_stage(self, kwargs):
                raise
        return ways.staged(self, buf, *args, **kwargs)

    return method


def _of_two(name: str, names: frozenset[str], ways: Ways) -> _Method:
    original: _Method = getattr(MPI.Cartcomm, name)
    kinds, native, nonblocking = ways.kinds, ways.native, is_nonblocking(name)

    @functools.wraps(ways.general)
    def method(self: Any, sendbuf: Any, recvbuf: Any, *args: Any, **kwargs: Any) -> Any:
        plain = type(recvbuf) in _CLASSES and not looks_closely() and is_plain(recvbuf) and is_plain(sendbuf)
        if plain and not events.listeners and kwargs.keys() <= names:
            try:
                done = original(self, sendbuf, recvbuf, *args, **kwargs)
                return going_on(done) if nonblocking else done
            except MPI.Exception as error:
                raise_explained(self, error, name)
        if type(self) not in kinds:
            return ways.general(self, sendbuf, recvbuf, *args, **kwargs)
        try:
            return native(self, sendbuf, recvbuf, *args, **kwargs)
        except NotSupported:
            if not ways.may_stage(self, kwargs):
                raise
        return ways.staged(self, sendbuf, recvbuf, *args, **kwargs)

    return method


# Receives look at what has arrived: it may be the envelope of a device array. While a probe holds messages, the general
# way looks for them there.


def _recv(ways: Ways) -> _Method:
    kinds, native = ways.kinds, ways.native
    original = MPI.Comm.Recv

    @functools.wraps(ways.general)
    def Recv(
        self: Any,
        buf: Any,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        plain = type(buf) in _CLASSES and not looks_closely() and is_plain(buf)
        if plain and not HOLDING and not events.listeners:
            return host_receive.receive(self, original, (self, buf, source, tag), buf, status)
        if type(self) not in kinds:
            return ways.general(self, buf, source, tag, status)
        try:
            return native(self, buf, source, tag, status)
        except NotSupported:
            if not ways.may_stage(self, {}):
                raise
        return ways.staged(self, buf, source, tag, status)

    return Recv


def _irecv(ways: Ways) -> _Method:
    kinds, native = ways.kinds, ways.native
    original = MPI.Comm.Irecv

    @functools.wraps(ways.general)
    def Irecv(self: Any, buf: Any, source: int = MPI.ANY_SOURCE, tag: int = MPI.ANY_TAG) -> Any:
        if type(buf) is ndarray and not looks_closely() and is_plain(buf) and not HOLDING and not events.listeners:
            if buf.nbytes < ENVELOPE_NBYTES:
                return going_on(original(self, buf, source, tag))
            return host_receive.ireceive_plain(self, original, buf, source, tag)
        if type(self) not in kinds:
            return ways.general(self, buf, source, tag)
        try:
            return native(self, buf, source, tag)
        except NotSupported:
            if not ways.may_stage(self, {}):
                raise
        return ways.staged(self, buf, source, tag)

    return Irecv


def _sendrecv(ways: Ways) -> _Method:
    kinds, native = ways.kinds, ways.native
    original = MPI.Comm.Sendrecv

    @functools.wraps(ways.general)
    def Sendrecv(
        self: Any,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        plain = type(recvbuf) in _CLASSES and not looks_closely() and is_plain(recvbuf) and is_plain(sendbuf)
        if plain and not HOLDING and not events.listeners:
            arguments = self, sendbuf, dest, sendtag, recvbuf, source, recvtag
            return host_receive.receive(self, original, arguments, recvbuf, status)
        if type(self) not in kinds:
            return ways.general(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        try:
            return native(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        except NotSupported:
            if not ways.may_stage(self, {}):
                raise
        return ways.staged(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)

    return Sendrecv


RECEIVES: dict[str, Callable[[Ways], _Method]] = {
    "Recv": _recv,
    "Irecv": _irecv,
    "Sendrecv": _sendrecv,
    **dict.fromkeys(("Isendrecv", "Sendrecv_replace", "Isendrecv_replace"), lambda ways: ways.general),
}


def receive_by_mpi(comm: Any, name: str, call: _Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let MPI receive what kernels refuse here: the sender cannot know of it, and may have sent a device array."""
    arguments = {**dict(zip(parameters(name), args, strict=False)), **kwargs}
    into = next(each.name for each in OPERATIONS[name] if each.written)
    buf = arguments.get(into)
    if is_nonblocking(name):
        return host_receive.ireceive(comm, lambda view: call(**{**arguments, into: view}), buf)
    status = arguments.pop("status", None)

    @functools.wraps(call)
    def receive(status: MPI.Status) -> None:
        call(**arguments, status=status)

    return host_receive.receive(comm, receive, (), buf, status)
