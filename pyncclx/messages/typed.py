"""Buffers of messages; those of derived datatypes are packed before they are sent, and unpacked after they arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arrays.buffers import Buffer, resolve
from ..backends import Device, Upload
from ..derived.packing import PACK, UNPACK, packing_of
from ..derived.typed import Typed, resolve_typed
from ..errors import DerivedDatatype
from ..launch.keys import NoKey, key_of
from .endpoint import Endpoint
from .side import Side

_MAX_KNOWN = 1024  # buffers that a communicator remembers


@dataclass(slots=True)
class TypedBuffer(Buffer):
    """The buffer of a message that has a packed copy, in temporary memory of its stream.

    Attributes
    ----------
    typed : Typed
        Where the message's elements are in the array.
    memory : Upload or None
        Of the packed copy, once there is one; `address` is its address then.
    """

    typed: Typed
    memory: Upload | None = None

    def pack(self, endpoint: Endpoint, stream: Any) -> None:
        """Pack what the stream has put into the array so far."""
        self.allocate(endpoint.device, stream)
        self._move(PACK, endpoint, stream, None)

    def allocate(self, device: Device, stream: Any) -> None:
        """Allocate the packed copy, unless a persistent request has done so before."""
        if self.memory is None:
            self.memory = device.allocate_temporary(max(self.nbytes, 1), stream)
            self.address = self.memory.address

    def unpack(self, endpoint: Endpoint, stream: Any, nbytes: int) -> None:
        """Copy the first `nbytes` of the packed copy into the array."""
        self._move(UNPACK, endpoint, stream, nbytes)

    def _move(self, kernel: str, endpoint: Endpoint, stream: Any, limit: int | None) -> None:
        parts, memory = self.typed.parts, self.typed.buffer.address
        for launch in packing_of(endpoint.device).launches(kernel, parts, memory, self.address, stream, limit):
            endpoint.enqueue(*launch, stream)


def buffer_of(endpoint: Endpoint, operation: str, side: Side, *, writable: bool) -> Buffer:
    """Resolve a side's buffer; look it up if its argument came before."""
    device, spec = endpoint.device, side.buf
    try:
        key = key_of(spec), writable
    except NoKey:
        return _resolve(spec, f"{operation}: {side.name}", writable=writable, device=device)
    known = endpoint.known_buffers.get(key)
    if known is not None:
        address, count, datatype, shape, readonly = known
        return Buffer(address, count, datatype, shape, readonly, None, spec)
    buffer = _resolve(spec, f"{operation}: {side.name}", writable=writable, device=device)
    if type(buffer) is Buffer and buffer.stream is None:
        if len(endpoint.known_buffers) >= _MAX_KNOWN:
            endpoint.known_buffers.clear()
        endpoint.known_buffers[key] = buffer.address, buffer.count, buffer.datatype, buffer.shape, buffer.readonly
    return buffer


def _resolve(spec: Any, name: str, *, writable: bool, device: Device) -> Buffer:
    """Resolve a message's buffer, of any datatype; a `TypedBuffer` if it is not contiguous."""
    try:
        return resolve(spec, name, writable=writable, device=device)
    except DerivedDatatype:
        typed = resolve_typed(spec, name, writable=writable, device=device)
    whole, nbytes = typed.buffer, typed.nbytes
    if typed.is_contiguous:
        return typed.at(whole.address + typed.parts[0].offset, nbytes)
    return TypedBuffer(0, nbytes, whole.datatype, (nbytes,), whole.readonly, whole.stream, whole.owner, typed)
