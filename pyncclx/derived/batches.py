"""Batches of strided loops (nests), one batch for each packing launch.

The structs have twins in cuda/derived/nests.cuh.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from ..memory.cstruct import I64, U32, U64, CStruct, offsets_of, sizeof
from .nest import MOST_DIMS, MOST_NESTS, Nest, Runs, cut, repeat
from .typemap import Typemap

WORDS_AT_ONCE = 4  # kWordsAtOnce
WIDEST_NBYTES = 16  # longest word


@dataclass(frozen=True, slots=True)
class Part:
    """Elements of one datatype in an array, and their place in packed memory."""

    typemap: Typemap
    count: int
    offset: int  # first element in the array, in bytes
    start: int  # first element in packed memory, in bytes

    def at(self, offset: int) -> Part:
        """Return the part moved by `offset` bytes in the array."""
        return replace(self, offset=self.offset + offset) if offset else self

    @property
    def nbytes(self) -> int:
        """Packed length."""
        return self.count * self.typemap.size

    @property
    def bounds(self) -> tuple[int, int]:
        """Offset in the array of the first byte, and of the end of the last one."""
        last = max(self.count - 1, 0) * self.typemap.extent
        begin, end = self.offset + self.typemap.lower, self.offset + self.typemap.upper
        return (begin + min(last, 0), end + max(last, 0)) if self.nbytes else (self.offset, self.offset)


@dataclass(frozen=True, slots=True)
class Batch:
    """The nests of one launch."""

    nests: bytes  # MOST_NESTS of `NestStruct`, without the addresses of tables
    count: int
    tiles: int
    tables: tuple[tuple[int, Runs], ...]  # offset in `nests` for a table's address, and the table's runs
    width: int  # bytes of the shortest word


@dataclass(slots=True, kw_only=True)
class BatchStruct(CStruct):
    """`DatatypeArgs` up to its nests."""

    memory: U64  # address of the array
    packed: U64  # address
    tiles: U64
    nests: U64


@dataclass(slots=True, kw_only=True)
class NestStruct(CStruct):
    """`Nest` of a `DatatypeArgs`."""

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
def batches_of(
    parts: tuple[Part, ...], misalignment: int, threads: int, limit: int | None, widest: int = WIDEST_NBYTES
) -> tuple[Batch, ...]:
    """Return the batches that move parts between an array and packed memory.

    Parameters
    ----------
    parts : tuple of Part
    misalignment : int
        Bitwise or of the addresses of the array and of packed memory, modulo `WIDEST_NBYTES`.
    threads : int
        Threads of a block.
    limit : int or None
        Move only the first `limit` packed bytes, of a single part; None: all.
    widest : int
        Bytes of the longest word: a power of 2.
    """
    nests = [nest.at(part.offset, part.start) for part in parts for nest in _nests(part, limit)]
    groups = [nests[first : first + MOST_NESTS] for first in range(0, len(nests), MOST_NESTS)]
    return tuple(_batch(group, misalignment | widest, threads * WORDS_AT_ONCE) for group in groups)


def _nests(part: Part, limit: int | None) -> tuple[Nest, ...]:
    typemap = part.typemap
    nests = repeat(typemap.nests, typemap.size, part.count, typemap.extent)
    if limit is None or limit >= part.nbytes:
        return nests
    return cut(nests, limit) if limit and nests else ()


def _batch(nests: list[Nest], alignment: int, tile_words: int) -> Batch:
    tiles, packed, tables, narrowest = 0, bytearray(), [], WIDEST_NBYTES
    for nest in nests:
        width = _width(nest, alignment)
        narrowest = min(narrowest, width)
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
    return Batch(bytes(packed).ljust(room, b"\0"), len(nests), tiles, tuple(tables), narrowest)


def _width(nest: Nest, alignment: int) -> int:
    """Return the longest word, in bytes, that divides a nest's addresses and lengths."""
    bits = alignment | nest.offset | nest.start | nest.nbytes
    for _, stride, packed_stride in nest.dims:
        bits |= stride | packed_stride
    if nest.runs:
        bits |= nest.runs.alignment
    return bits & -bits
