"""Message buffers; derived datatypes are packed to send, and unpacked on arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arrays.buffers import Buffer, resolve
from ..backends import Device, Upload
from ..derived.packing import PACK, UNPACK, packing_of
from ..derived.typed import Typed, resolve_typed
from ..errors import DerivedDatatype
from .endpoint import Endpoint


@dataclass(slots=True)
class TypedBuffer(Buffer):
    """A message buffer with a packed copy, in temporary memory of its stream.

    Attributes
    ----------
    typed : Typed
        Describes where the message's elements are in the array.
    memory : Upload or None
        Memory of the packed copy, if allocated; `address` is then its address.
    """

    typed: Typed
    memory: Upload | None = None

    def pack(self, endpoint: Endpoint, stream: Any) -> None:
        """Enqueue the packing of the array on the stream."""
        self.allocate(endpoint.device, stream)
        self._move(PACK, endpoint, stream, None)

    def allocate(self, device: Device, stream: Any) -> None:
        """Allocate the packed copy, unless a persistent request already has."""
        if self.memory is None:
            self.memory = device.allocate_temporary(max(self.nbytes, 1), stream)
            self.address = self.memory.address

    def unpack(self, endpoint: Endpoint, stream: Any, nbytes: int) -> None:
        """Enqueue the copy of the first `nbytes` of the packed copy into the array."""
        self._move(UNPACK, endpoint, stream, nbytes)

    def _move(self, kernel: str, endpoint: Endpoint, stream: Any, limit: int | None) -> None:
        parts, memory = self.typed.parts, self.typed.buffer.address
        for launch in packing_of(endpoint.device).launches(kernel, parts, memory, self.address, stream, limit):
            endpoint.enqueue(*launch, stream)


def buffer_of(endpoint: Endpoint, name: str, spec: Any, *, writable: bool) -> Buffer:
    """Return a message's buffer of any datatype; a `TypedBuffer` if not contiguous."""
    device = endpoint.device
    try:
        return resolve(spec, name, writable=writable, device=device)
    except DerivedDatatype:
        typed = resolve_typed(spec, name, writable=writable, device=device)
    whole, nbytes = typed.buffer, typed.nbytes
    if typed.is_contiguous:
        return typed.at(whole.address + typed.parts[0].offset, nbytes)
    return TypedBuffer(0, nbytes, whole.datatype, (nbytes,), whole.readonly, whole.stream, whole.owner, typed)
