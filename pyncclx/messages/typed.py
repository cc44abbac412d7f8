"""Messages of derived datatypes: packed before they are sent, unpacked when they have arrived."""

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

MOST_KNOWN = 1024  # buffers of a communicator's messages


@dataclass(slots=True)
class TypedBuffer(Buffer):
    """A message that has a packed copy, in memory that belongs to the stream it is on.

    Attributes
    ----------
    typed : Typed
        Where it is in the array.
    memory : Upload or None
        Of the packed copy, once there is one; `address` is its address then.
    """

    typed: Typed
    memory: Upload | None = None

    def pack(self, endpoint: Endpoint, stream: Any) -> None:
        """Make the packed copy of what the stream has in the array by now."""
        self.allocate(endpoint.device, stream)
        self._move(PACK, endpoint, stream, None)

    def allocate(self, device: Device, stream: Any) -> None:
        """Make room for the packed copy."""
        self.memory = device.allocate_temporary(max(self.nbytes, 1), stream)
        self.address = self.memory.address

    def unpack(self, endpoint: Endpoint, stream: Any, nbytes: int) -> None:
        """Take the first `nbytes` of the packed copy to the array."""
        self._move(UNPACK, endpoint, stream, nbytes)

    def _move(self, kernel: str, endpoint: Endpoint, stream: Any, limit: int | None) -> None:
        parts, memory = self.typed.parts, self.typed.buffer.address
        for launch in packing_of(endpoint.device).launches(kernel, parts, memory, self.address, stream, limit):
            endpoint.enqueue(*launch, stream)


def buffer_of(endpoint: Endpoint, spec: Any, name: str, *, writable: bool) -> Buffer:
    """A message's buffer; of one that came before, with the same key, by a look-up."""
    try:
        key = key_of(spec), writable
    except NoKey:
        return resolve_message(spec, name, writable=writable, device=endpoint.device)
    known = endpoint.known.get(key)
    if known is not None:
        address, count, datatype, shape, readonly = known
        return Buffer(address, count, datatype, shape, readonly, None, spec)
    buffer = resolve_message(spec, name, writable=writable, device=endpoint.device)
    if type(buffer) is Buffer and buffer.stream is None:
        if len(endpoint.known) >= MOST_KNOWN:
            endpoint.known.clear()
        endpoint.known[key] = buffer.address, buffer.count, buffer.datatype, buffer.shape, buffer.readonly
    return buffer


def resolve_message(spec: Any, name: str, *, writable: bool, device: Device) -> Buffer:
    """Resolve a message's buffer, of any datatype; a `TypedBuffer` if it is not contiguous."""
    try:
        return resolve(spec, name, writable=writable, device=device)
    except DerivedDatatype:
        typed = resolve_typed(spec, name, writable=writable, device=device)
    whole, nbytes = typed.buffer, typed.nbytes
    if typed.is_contiguous:
        return typed.at(whole.address + typed.parts[0].offset, nbytes)
    return TypedBuffer(0, nbytes, whole.datatype, (nbytes,), whole.readonly, whole.stream, whole.owner, typed)
