"""Parts of an array in batches of nests, one for each launch that packs (twins in cuda/derived/packing.cu)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ..memory.cstruct import I64, U32, U64, CStruct, offsets_of, sizeof
from .nest import MOST_DIMS, MOST_NESTS, Nest, Runs, cut, repeat
from .typemap import Typemap

WORDS_AT_ONCE = 4  # kWordsAtOnce
WIDEST_NBYTES = 16  # of a word


@dataclass(frozen=True, slots=True)
class Part:
    """Some elements of one datatype in an array, and their place in packed memory; in bytes."""

    typemap: Typemap
    count: int
    offset: int  # of the first element from the array's beginning
    start: int

    @property
    def nbytes(self) -> int:
        """When packed."""
        return self.count * self.typemap.size


@dataclass(frozen=True, slots=True)
class Batch:
    """The nests of one launch."""

    nests: bytes  # as many of `NestStruct` as a launch has room for, without the addresses of tables
    count: int
    tiles: int
    tables: tuple[tuple[int, Runs], ...]  # offset in `nests` where an address belongs, and what the table holds


@dataclass(slots=True, kw_only=True)
class BatchStruct(CStruct):
    """`DatatypeArgs` up to its nests."""

    memory: U64  # address of the array
    packed: U64  # address
    tiles: U64
    nests: U64


@dataclass(slots=True, kw_only=True)
class NestStruct(CStruct):
    """`Nest`."""

    offset: I64
    start: U64
    runs: U64  # address of a table; 0: blocks are contiguous
    first_tile: U64
    words: U64
    block_words: U64
    run_count: U32
    dims: U32
    width: U32
    unused: U32 = 0
    dim: Annotated[Sequence[int], f"{3 * MOST_DIMS}q"]


@functools.lru_cache(64)
def batches_of(parts: tuple[Part, ...], misalignment: int, threads: int, limit: int | None) -> tuple[Batch, ...]:
    """The batches that move some parts.

    Parameters
    ----------
    parts : tuple of Part
    misalignment : int
        Bits of the addresses of the array and of packed memory below `WIDEST_NBYTES`.
    threads : int
        Of a block.
    limit : int or None
        Packed bytes from the first on that are moved, of one part alone; None: all.
    """
    nests = [nest.at(part.offset, part.start) for part in parts for nest in _nests(part, limit)]
    groups = [nests[first : first + MOST_NESTS] for first in range(0, len(nests), MOST_NESTS)]
    return tuple(_batch(group, misalignment, threads * WORDS_AT_ONCE) for group in groups)


def _nests(part: Part, limit: int | None) -> tuple[Nest, ...]:
    typemap = part.typemap
    nests = repeat(typemap.nests, typemap.size, part.count, typemap.extent)
    if limit is None or limit >= part.nbytes:
        return nests
    return cut(nests, limit) if limit and nests else ()


def _batch(nests: list[Nest], misalignment: int, tile_words: int) -> Batch:
    tiles, packed, tables = 0, bytearray(), []
    for nest in nests:
        width = _width(nest, misalignment)
        words = nest.nbytes // width * math.prod(count for count, _, _ in nest.dims)
        if nest.runs:
            tables.append((len(packed) + offsets_of(NestStruct)["runs"], nest.runs))
        packed += NestStruct(
            offset=nest.offset,
            start=nest.start,
            runs=0,
            first_tile=tiles,
            words=words,
            block_words=nest.nbytes // width,
            run_count=len(nest.runs.table) if nest.runs else 0,
            dims=len(nest.dims),
            width=width,
            dim=[value for dim in reversed(nest.dims) for value in dim],
        ).pack()
        tiles += -(-words // tile_words)
    room = MOST_NESTS * sizeof(NestStruct)
    return Batch(bytes(packed).ljust(room, b"\0"), len(nests), tiles, tuple(tables))


def _width(nest: Nest, misalignment: int) -> int:
    """The widest word, in bytes, that every address and length in a nest is a multiple of."""
    bits = WIDEST_NBYTES | misalignment | nest.offset | nest.start | nest.nbytes
    for _, stride, packed_stride in nest.dims:
        bits |= stride | packed_stride
    if nest.runs:
        bits |= nest.runs.grain
    return bits & -bits
