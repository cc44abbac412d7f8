"""Pack and unpack parts of an array's memory: launches of the kernels of cuda/derived/packing.cu."""

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
BLOCKS_PER_CHANNEL = 16  # enough of them to fill a GPU; not measured
MOST_TABLES_NBYTES = 64 << 20  # of tables in device memory before they are forgotten


class Launch(NamedTuple):
    """A launch, but for the stream."""

    function: Function
    grid: int
    threads: int
    parameters: bytes


class Packing:
    """The kernels of a device, and the tables of irregular datatypes that its memory holds."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._functions = kernels.load_alone(device, "derived/packing.cu")
        self._threads = min(device.threads, MOST_THREADS)
        self._tables: dict[bytes, Upload] = {}
        self._kept: dict[bytes, Upload] = {}  # of captured launches
        self._nbytes = 0

    def launches(
        self, kernel: str, parts: tuple[Part, ...], memory: int, packed: int, stream: Any, limit: int | None = None
    ) -> Iterator[Launch]:
        """The launches that pack, or unpack, some parts.

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
        self._make_room(stream)
        for batch in self._batches(parts, memory, packed, limit):
            nests = bytearray(batch.nests)
            for offset, runs in batch.tables:
                struct.pack_into("=Q", nests, offset, self._table(runs, stream))
            head = BatchStruct(memory=memory, packed=packed, tiles=batch.tiles, nests=batch.count)
            grid = min(batch.tiles, BLOCKS_PER_CHANNEL * self._device.max_channels)
            yield Launch(self._functions[kernel], grid, self._threads, head.pack() + nests)

    def has_tables(self, parts: tuple[Part, ...], memory: int, packed: int) -> bool:
        """Whether launches that pack all of some parts read tables, which may be elsewhere the next time."""
        return any(batch.tables for batch in self._batches(parts, memory, packed))

    def _batches(
        self, parts: tuple[Part, ...], memory: int, packed: int, limit: int | None = None
    ) -> tuple[Batch, ...]:
        return batches_of(parts, memory % WIDEST_NBYTES | packed % WIDEST_NBYTES, self._threads, limit)

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

    def _make_room(self, stream: Any) -> None:
        """Forget the tables if they have become many; before any is looked up for a launch, but not in a capture."""
        if self._nbytes > MOST_TABLES_NBYTES and not self._device.is_capturing(stream):
            RETIRED.get().add(self._tables.clear)  # kernels may be reading them
            RETIRED.get().free()
            self._tables, self._nbytes = {}, 0


_packings: dict[str, Packing] = held({})  # of this process, by the name of the device


def packing_of(device: Device) -> Packing:
    """The process' own of a device; made at the first use."""
    if device.name not in _packings:
        _packings[device.name] = Packing(device)
    return _packings[device.name]
