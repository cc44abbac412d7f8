"""Make typemaps of MPI datatypes: the nests of each constructor's parts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..arrays import datatypes
from ..arrays.datatypes import Datatype
from ..errors import DerivedDatatype, MPIError, NotSupported
from ..system.process import PerProcess
from .nest import Nest, Nests, join, place, repeat


@dataclass(frozen=True, slots=True, eq=False)
class Typemap:
    """A flattened datatype.

    Attributes
    ----------
    nests : tuple of Nest
        The datatype's bytes, in packed order.
    size : int
        Packed bytes. The padding inside MPI's pairs counts, as everywhere in the library.
    extent : int
        Bytes from one element to the next.
    lower, upper : int
        Offset of its first byte, and of the end of its last one.
    element : Datatype or None
        The predefined datatype, if all elements have the same one and the library knows it; otherwise None.
    """

    nests: Nests
    size: int
    extent: int
    lower: int
    upper: int
    element: Datatype | None

    @property
    def is_contiguous(self) -> bool:
        """Whether consecutive elements are contiguous in memory, without gaps."""
        return self.nests[:1] == (Nest(0, 0, self.extent),) and self.size == self.extent


class _Type(NamedTuple):
    """A datatype inside another, as a constructor's argument."""

    nests: Nests
    size: int
    extent: int
    element: Datatype | None


_KEYVAL = PerProcess(MPI.Datatype.Create_keyval, lasting=True)


def typemap_of(key: Any) -> Typemap:
    """Return the typemap of an MPI datatype, or of anything that names one.

    It is cached as an attribute of the datatype.

    Raises
    ------
    TypeError, KeyError, BufferError, MPI.Exception
        Raised by `datatypes.of`. Class ERR_TYPE, if a derived datatype has not been committed.
    NotSupported
        The datatype was made by a constructor that the library cannot flatten.
    """
    known = known_typemap(key) if isinstance(key, MPI.Datatype) else None
    if known is not None:
        return known
    try:
        return _basic(datatypes.of(key))
    except DerivedDatatype:
        return _flattened(key)


def known_typemap(datatype: MPI.Datatype) -> Typemap | None:
    """Return the cached typemap of a derived datatype; None if there is none."""
    # DATATYPE_NULL has no attributes.
    if not datatype or _KEYVAL.made is None:
        return None
    known: Any = datatype.Get_attr(_KEYVAL.get())
    return known if isinstance(known, Typemap) else None


@functools.cache
def _basic(datatype: Datatype) -> Typemap:
    itemsize = datatype.itemsize
    return Typemap((Nest(0, 0, itemsize),), itemsize, itemsize, 0, itemsize, datatype)


def _flattened(datatype: MPI.Datatype) -> Typemap:
    """Return the typemap of a derived datatype, and cache it as an attribute.

    Handles cannot be keys of a cache: after Free another datatype may have the same one.
    """
    _check_committed(datatype)
    nests, size, extent, element = _flatten(datatype)
    lower, length = datatype.Get_true_extent()
    typemap = Typemap(nests, size, extent, lower, lower + length, element)
    datatype.Set_attr(_KEYVAL.get(), typemap)
    return typemap


_NEVER_READ = bytes(1)  # data of a message that is never started


def _check_committed(datatype: MPI.Datatype) -> None:
    """Raise the error that MPI defines for a datatype that has not been committed.

    MPI has no query for this. But it rejects such a datatype when a persistent send is created, which is then never
    started. The message is not empty, because MPICH does not check the datatype of empty messages.
    """
    try:
        MPI.Comm.Send_init(MPI.COMM_SELF, [_NEVER_READ, 1, datatype], 0).Free()
    except MPI.Exception as error:
        if error.Get_error_class() != MPI.ERR_TYPE:
            raise
        raise MPIError(MPI.ERR_TYPE, "the datatype is not committed; call its Commit before communication") from None


def _flatten(datatype: MPI.Datatype) -> _Type:
    extent = int(datatype.Get_extent()[1])
    if datatype.is_predefined:
        return _Type((Nest(0, 0, extent),), extent, extent, _element(datatype))
    base, combiner, parameters = datatype.decode()
    constructor = _CONSTRUCTORS.get(combiner)
    if constructor is None:
        raise NotSupported(f"datatypes made by {combiner} do not work on device arrays; make it of known parts")
    bases = parameters.pop("datatypes") if combiner == "STRUCT" else [base]
    parts = [_flatten_and_free(each) for each in bases]
    nests = constructor(parts, **parameters)
    size = sum(nest.nbytes * math.prod(dim[0] for dim in nest.dims) for nest in nests)
    lengths = parameters["blocklengths"] if combiner == "STRUCT" else [1]
    elements = {part.element for part, length in zip(parts, lengths, strict=True) if length and part.size}
    return _Type(nests, size, extent, elements.pop() if len(elements) == 1 else None)


