"""Pack and unpack: parts of an array's memory, each of some datatype, as launches of the kernels of packing.cu."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..backends import Device, Function, Upload
from ..errors import NotSupported
from ..launch import kernels
from .nest import MOST_DIMS, MOST_NESTS, Nest, Runs, cut, repeat
from .typemap import Typemap

PACK, UNPACK = "pack", "unpack"
HEADER = struct.Struct("=QQQQ")  # DatatypeArgs up to its nests: memory, packed, tiles, nests
NEST = struct.Struct("=qQQQQQIIII" + "Qqq" * MOST_DIMS)
RUNS_OFFSET = 16  # of Nest::runs
THREADS = 256  # kPackThreads
WORDS_AT_ONCE = 4  # kWordsAtOnce
WIDEST = 16  # bytes of a word
BLOCKS_A_CHANNEL = 16  # enough of them to fill a GPU
MOST_TABLES_NBYTES = 64 << 20  # of tables in device memory before they are forgotten


class Part(NamedTuple):
    """Some elements of one datatype in an array, and their place in packed memory; in bytes."""

    typemap: Typemap
    elements: int
    offset: int  # of the first element from the array's beginning
    start: int

    @property
    def nbytes(self) -> int:
        """When packed."""
        return self.elements * self.typemap.size


class Launch(NamedTuple):
    """A launch, but for the stream."""

    function: Function
    grid: int
    threads: int
    parameters: bytes


class Batch(NamedTuple):
    """Nests of one launch, as the kernel is told of them."""

    nests: bytes
    number: int
    tiles: int
    runs: tuple[tuple[int, Runs], ...]  # of the nests that have some, by number


class Packing:
    """The kernels and the tables of a device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._functions = kernels.load_alone(device, "derived/packing.cu")
        self._threads = min(device.threads, THREADS)
        self._tables: dict[bytes, Upload] = {}
        self._kept: dict[bytes, Upload] = {}  # of captured launches
        self._nbytes = 0

    def launches(
        self, kernel: str, parts: tuple[Part, ...], memory: int, packed: int, stream: Any, limit: int | None = None
    ) -> Iterator[Launch]:
        """What packs, or unpacks, some parts.

        Parameters
        ----------
        kernel : {PACK, UNPACK}
        parts : tuple of Part
        memory, packed : int
            Addresses of the array and of packed memory.
        stream
            Where they will be launched.
        limit : int, optional
            Packed bytes from the first on that are moved; of one part alone.

        Raises
        ------
        NotSupported
            If the stream is being captured and a table has to be uploaded.
        """
        self._make_room()
        for batch in _batches(parts, memory % WIDEST | packed % WIDEST, self._threads, limit):
            nests = bytearray(batch.nests)
            for number, runs in batch.runs:
                struct.pack_into("=Q", nests, number * NEST.size + RUNS_OFFSET, self._table(runs, stream))
            header = HEADER.pack(memory, packed, batch.tiles, batch.number)
            grid = min(batch.tiles, BLOCKS_A_CHANNEL * self._device.max_channels)
            yield Launch(self._functions[kernel], grid, self._threads, header + nests)

    def _table(self, runs: Runs, stream: Any) -> int:
        """The address of a table in device memory."""
        capturing = self._device.is_capturing(stream)
        if runs.key not in self._tables:
            if runs.key in self._kept:
                return self._kept[runs.key].address
            if capturing:
                raise NotSupported("an irregular datatype in a captured graph: call it once before")
            self._tables[runs.key] = self._device.upload(runs.table.tobytes())
            self._nbytes += runs.table.nbytes
        table = self._tables[runs.key]
        if capturing:
            self._kept[runs.key] = table
        return table.address

    def _make_room(self) -> None:
        """Forget the tables if they have become many; before any is looked up for a launch."""
        if self._nbytes > MOST_TABLES_NBYTES:
            self._device.synchronize()  # kernels may be reading them
            self._tables.clear()
            self._nbytes = 0


_packings: dict[str, Packing] = {}  # of this process, by the name of the device


def packing_of(device: Device) -> Packing:
    """The process' own of a device; made at the first use."""
    if device.name not in _packings:
        _packings[device.name] = Packing(device)
    return _packings[device.name]


@functools.lru_cache(64)
def _batches(parts: tuple[Part, ...], misalignment: int, threads: int, limit: int | None) -> tuple[Batch, ...]:
    nests = [nest.at(part.offset, part.start) for part in parts for nest in _nests(part, limit)]
    groups = [nests[first : first + MOST_NESTS] for first in range(0, len(nests), MOST_NESTS)]
    return tuple(_batch(group, misalignment, threads) for group in groups)


def _nests(part: Part, limit: int | None) -> tuple[Nest, ...]:
    typemap = part.typemap
    nests = repeat(typemap.nests, typemap.size, part.elements, typemap.extent)
    return nests if limit is None or limit >= part.nbytes else cut(nests, limit) if limit and nests else ()


def _batch(nests: list[Nest], misalignment: int, threads: int) -> Batch:
    tile, packed, runs = 0, bytearray(), []
    for number, nest in enumerate(nests):
        width = _width(nest, misalignment)
        words = nest.nbytes // width * math.prod(count for count, _, _ in nest.dims)
        dims = [value for dim in reversed(nest.dims) for value in dim]
        packed += NEST.pack(
            *(nest.offset, nest.start, 0, tile, words, nest.nbytes // width),
            *(len(nest.runs.table) if nest.runs else 0, len(nest.dims), width, 0),
            *(dims + [0] * (3 * MOST_DIMS - len(dims))),
        )
        tile += -(-words // (threads * WORDS_AT_ONCE))
        if nest.runs:
            runs.append((number, nest.runs))
    packed += bytes(NEST.size * (MOST_NESTS - len(nests)))
    return Batch(bytes(packed), len(nests), tile, tuple(runs))


def _width(nest: Nest, misalignment: int) -> int:
    """The widest word, in bytes, that every address and length in a nest is a multiple of."""
    bits = WIDEST | misalignment | nest.offset | nest.start | nest.nbytes
    for _, stride, packed_stride in nest.dims:
        bits |= stride | packed_stride
    if nest.runs:
        bits |= nest.runs.grain
    return bits & -bits
