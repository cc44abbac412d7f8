"""Resolve buffer arguments of any datatype, also derived, to parts of an array."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from ..arrays import vectors
from ..arrays.buffers import Buffer, resolve
from ..arrays.datatypes import Datatype
from ..arrays.pointers import precedes, reaches
from ..arrays.specs import spec_parts
from ..backends import Device
from ..errors import MPIError
from .batches import WIDEST_NBYTES, Part
from .typemap import Typemap, typemap_of


@dataclass(frozen=True, slots=True)
class Typed:
    """A buffer argument, divided into the parts that its datatypes and counts select.

    Attributes
    ----------
    buffer : Buffer
        The whole array, as bytes.
    parts : tuple of Part
        One part, or one for each rank.
    nbytes : int
        Bytes of the packed copy of all parts, including the padding that aligns each part.
    """

    buffer: Buffer
    parts: tuple[Part, ...]
    nbytes: int

    @property
    def is_contiguous(self) -> bool:
        """Whether each part is contiguous in memory."""
        return all(part.typemap.is_contiguous for part in self.parts if part.nbytes)

    def at(self, address: int, nbytes: int) -> Buffer:
        """Return a buffer of bytes at an address: the packed copy, or a part of the array."""
        whole = self.buffer
        return Buffer(address, nbytes, whole.datatype, (nbytes,), False, whole.stream, whole.owner)


def aligned(nbytes: int) -> int:
    """Round a length up, so that the next part is aligned."""
    return -(-nbytes // WIDEST_NBYTES) * WIDEST_NBYTES


def resolve_typed(spec: Any, name: str, *, writable: bool, device: Device, blocks: int = 1) -> Typed:
    """Resolve a plain buffer argument of any datatype, like `buffers.resolve`.

    Parameters
    ----------
    spec, name, writable, device, blocks
        As for `buffers.resolve`. The result has one part, which contains all blocks. If `blocks` is 0, the part is
        empty.
    """
    array, o_count, o_displ, key = spec_parts(spec, name)
    buffer, typemap = _whole(array, key, name, writable, device)
    displ = 0 if o_displ is None else operator.index(o_displ)
    offset = displ * typemap.extent
    if displ < 0 or (displ and typemap.extent <= 0) or offset > buffer.nbytes:
        raise ValueError(
            f"{name} has displacement {displ} in elements of extent {typemap.extent}, and {buffer.nbytes} bytes; "
            "pass a larger array or a smaller displacement"
        )
    if blocks == 0:
        count = 0
    elif o_count is None:
        count = _inferred(buffer.nbytes - offset, typemap, name)
        if count % blocks:
            raise ValueError(
                f"{name} has {count} elements, not a multiple of {blocks} blocks; give the count, or make them equal"
            )
    else:
        count = operator.index(o_count) * blocks
    part = _checked(Part(typemap, count, offset, 0), buffer, array, device, name)
    return Typed(buffer, (part,), part.nbytes)


def resolve_blocks(spec: Any, name: str, size: int, *, writable: bool, device: Device) -> Typed:
    """Resolve an argument of any datatype with one block for each of `size` ranks.

    The forms of the argument are those of `vectors.resolve_vector`.

    Raises
    ------
    NotSupported
        If counts or displacements are device arrays.
    """
    array, o_counts, o_displs, key = spec_parts(spec, name, lists=False)
    buffer, typemap = _whole(array, key, name, writable, device)
    if o_counts is None:
        counts = vectors.divide(_inferred(buffer.nbytes, typemap, name), size)
    else:
        counts = vectors.integers(o_counts, f"{name} counts", size, stride=False)
    displs = (
        vectors.packed(counts) if o_displs is None else vectors.integers(o_displs, f"{name} displs", size, stride=True)
    )
    rows = [(typemap, count, displ * typemap.extent) for count, displ in zip(counts, displs, strict=True)]
    return _of_rows(buffer, array, device, rows, name)


def resolve_each(spec: Any, name: str, size: int, *, writable: bool, device: Device) -> Typed:
    """Resolve an argument of Alltoallw, with a datatype for each of `size` blocks.

    Parameters
    ----------
    spec : ``[array, types]``, ``[array, (counts, displs), types]`` or ``[array, counts, displs, types]``
        Displacements are in bytes. Without counts there is one element for each rank, at the array's beginning.
    """
    array, counts, displs, types = _each_parts(spec, name, size)
    # In this call mpi4py does not accept characters as datatypes.
    has_length = hasattr(types, "__len__")
    if has_length and len(types) != size:
        raise ValueError(f"{name} has {len(types)} datatypes, expecting {size}, one for each block")
    if not (has_length and all(isinstance(key, (MPI.Datatype, Datatype)) for key in types)):
        raise TypeError(f"{name} has {types!r} as datatypes; give a list of MPI datatypes, one for each block")
    buffer = resolve([array, MPI.BYTE], name, writable=writable, device=device)
    rows = [(typemap_of(key), count, displ) for key, count, displ in zip(types, counts, displs, strict=True)]
    return _of_rows(buffer, array, device, rows, name)


def _each_parts(spec: Any, name: str, size: int) -> tuple[Any, Sequence[int], Sequence[int], Any]:
    """Split an argument of Alltoallw into array, counts, displacements and datatypes."""
    if not isinstance(spec, (list, tuple)):
        raise TypeError(f"{name} is {spec!r}; expecting a list [array, counts, displs, types]")
    if not 2 <= len(spec) <= 4:
        raise ValueError(f"{name} is a list of {len(spec)} items; give [array, counts, displs, types]")
    array, *between, types = spec
    if not between:
        return array, [1] * size, [0] * size, types
    o_counts, o_displs = between if len(between) == 2 else between[0]
    if array is MPI.BOTTOM and (o_counts is None or o_displs is None):
        raise ValueError(f"{name} is MPI.BOTTOM without counts or displacements; give both")
    counts = vectors.integers(o_counts, f"{name} counts", size, stride=False)
    displs = vectors.integers(o_displs, f"{name} displs", size, stride=False)
    return array, counts, displs, types


def _whole(array: Any, key: Any, name: str, writable: bool, device: Device) -> tuple[Buffer, Typemap]:
    """Return the whole array as bytes, and the typemap of its elements."""
    buffer = resolve([array, MPI.BYTE], name, writable=writable, device=device)
    if key is None:
        key = resolve(array, name, writable=writable, device=device).datatype
    return buffer, typemap_of(key)


def _inferred(nbytes: int, typemap: Typemap, name: str) -> int:
    """Return the number of elements in an array."""
    if nbytes and (typemap.extent <= 0 or nbytes % typemap.extent):
        raise ValueError(
            f"{name} has {nbytes} bytes, not a multiple of the datatype's extent {typemap.extent}; give the count"
        )
    return nbytes // typemap.extent if nbytes else 0


def _of_rows(buffer: Buffer, array: Any, device: Device, rows: list[tuple[Typemap, int, int]], name: str) -> Typed:
    """Return an argument of blocks, given typemap, count and offset of each.

    They are contiguous in packed memory, except for alignment.
    """
    parts: list[Part] = []
    start = 0
    for rank, (typemap, count, offset) in enumerate(rows):
        parts.append(_checked(Part(typemap, count, offset, start), buffer, array, device, f"{name}, block {rank},"))
        start += aligned(parts[-1].nbytes)
    return Typed(buffer, tuple(parts), start)


def _checked(part: Part, buffer: Buffer, array: Any, device: Device, name: str) -> Part:
    """Return a part; raise unless all of it is in the array.

    Extend the buffer if the array's memory reaches further.
    """
    if part.count < 0:
        text = f"{name} has count {part.count}; it cannot be negative"
        raise MPIError(MPI.ERR_COUNT, text) if "block" in name else ValueError(text)
    if not part.nbytes:
        return part
    # Addresses are absolute, so the array that they belong to is unknown.
    if array is MPI.BOTTOM:
        return part
    begin, end = part.bounds
    if end > buffer.nbytes and reaches(array, device, buffer.address, end):
        buffer.count = buffer.reach = end  # bytes
    outside = begin < 0 and not precedes(array, device, buffer.address, -begin)
    if outside or end > buffer.nbytes:
        raise ValueError(
            f"{name} has {buffer.nbytes} bytes, the message takes those from {begin} to {end}; pass a larger array, or "
            "check count, displacement and datatype"
        )
    return part