def _element(datatype: MPI.Datatype) -> Datatype | None:
    """Return the row of a predefined datatype; None if the table has none."""
    try:
        return datatypes.of(datatype)
    except (KeyError, TypeError, ValueError):
        return None


def _flatten_and_free(datatype: MPI.Datatype) -> _Type:
    """Flatten a datatype that `decode` has returned, and free it.

    `decode` returns new handles of derived datatypes.
    """
    try:
        return _flatten(datatype)
    finally:
        if not datatype.is_predefined:
            datatype.Free()


# One function for each MPI constructor; it makes a datatype's nests from its parts. Functions whose names begin with h
# take displacements and strides in bytes.


def _hvector(base: list[_Type], count: int, blocklength: int, stride: int) -> Nests:
    nests, size, extent, _ = base[0]
    return repeat(repeat(nests, size, blocklength, extent), size * blocklength, count, stride)


def _indexed(base: list[_Type], blocklengths: list[int], displacements: list[int]) -> Nests:
    return _hindexed(base, blocklengths, np.asarray(displacements, np.int64) * base[0].extent)


def _hindexed(base: list[_Type], blocklengths: list[int], displacements: Any) -> Nests:
    nests, size, extent, _ = base[0]
    return place(nests, size, extent, blocklengths, displacements)


def _indexed_block(base: list[_Type], blocklength: int, displacements: list[int]) -> Nests:
    return _indexed(base, [blocklength] * len(displacements), displacements)


def _hindexed_block(base: list[_Type], blocklength: int, displacements: list[int]) -> Nests:
    return _hindexed(base, [blocklength] * len(displacements), displacements)


def _struct(base: list[_Type], blocklengths: list[int], displacements: list[int]) -> Nests:
    nests: list[Nest] = []
    start = 0
    for (inner, size, extent, _), length, displ in zip(base, blocklengths, displacements, strict=True):
        nests += (nest.at(displ, start) for nest in repeat(inner, size, length, extent))
        start += size * length
    return join(nests)


def _subarray(base: list[_Type], sizes: list[int], subsizes: list[int], starts: list[int], order: int) -> Nests:
    runs = [[(start, length)] for start, length in zip(starts, subsizes, strict=True)]
    return _grid(base[0], sizes, runs, order)


def _darray(
    base: list[_Type],
    size: int,
    rank: int,
    gsizes: list[int],
    distribs: list[int],
    dargs: list[int],
    psizes: list[int],
    order: int,
) -> Nests:
    # MPI orders the grid of processes in C order, whatever the array's order is.
    coordinates = np.unravel_index(rank, psizes)
    owned = map(_distributed, gsizes, distribs, dargs, psizes, map(int, coordinates))
    return _grid(base[0], gsizes, list(owned), order)


def _distributed(gsize: int, distrib: int, darg: int, psize: int, place: int) -> list[tuple[int, int]]:
    """Return the part of one dimension that a process owns, as runs (start, length)."""
    if distrib == MPI.DISTRIBUTE_NONE:
        return [(0, gsize)]
    default = -(-gsize // psize) if distrib == MPI.DISTRIBUTE_BLOCK else 1
    block = default if darg == MPI.DISTRIBUTE_DFLT_DARG else darg
    first = range(place * block, gsize, gsize if distrib == MPI.DISTRIBUTE_BLOCK else psize * block)
    return [(start, min(block, gsize - start)) for start in first]


def _grid(base: _Type, sizes: list[int], runs: list[list[tuple[int, int]]], order: int) -> Nests:
    """Return the elements that `runs` choose in each dimension of an array.

    The array has the shape `sizes`; a run is (start, length).
    """
    nests, size, stride, _ = base
    dimensions = list(zip(sizes, runs, strict=True))
    for extent, chosen in dimensions if order == MPI.ORDER_FORTRAN else reversed(dimensions):
        lengths = [length for _, length in chosen]
        nests = place(nests, size, stride, lengths, [start * stride for start, _ in chosen])
        size, stride = size * sum(lengths), stride * extent
    return nests


_CONSTRUCTORS: dict[str, Callable[..., Nests]] = {
    "DUP": lambda base, **_: base[0].nests,
    "RESIZED": lambda base, **_: base[0].nests,
    "CONTIGUOUS": lambda base, count: _hvector(base, count, 1, base[0].extent),
    "VECTOR": lambda base, count, blocklength, stride: _hvector(base, count, blocklength, stride * base[0].extent),
    "HVECTOR": _hvector,
    "INDEXED": _indexed,
    "HINDEXED": _hindexed,
    "INDEXED_BLOCK": _indexed_block,
    "HINDEXED_BLOCK": _hindexed_block,
    "STRUCT": _struct,
    "SUBARRAY": _subarray,
    "DARRAY": _darray,
}
