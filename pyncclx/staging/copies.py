"""Copy device arrays to host memory for mpi4py, and results back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from .. import backends
from ..arrays import datatypes
from ..arrays.buffers import Buffer
from ..arrays.pointers import precedes
from ..arrays.readers import reader_of
from ..team.streams import ANY_CALLER, Caller, stream_for, wait_for_program

Bytes = npt.NDArray[np.uint8]


def _mover() -> Any:
    """Return the module that allocates host memory, and copies to and from it."""
    from . import pinned  # noqa: PLC0415  needs CuPy, which may be missing on hosts without GPUs

    return pinned


class HostArray:
    """A host array with a device array's type and length, to pass to mpi4py."""

    def __init__(self, host: Bytes, typestr: str, itemsize: int, readonly: bool) -> None:
        self.host = host
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (host.nbytes // itemsize,),
            "typestr": typestr,
            "data": (MPI.Get_address(host), readonly),
        }


class Copy:
    """A copy of a device array in host memory.

    Only bytes that MPI has changed are copied back, because other operations may write to the bytes between them: in
    the gaps of a derived datatype or between blocks.

    Parameters
    ----------
    array : device array
    name : str
        Operation and argument for error messages, such as ``"Gatherv: recvbuf"``.
    written : bool
        Whether MPI may write to it.
    whole : bool
        Whether the argument is the array alone, so that all of the array belongs to the operation.
    span : tuple of int
        Begin and end of the bytes that the operation may access; they may lie before or beyond the array.
    caller : Caller
        Chooses streams.
    """

    def __init__(
        self,
        array: Any,
        name: str,
        *,
        written: bool,
        whole: bool,
        span: tuple[int, int] = (0, 0),
        caller: Caller = ANY_CALLER,
    ) -> None:
        device, read = backends.select(), reader_of(array)
        if read is None:
            raise TypeError(f"{name} is {array!r}; expecting an array")
        self._mover, self._device, self._whole, self._caller = _mover(), device, whole, caller
        self.address, self.nbytes, key, shape, readonly, stream, owner = read(array, name, device)
        self._source = Buffer(self.address, self.nbytes, datatypes.TABLE["uint8"], shape, readonly, stream, owner)
        self.written = written and not readonly
        self._begin = min(span[0], 0)  # where `host` begins, relative to the array
        # The span may reach beyond the array into other allocations.
        self._reaches = self._begin < 0 or span[1] > self.nbytes
        if self._reaches:
            self._reach(array, name, span[1])
        else:
            self._memory = self.host = self._mover.allocate(self.nbytes)
        self._before: Bytes | None = None
        self._typestr, self._itemsize = _element(key)
        self._readonly = readonly

    def _reach(self, array: Any, name: str, end: int) -> None:
        """Allocate host memory for all bytes that MPI may access.

        Beyond the array, only bytes in device allocations are copied.
        """
        if self._begin and not precedes(array, self._device, self.address, -self._begin):
            raise ValueError(f"{name}: the datatype reaches {-self._begin} bytes before the array's memory")
        length = max(end, self.nbytes) - self._begin
        self.address += self._begin
        self.nbytes = self._device.room(self.address, length)
        self._source.address, self._source.count = self.address, self.nbytes
        self._memory = self._mover.allocate(length)
        self.host = self._memory[: self.nbytes]

    def download(self, part: slice = slice(None)) -> None:
        """Copy a part of the array to the host, after its producer's enqueued work."""
        host = self.host[part]
        if host.nbytes:
            stream = stream_for(self._device, (self._source,), self._caller)
            address = self.address + (part.start or 0)
            for nbytes in self._device.pieces(address, host.nbytes) if self._reaches else [host.nbytes]:
                self._mover.download(address, host[:nbytes], stream)
                host, address = host[nbytes:], address + nbytes
        self._before = self.host.copy() if self.written and not self._whole else None

    def upload(self) -> None:
        """Copy the bytes that MPI wrote to the device, and wait for the copy."""
        if not self.written or not self.host.nbytes:
            return
        stream = self._stream_now()
        if self._before is None:
            self._mover.upload(self.address, self.host, stream)
            return
        changed = np.flatnonzero(self.host != self._before)
        if changed.size:
            first, last = int(changed[0]), int(changed[-1]) + 1
            part = self.host[first:last]
            if changed.size == last - first:
                self._mover.upload(self.address + first, part, stream)
            else:
                mask = part != self._before[first:last]
                self._mover.upload_where(self.address + first, part, mask, stream)

    def _stream_now(self) -> Any:
        """Return the program's stream, or one that waits for its work on the array.

        During a capture, return one of pyncclx's own streams: the copy must complete before the call returns, outside
        the graph.
        """
        if self._caller.stream is None and self._caller.blocking != "host":
            stream = self._device.current_stream()
        else:
            stream = stream_for(self._device, (self._source,), self._caller)
        return self._device.private_stream() if self._device.is_capturing(stream) else stream

    @property
    def is_of_numbers(self) -> bool:
        """Whether MPI can compute with the elements."""
        return self._typestr[1] in "biufc"

    def partition(self, index: int, partitions: int) -> slice:
        """Return the bytes of a partition; the whole array for a derived datatype."""
        nbytes, rest = divmod(self.host.nbytes, partitions)
        if rest or not self._whole:
            return slice(None)
        return slice(index * nbytes, (index + 1) * nbytes)

    def host_array(self) -> HostArray:
        """Return the host array to pass to mpi4py."""
        return HostArray(self._memory[-self._begin :], self._typestr, self._itemsize, self._readonly)


