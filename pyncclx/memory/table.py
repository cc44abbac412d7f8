"""Table in device memory whose rows the host changes in place."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from ..backends import Device, Upload

_FIRST_ROWS = 8


class Table:
    """Table in device memory: a head, rows of equal length, and a row of zeros.

    A full table moves to a copy that is at least twice as long. Kernels and graphs may keep using earlier copies, so
    all copies exist as long as the table. Together they are less than twice as long as the last one.
    """

    def __init__(self, device: Device, row_nbytes: int, head_nbytes: int = 0) -> None:
        self._device, self._row_nbytes, self._head_nbytes = device, row_nbytes, head_nbytes
        self._copy = bytearray(head_nbytes + _FIRST_ROWS * row_nbytes)  # the whole table
        self._places: list[Upload] = []

    @property
    def address(self) -> int:
        """Present address of the table; 0 while it is empty."""
        return self._places[-1].address if self._places else 0

    def set_row(self, row: int, data: bytes) -> None:
        """Change a row for kernels that are launched later."""
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
    """Copy bytes to device memory after work on the current stream; wait for the copy."""
    source, stream = np.frombuffer(data, np.uint8), device.current_stream()
    # A captured copy would not run now, but at each replay of the graph.
    if device.is_capturing(stream):
        device.poke(address, data)
        return
    device.copy(address, MPI.Get_address(source), len(data), stream)
    device.synchronize(stream)
