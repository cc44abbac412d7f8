"""A table in device memory whose rows the host changes in place."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from ..backends import Device, Upload

_FIRST_ROWS = 8


class Table:
    """Rows of equal length behind a head. There is always a row of zeros behind the last that was set.

    It moves when it has no room. Kernels and graphs may go on with an earlier place, which lasts as long as the table:
    all places together are less than twice as long as the last.
    """

    def __init__(self, device: Device, row_nbytes: int, head_nbytes: int = 0) -> None:
        self._device, self._row_nbytes, self._head_nbytes = device, row_nbytes, head_nbytes
        self._copy = bytearray(head_nbytes + _FIRST_ROWS * row_nbytes)  # of all
        self._places: list[Upload] = []

    @property
    def address(self) -> int:
        """Where it is now; 0 before anything was set."""
        return self._places[-1].address if self._places else 0

    def set_row(self, row: int, data: bytes) -> None:
        """Change a row; kernels that are launched from now on find it so."""
        self._write(self._head_nbytes + row * self._row_nbytes, data)

    def set_head(self, data: bytes) -> None:
        """Change the head."""
        self._write(0, data)

    def _write(self, offset: int, data: bytes) -> None:
        enough = offset + len(data) + self._row_nbytes <= len(self._copy)
        if not enough:
            self._copy.extend(bytes(max(len(self._copy), offset + len(data))))
        self._copy[offset : offset + len(data)] = data
        if enough and self._places:
            write(self._device, self.address + offset, data)
        else:
            self._places.append(self._device.upload(bytes(self._copy)))


def write(device: Device, address: int, data: bytes) -> None:
    """Copy bytes to device memory, after what runs on the current stream, and wait for the copy."""
    source, stream = np.frombuffer(data, np.uint8), device.current_stream()
    if device.is_capturing(stream):  # what it has does not run now, and a graph would copy at each replay
        device.poke(address, data)
        return
    device.copy(address, MPI.Get_address(source), len(data), stream)
    device.synchronize(stream)