class PublicCopy(Copy):
    """The public copy of a window's device array, for MPI's separate memory model.

    MPI exposes the public copy, in pinned host memory; the device array is the private copy. In that model a rank must
    not store to its window between two synchronizations while other ranks update it. So a byte that differs from its
    value at the last synchronization has changed on one side only. Each direction copies only the bytes that its side
    has changed, because other ranks may be updating the public copy. `host` is a snapshot of one side.

    Parameters
    ----------
    array : device array
    name : str
        For messages.
    caller : Caller
        Chooses streams.

    Attributes
    ----------
    public : ndarray of bytes
        The memory of MPI's window.

    Raises
    ------
    BufferError
        If the array is read-only.
    """

    def __init__(self, array: Any, name: str, caller: Caller) -> None:
        super().__init__(array, name, written=True, whole=False, caller=caller)
        if self._readonly:
            raise BufferError(f"{name} is read-only")
        self.download()
        self.public = self._mover.allocate(self.nbytes)
        self.public[...] = self.host

    def give(self) -> None:
        """Copy the device's changes to the public copy, so that other ranks see them."""
        before = self._before
        wait_for_program(self._device, self._caller)  # the program may have stored on any of its streams
        self.download()  # sets `_before` to the device's bytes
        np.copyto(self.public, self.host, where=self.host != before)

    def take(self) -> None:
        """Copy other ranks' changes to the device, and wait for the copy."""
        self.host[...] = self.public
        self.upload()
        self._before = self.host.copy()

    def array(self) -> Any:
        """Return the device array's memory as an array of bytes."""
        return self._device.array(self, (self.nbytes,), "u1")


def copy_in(copies: Iterable[Copy]) -> None:
    """Copy the device arrays to the host."""
    for copy in copies:
        copy.download()


def copy_back(copies: Iterable[Copy]) -> None:
    """Copy the bytes that MPI wrote to the device, and wait for the copies."""
    for copy in copies:
        copy.upload()


def _element(key: Any) -> tuple[str, int]:
    """Return an element's type in the array interface (or void), and its size."""
    if isinstance(key, np.dtype):
        return f"|V{key.itemsize}" if key.kind in "VMm" else key.str, key.itemsize
    datatype = datatypes.of(key)
    if datatype.kind == "void":
        return f"|V{datatype.itemsize}", datatype.itemsize
    return "|V2" if datatype.name == "bfloat16" else np.dtype(datatype.name).str, datatype.itemsize
