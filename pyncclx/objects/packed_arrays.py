"""Packed arrays: the data of an object's arrays in one block of device memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from mpi4py import MPI

from .. import backends
from ..arrays import datatypes
from ..arrays.buffers import Buffer
from ..arrays.checks import Memory
from ..arrays.readers import read_torch, reader_of
from ..backends import Device
from ..derived.batches import Part
from ..derived.packing import PACK, UNPACK, packing_of
from ..derived.typed import aligned
from ..derived.typemap import typemap_of
from ..errors import NotSupported
from ..requests.open_receives import let_receives_leave
from ..team.streams import LEGACY_DEFAULT_STREAM
from .libraries import Form, array_classes, library

# Kernels were faster than pickles of CuPy arrays from about 200 KB, interpolated between 4 KB and 1 MB (H100 shared by
# two ranks, 2026-11-24; no file was stored).
SHORT_NBYTES = 128 << 10
#: Not empty after this process has sent or received device arrays in objects.
MOVED: list[bool] = []


class PackedArrays(NamedTuple):
    """Arrays without gaps, and the stream that moves their data.

    The stream is the current one, ordered after the arrays' producers.

    Attributes
    ----------
    arrays : list of array
    forms : tuple of Form
    memories : list of Memory
    stream : stream
    device : Device
    """

    arrays: list[Any]
    forms: tuple[Form, ...]
    memories: list[Memory]
    stream: Any
    device: Device

    @classmethod
    def of(cls, arrays: Sequence[Any]) -> PackedArrays:
        """Make packed arrays of existing arrays; copy those with gaps."""
        whole, forms = [], []
        for array in arrays:
            own = array_classes()[type(array)]
            order = own.order(array)
            differentiated = own.name == "torch" and bool(array.requires_grad)
            forms.append(Form(own.name, array.dtype, tuple(array.shape), order or "C", differentiated))
            data = array.detach() if differentiated else array
            whole.append(data if order else own.packed(data))
        return cls._of(whole, tuple(forms))

    @classmethod
    def like(cls, forms: tuple[Form, ...]) -> PackedArrays:
        """Return new arrays of these forms, with undefined elements."""
        return cls._of([library(form.library).empty(form) for form in forms], forms)

    @classmethod
    def _of(cls, arrays: list[Any], forms: tuple[Form, ...]) -> PackedArrays:
        if not MOVED:
            MOVED.append(True)
        device = backends.select()
        stream = device.current_stream()
        if device.is_capturing(stream):
            raise NotSupported(
                "objects with device arrays are pickled on the host, so a graph cannot hold them; pass them outside of "
                "the capture, or the arrays alone to the methods with an upper-case name"
            )
        # Each array has a reader, because its class is in `array_classes`.
        memories = [cast(Any, reader_of(array))(array, "array of an object", device) for array in arrays]
        for producer in {producer for *_, producer, _ in memories}:
            if producer is not None and stream is not None and producer != (stream.ptr or LEGACY_DEFAULT_STREAM):
                let_receives_leave()
                device.order(device.external_stream(producer), stream)
        return cls(arrays, forms, memories, stream, device)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed arrays; several arrays are padded for alignment."""
        lengths = [nbytes for _, nbytes, *_ in self.memories]
        return lengths[0] if len(lengths) == 1 else sum(map(aligned, lengths))

    @property
    def is_short(self) -> bool:
        """Whether a copy through the host is faster than preparing and running kernels."""
        return self.nbytes <= SHORT_NBYTES

    def block(self) -> Buffer:
        """Return the block, a buffer in which the packed arrays fit.

        It is the memory of the array if there is only one, otherwise new temporary memory.
        """
        if len(self.arrays) == 1:
            return block(self.memories[0][0], self.nbytes, self.arrays[0])
        return self.new_block()

    def new_block(self) -> Buffer:
        """Return temporary memory in which the packed arrays fit, for use on the stream."""
        return temporary(self.device, self.nbytes, self.stream)

    def pack(self, address: int) -> None:
        """Copy the data to a block at an address."""
        self._move(PACK, address)

    def unpack(self, address: int) -> None:
        """Copy the data from a block at an address."""
        self._move(UNPACK, address)

    def _move(self, kernel: str, address: int) -> None:
        device = self.device
        if len(self.memories) == 1:
            own, nbytes = self.memories[0][:2]
            to, source = (address, own) if kernel == PACK else (own, address)
            if nbytes and to != source:
                device.copy(to, source, nbytes, self.stream)
            return
        parts = tuple(Part(typemap_of(MPI.BYTE), nbytes, own, start) for own, nbytes, start in self._places())
        for launch in packing_of(device).launches(kernel, parts, 0, address, self.stream):
            device.launch(*launch, self.stream)

    def _places(self) -> Iterator[tuple[int, int, int]]:
        """Yield each nonempty array's address, length, and offset in the block."""
        start = 0
        for own, nbytes, *_ in self.memories:
            if nbytes:
                yield own, nbytes, start
            start += aligned(nbytes)

    # Methods that use host memory, for data that kernels cannot move.

    def download(self) -> np.ndarray[Any, Any]:
        """Return the data in host memory."""
        device, copy = self.device, np.empty(self.nbytes, np.uint8)
        address = MPI.Get_address(copy)
        try:
            data = self.block()
        except MemoryError:
            for own, nbytes, start in self._places():
                device.copy_pageable(address + start, own, nbytes, self.stream)
        else:
            self.pack(data.address)
            device.copy_pageable(address, data.address, self.nbytes, self.stream)
        return copy

    def upload(self, copy: np.ndarray[Any, Any]) -> list[Any]:
        """Copy the data from host memory, and return the arrays."""
        data = self.block()
        self.device.copy_pageable(data.address, MPI.Get_address(copy), self.nbytes, self.stream)
        self.unpack(data.address)
        self.device.synchronize(self.stream)
        return self.finish()

    def finish(self) -> list[Any]:
        """Make the arrays' own streams wait for the moves, and return the arrays."""
        for array, (*_, user, _) in zip(self.arrays, self.memories, strict=True):
            if user is not None and reader_of(array) is read_torch:
                self.device.order(self.stream, self.device.external_stream(user))
                # One call is enough: PyTorch has one current stream.
                break
        for array, form in zip(self.arrays, self.forms, strict=True):
            if form.differentiated:
                array.requires_grad_()
        return self.arrays


def temporary(device: Device, nbytes: int, stream: Any) -> Buffer:
    """Allocate temporary memory, for use on a stream."""
    memory = device.allocate_temporary(max(nbytes, 1), stream)
    return block(memory.address, nbytes, memory)


def block(address: int, nbytes: int, owner: object) -> Buffer:
    """Return bytes at an address as an operation's buffer, on the current stream."""
    return Buffer(address, nbytes, datatypes.TABLE["uint8"], (nbytes,), False, None, owner)
