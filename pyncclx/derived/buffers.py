"""Buffers of any datatype; packed copies of derived ones are in temporary memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..arrays import datatypes
from ..arrays.buffers import Buffer, resolve
from ..backends import Device, Function, Upload
from ..errors import DerivedDatatype
from .batches import Part
from .packing import PACK, UNPACK, packing_of
from .typed import Typed, resolve_typed


class Launcher(Protocol):
    """Object that launches kernels, such as a communicator's endpoint."""

    @property
    def device(self) -> Device: ...

    def enqueue(self, function: Function, grid: int, threads: int, parameters: bytes, stream: Any) -> None: ...


@dataclass(slots=True)
class TypedBuffer(Buffer):
    """A buffer of a derived datatype, with a packed copy.

    Attributes
    ----------
    typed : Typed
        Describes where the elements are in the array.
    memory : Upload or None
        Temporary memory of a stream for the packed copy, if allocated.
    address : int
        Address of the packed copy; 0 if it has no memory yet.
    """

    typed: Typed
    memory: Upload | None = None

    def pack(self, launcher: Launcher, stream: Any) -> None:
        """Enqueue the packing of the array on the stream."""
        self.allocate(launcher.device, stream)
        self._move(PACK, launcher, stream, None)

    def allocate(self, device: Device, stream: Any) -> None:
        """Allocate the packed copy, unless it has memory, as in a persistent request."""
        if not self.address:
            self.memory = device.allocate_temporary(max(self.nbytes, 1), stream)
            self.address = self.memory.address

    def unpack(self, launcher: Launcher, stream: Any, nbytes: int | None = None) -> None:
        """Enqueue the unpacking of the packed copy, or of its first `nbytes` bytes."""
        self._move(UNPACK, launcher, stream, nbytes)

    def _move(self, kernel: str, launcher: Launcher, stream: Any, limit: int | None) -> None:
        parts, memory = self.typed.parts, self.typed.buffer.address
        for launch in packing_of(launcher.device).launches(kernel, parts, memory, self.address, stream, limit):
            launcher.enqueue(*launch, stream)


def buffer_of(spec: Any, name: str, *, writable: bool, device: Device) -> Buffer:
    """Return the buffer of an argument; a `TypedBuffer` if its datatype is derived."""
    try:
        return resolve(spec, name, writable=writable, device=device)
    except DerivedDatatype:
        return typed_buffer(resolve_typed(spec, name, writable=writable, device=device))


def typed_buffer(typed: Typed) -> TypedBuffer:
    """Return the buffer for an array's parts; its packed copy has no memory yet."""
    whole, nbytes = typed.buffer, typed.nbytes
    own = whole.readonly, whole.stream, whole.owner
    return TypedBuffer(0, nbytes, whole.datatype, (nbytes,), *own, typed, reach=whole.reach)


def buffer_at(address: int, part: Part) -> Buffer:
    """Return the buffer of a part of the memory at an address."""
    element, nbytes = part.typemap.element, part.nbytes
    if element is not None and part.typemap.is_contiguous:
        return Buffer(address + part.offset, nbytes // element.itemsize, element, (), False, None, None)
    whole = Buffer(address, part.bounds[1], datatypes.TABLE["uint8"], (), False, None, None)
    return typed_buffer(Typed(whole, (part,), nbytes))


def without_gaps(buffer: Buffer) -> Buffer:
    """Return a plain buffer for a typed one without gaps; return others unchanged."""
    if not isinstance(buffer, TypedBuffer) or not buffer.typed.is_contiguous:
        return buffer
    address = buffer.typed.buffer.address + buffer.typed.parts[0].offset
    own = buffer.shape, buffer.readonly, buffer.stream, buffer.owner
    return Buffer(address, buffer.count, buffer.datatype, *own, reach=buffer.reach)


def move(launcher: Launcher, to: Buffer, source: Buffer, stream: Any) -> None:
    """Enqueue a copy between two buffers that are equally long when packed.

    If both have gaps, `source` gets a packed copy in temporary memory.
    """
    if isinstance(source, TypedBuffer):
        if not isinstance(to, TypedBuffer):
            source.address = to.address
        source.pack(launcher, stream)
    if isinstance(to, TypedBuffer):
        to.address = source.address
        to.unpack(launcher, stream)
    elif not isinstance(source, TypedBuffer):
        launcher.device.copy(to.address, source.address, to.nbytes, stream)
