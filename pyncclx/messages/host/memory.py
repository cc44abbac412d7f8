"""Access a host array as the bytes of the message that MPI has received into it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from ...arrays.specs import spec_parts
from ...requests.host_receive import ENVELOPE_MAGIC
from ...requests.open_receives import LOCK
from ...system.mpi_library import mpi_is_gone
from ..envelope import ENVELOPE_NBYTES, ITSELF, Envelope, unpack

Bytes = npt.NDArray[np.uint8]


class HostMemory:
    """Contiguous memory of a host array, into which MPI has received a message.

    Attributes
    ----------
    nbytes : int
        Length of the longest message that it can hold.
    """

    def __init__(self, array: Bytes) -> None:
        self._array, self.nbytes = array, array.nbytes

    def envelope(self) -> Envelope | None:
        """Return the message's envelope; None if there is none or it is incomplete."""
        if self._array[: len(ENVELOPE_MAGIC)].tobytes() != ENVELOPE_MAGIC:
            return None
        return unpack(self._array[:ENVELOPE_NBYTES], min(self.nbytes, ENVELOPE_NBYTES))

    def read(self, nbytes: int) -> Bytes:
        """Return a copy of the first bytes of the message."""
        return self._array[:nbytes].copy()

    def replace(self, nbytes: int, data: Bytes) -> None:
        """Replace a message of `nbytes` by `data`, and clear the rest of the message."""
        self._array[: data.nbytes] = data
        self._array[data.nbytes : nbytes] = 0


class ScatteredMemory(HostMemory):
    """Memory of a host array described by a derived datatype.

    MPI gathers its bytes, and scatters new bytes, by messages from this process to itself.
    """

    def __init__(self, spec: Any, *, is_kept: bool) -> None:
        # A copy of the program's datatype, which the program may free meanwhile.
        self._datatype: MPI.Datatype | None = None
        if is_kept and has_own_datatype(spec):
            self._datatype = spec[-1].Dup()
            spec = [*spec[:-1], self._datatype]
        self._spec = spec
        super().__init__(np.empty(0, np.uint8))

    def __del__(self) -> None:
        if self._datatype is not None and not mpi_is_gone():
            self._datatype.Free()

    def envelope(self) -> Envelope | None:
        super().__init__(gathered(self._spec))
        return super().envelope()

    def replace(self, nbytes: int, data: Bytes) -> None:
        itself = ITSELF.get()
        # Locked, because a thread that looks for an envelope gathers the bytes into `_array`.
        with LOCK:
            super().replace(nbytes, data)
            changed = self._array[: max(nbytes, data.nbytes)]
            sending = MPI.Comm.Isend(itself, [changed, MPI.PACKED], 0)
            MPI.Comm.Recv(itself, self._spec, 0, 0)
        sending.Wait()


def gathered(spec: Any) -> Bytes:
    """Return a contiguous copy, made by MPI, of the bytes of a buffer argument."""
    itself, status = ITSELF.get(), MPI.Status()
    with LOCK:
        sending = MPI.Comm.Isend(itself, spec, 0)
        message = MPI.Comm.Mprobe(itself, 0, 0, status)
    array = np.empty(status.Get_elements(MPI.BYTE), np.uint8)
    message.Recv([array, MPI.PACKED])
    sending.Wait()
    return array


def has_own_datatype(spec: Any) -> bool:
    """Return whether a buffer argument has a derived datatype."""
    key = spec[-1] if isinstance(spec, (list, tuple)) and spec else None
    return isinstance(key, MPI.Datatype) and not key.is_predefined


def memory_of(spec: Any, *, is_kept: bool = False) -> HostMemory:
    """Return an object that reads and writes the memory of a buffer argument.

    With `is_kept` it copies a derived datatype, because the program may free the datatype.
    """
    array, count, displ, key = spec_parts(spec)
    try:
        view = _view(array)
        itemsize = _itemsize(view, key) if key is not None or count is not None or displ else 1
        whole = np.frombuffer(view, np.uint8)
        begin = (displ or 0) * itemsize
        return HostMemory(whole[begin : begin + count * itemsize] if count is not None else whole[begin:])
    except (TypeError, ValueError, BufferError, KeyError):
        return ScatteredMemory(spec, is_kept=is_kept)


def _view(array: Any) -> memoryview:
    """Return a view of an array, in the order of its memory."""
    try:
        view = memoryview(array)
    except TypeError:
        # Arrays with DLPack or an array interface export no Python buffer.
        memory: Any = MPI.buffer.frombuffer(array)
        return memoryview(memory)
    return memoryview(array.T) if view.f_contiguous and not view.c_contiguous else view


def _itemsize(view: memoryview, key: Any) -> int:
    """Return the size of a datatype's elements, or by default of the buffer's.

    Raise ValueError if the elements have gaps.
    """
    if not isinstance(key, MPI.Datatype):
        return np.dtype(key).itemsize if key else view.itemsize
    if not key.is_predefined or key.Get_extent() != (0, key.Get_size()):
        raise ValueError(key)
    return key.Get_size()
