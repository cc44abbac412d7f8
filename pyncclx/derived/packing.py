"""Launches that pack and unpack parts of an array (cuda/derived/packing.cu)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..backends import Device, Function, Upload
from ..errors import NotSupported
from ..launch import kernels
from ..memory.retired import RETIRED
from ..system.process import held
from .batches import WIDEST_NBYTES, Batch, BatchStruct, Part, batches_of
from .nest import Runs

PACK, UNPACK = "pack", "unpack"
MOST_THREADS = 256  # kPackThreads
BLOCKS_PER_CHANNEL = 16  # fills a GPU; not measured
MOST_TABLES_NBYTES = 64 << 20  # tables in device memory that are cached


class Launch(NamedTuple):
    """A launch without its stream."""

    function: Function
    grid: int
    threads: int
    parameters: bytes


class Packing:
    """The packing kernels of a device, and its tables of irregular datatypes."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._functions = kernels.load_alone(device, "derived/packing.cu")
        self._threads = min(device.threads, MOST_THREADS)
        self._tables: dict[bytes, Upload] = {}
        self._kept: dict[bytes, Upload] = {}  # tables of captured launches
        self._nbytes = 0

    def launches(
        self, kernel: str, parts: tuple[Part, ...], memory: int, packed: int, stream: Any, limit: int | None = None
    ) -> Iterator[Launch]:
        """Yield the launches that pack or unpack parts.

        Parameters
        ----------
        kernel : {PACK, UNPACK}
        parts : tuple of Part
        memory, packed : int
            Addresses of the array and of packed memory.
        stream
            Stream of the launches.
        limit : int, optional
            Move only the first `limit` packed bytes; for a single part.

        Raises
        ------
        NotSupported
            If the stream is being captured and a table has to be uploaded.
        """
        batches = self._batches(parts, memory | packed, limit)
        yield from self._launches(self._functions[kernel], batches, memory, packed, stream)

    def launches_by_element(
        self, function: Function, parts: tuple[Part, ...], memory: int, packed: int, stream: Any, nbytes: int
    ) -> Iterator[Launch]:
        """Yield the launches of another kernel, whose words are elements of an array.

        The array must be aligned to its elements, of `nbytes` bytes. The kernel's parameter struct must begin with that
        of the packing kernels.
        """
        return self._launches(function, self._batches(parts, memory, None, nbytes), memory, packed, stream)

    def is_aligned(self, parts: tuple[Part, ...], memory: int, nbytes: int) -> bool:
        """Return whether the addresses of all elements are multiples of their length."""
        return all(batch.width == nbytes for batch in self._batches(parts, memory, None, nbytes))

    def _launches(
        self, function: Function, batches: tuple[Batch, ...], memory: int, packed: int, stream: Any
    ) -> Iterator[Launch]:
        self._make_room(stream)
        for batch in batches:
            nests = bytearray(batch.nests)
            for offset, runs in batch.tables:
                struct.pack_into("=Q", nests, offset, self._table(runs, stream))
            head = BatchStruct(memory=memory, packed=packed, tiles=batch.tiles, nests=batch.count)
            grid = min(batch.tiles, BLOCKS_PER_CHANNEL * self._device.max_channels)
            yield Launch(function, grid, self._threads, head.pack() + nests)

    def has_tables(self, parts: tuple[Part, ...], memory: int, packed: int) -> bool:
        """Return whether packing the parts reads tables in device memory.

        The addresses of tables may change.
        """
        return any(batch.tables for batch in self._batches(parts, memory | packed, None))

    def _batches(
        self, parts: tuple[Part, ...], addresses: int, limit: int | None, widest: int = WIDEST_NBYTES
    ) -> tuple[Batch, ...]:
        """Return the batches for addresses, given as their bitwise or."""
        return batches_of(parts, addresses % WIDEST_NBYTES, self._threads, limit, widest)

    def _table(self, runs: Runs, stream: Any) -> int:
        """Return the address of a table in device memory; upload it if needed."""
        capturing = self._device.is_capturing(stream)
        if runs.key not in self._tables:
            if runs.key in self._kept:
                return self._kept[runs.key].address
            if capturing:
                raise NotSupported("an irregular datatype in a captured graph: make the call once before the capture")
            self._tables[runs.key] = self._device.upload(runs.table.tobytes())
            self._nbytes += runs.table.nbytes
        table = self._tables[runs.key]
        if capturing:
            self._kept[runs.key] = table
        return table.address

    def _make_room(self, stream: Any) -> None:
        """Free all tables if they take too much memory; call before looking up any.

        During a capture, all tables are kept.
        """
        if self._nbytes > MOST_TABLES_NBYTES and not self._device.is_capturing(stream):
            # Kernels may still be reading the tables, so the tables are only retired here.
            RETIRED.get().add(self._tables.clear)
            RETIRED.get().free()
            self._tables, self._nbytes = {}, 0


_packings: dict[str, Packing] = held({})  # key: name of the device


def packing_of(device: Device) -> Packing:
    """Return this process's `Packing` of a device; make it at the first use."""
    if device.name not in _packings:
        _packings[device.name] = Packing(device)
    return _packings[device.name]
