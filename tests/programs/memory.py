"""The memory of one buffer: where its elements lie, what the call is given, what was stored beside them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .program import Buffer

if TYPE_CHECKING:
    from .execute import Run

THREADS, ROOM = 2, 1 << 26  # threads of a program on GPUs, and bytes that each stream's arrays may take
POISON = 0xA5
GUARD = 5  # elements before and behind
ENVELOPE = 1024  # bytes of room that a host receive of a device array needs beyond its data
MPI_NAMES = {  # as mpi4py finds them for NumPy's arrays
    "f8": "DOUBLE", "f4": "FLOAT", "i4": "INT", "i8": "LONG", "i2": "SHORT", "u1": "UNSIGNED_CHAR",
    "i1": "SIGNED_CHAR", "c16": "C_DOUBLE_COMPLEX", "u4": "UNSIGNED",
}
LAYOUTS = ("plain", "strided", "pairs", "backwards", "gaps", "before")


def positions(layout: str, count: int) -> np.ndarray:
    """Return where the elements of one derived datatype lie, in elements after the first byte of the datatype."""
    n = np.arange(count)
    match layout:
        case "strided":
            return 2 * n
        case "pairs":  # two, then a gap of three
            return n // 2 * 5 + n % 2
        case "backwards":
            return count - 1 - n
        case "gaps":  # of growing length
            return n + n * (n % 3)  if count < 3 else np.cumsum(1 + n % 3) - 1
        case "before":  # each lies two before the one before it
            return -2 * n
    return n


class Area:
    """A buffer of `count` elements in each of `blocks`, poisoned or filled, with elements on both sides of it."""

    def __init__(self, run: Run, buffer: Buffer, count: int, *, blocks: int = 1, values: Any = None) -> None:
        self.run, self.buffer, self.count, self.blocks = run, buffer, count, blocks
        self.dtype = np.dtype(buffer.dtype)
        one = positions(buffer.layout, count)
        lowest = min(0, int(one.min(initial=0)))
        self.extent = int(one.max(initial=-1)) + 1 - lowest
        self.start = GUARD - lowest
        self.where = (self.start + np.arange(blocks)[:, None] * self.extent + one).reshape(-1)
        self.elements = 2 * GUARD + self.extent * blocks
        self.memory = run.place.memory(buffer.place, self.elements * self.dtype.itemsize)
        initial = np.full(self.elements * self.dtype.itemsize, POISON, "u1").view(self.dtype)
        if values is not None:
            initial[self.where] = values
        self.initial = initial.copy()
        self.put(initial)

    def put(self, array: np.ndarray) -> None:
        """Store all of the memory."""
        self.run.place.store(self.memory, array)

    def all(self) -> np.ndarray:
        """Return a copy of all of the memory."""
        return self.run.place.load(self.memory).view(self.dtype)

    def beside(self) -> None:
        """Store into the elements before and behind the buffer, as a program may at any time."""
        for index in (0, GUARD - 1, self.elements - 1):
            self.run.place.store_at(self.memory, index * self.dtype.itemsize, np.array([index % 100 + 1], self.dtype))
            self.initial[index] = index % 100 + 1

    def argument(self, *, displs: Any = None, counts: Any = None, typed: bool = False) -> Any:
        """Return what a call is given. A count is that of one block; `typed`: each block has a datatype of its own.

        An empty block has no element. Open MPI's `Gather` stands still where one rank has an element of an empty
        datatype, and another has no element.
        """
        basic = getattr(self.run.MPI, MPI_NAMES[self.buffer.dtype])
        if self.buffer.layout != "plain":
            start = self.run.place.part(self.memory, self.start, self.elements, self.dtype)
            return [start, min(self.count, 1), self.run.datatype(self.buffer, self.count)]
        end = self.start + self.count * self.blocks
        exact = self.run.place.part(self.memory, self.start, end, self.dtype)
        if typed:
            return [exact, (counts, [each * self.dtype.itemsize for each in displs]), [basic] * len(counts)]
        if counts is not None:
            return [exact, (counts, displs), basic]
        if self.buffer.named:
            return [exact, self.count, basic]
        return [exact, basic] if self.buffer.place == "host" else exact

    def read(self, received: int | None = None) -> tuple[np.ndarray, int]:
        """Return the first elements, and how many bytes beside the whole buffer are not as they were."""
        found = self.all()
        inside = np.zeros(self.elements, bool)
        inside[self.where] = True
        changed = found[~inside].view("u1") != self.initial[~inside].view("u1")
        return found[self.where[:received]], int(changed.sum())


def pattern(dtype: str, count: int, *keys: int, nan: bool = False) -> np.ndarray:
    """Return small integers that show where they come from, in any datatype; sums of a few of them are exact."""
    seed = sum((key + 1) * prime for key, prime in zip(keys, (7, 31, 101, 401), strict=False))
    values = ((np.arange(count) * 3 + seed) % 23).astype(dtype)
    if nan and np.dtype(dtype).kind == "f":
        values[seed % 3 :: 5] = np.nan
    return values


class Place:
    """Host and device memory where NumPy's arrays are the device's: on the host device, and for mpi4py."""

    def __init__(self, pieces: Any) -> None:
        self.pieces = pieces  # of memory from comm.Alloc

    def memory(self, place: str, nbytes: int) -> Any:
        """Return new memory."""
        if place == "host":
            return bytearray(nbytes)
        return self.pieces(nbytes) if place == "alloc" else self.device(nbytes)

    def device(self, nbytes: int) -> Any:
        """Return new memory of the device."""
        return np.empty(nbytes, "u1")

    def stream(self) -> Any:
        """Return a context in which a thread has a stream of its own."""
        return contextlib.nullcontext()

    def store(self, memory: Any, array: np.ndarray) -> None:
        self.store_at(memory, 0, array)

    def store_at(self, memory: Any, offset: int, array: np.ndarray) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view("u1")
        if isinstance(memory, bytearray):
            np.frombuffer(memory, "u1")[offset : offset + data.size] = data
        else:
            memory[offset : offset + data.size] = self.on_device(data)

    def load(self, memory: Any) -> np.ndarray:
        if isinstance(memory, bytearray):
            return np.frombuffer(bytes(memory), "u1")
        return self.on_host(memory).copy()

    def part(self, memory: Any, begin: int, end: int, dtype: np.dtype) -> Any:
        """Return some elements of memory, as a call takes them."""
        size = dtype.itemsize
        if isinstance(memory, bytearray):
            return memoryview(memory)[begin * size : end * size]
        return memory[begin * size : end * size].view(dtype)

    def on_device(self, array: np.ndarray) -> Any:
        return array

    def on_host(self, array: Any) -> np.ndarray:
        return np.asarray(array)


class Gpu(Place):
    """Device memory that CuPy makes."""

    def __init__(self, pieces: Any) -> None:
        super().__init__(pieces)
        import cupy  # noqa: PLC0415  there is none on the host device

        self._cupy, self._gpu = cupy, cupy.cuda.Device()
        # While kernels wait, CUDA may not return from taking more memory, or from copies behind a kernel that waits.
        self._streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(THREADS)]
        for stream in (*self._streams, cupy.cuda.get_current_stream()):
            with stream:
                cupy.empty(ROOM, "u1")  # CuPy keeps it for the stream

    def device(self, nbytes: int) -> Any:
        return self._cupy.empty(nbytes, "u1")

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        stream = self._streams.pop()
        try:
            with self._gpu, stream:  # threads begin with GPU 0
                yield
        finally:
            self._streams.append(stream)

    def on_device(self, array: np.ndarray) -> Any:
        return self._cupy.asarray(array)

    def on_host(self, array: Any) -> np.ndarray:
        # While the copy waited for its stream, the library's thread could fetch no message (docs/sharp_bits.md).
        self._cupy.cuda.get_current_stream().synchronize()
        return self._cupy.asnumpy(array)
