"""Tables in device memory that the host changes in place."""

import ctypes
import struct

import pytest

from pyncclx.backends import host
from pyncclx.memory.table import Table


class Device(host.Device):
    """Counts allocations and copies, and keeps what was uploaded."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads, self.copies = 0, 0

    def upload(self, data):
        self.uploads += 1
        return super().upload(data)

    def copy(self, to, source, nbytes, stream):
        self.copies += 1
        super().copy(to, source, nbytes, stream)


def rows(table, count, head=0):
    """The numbers that kernels would read."""
    return list(struct.unpack(f"={count}Q", ctypes.string_at(table.address + head, 8 * count)))


@pytest.mark.parametrize("head", [0, 8])
def test_rows_change_in_place(head):
    device = Device()
    table = Table(device, 8, head)
    assert table.address == 0
    table.set_row(0, struct.pack("=Q", 5))
    place = table.address
    for number in range(1000):
        table.set_row(number % 7, struct.pack("=Q", number))
    assert (table.address, device.uploads, device.copies) == (place, 1, 1000)
    assert rows(table, 8, head) == [994, 995, 996, 997, 998, 999, 993, 0]  # zeros behind the last
    if head:
        table.set_head(struct.pack("=Q", 7))
        assert rows(table, 2) == [7, 994]


def test_a_table_that_grows():
    """Its earlier places stay as they were: kernels and graphs may read them."""
    device = Device()
    table = Table(device, 8)
    table.set_row(0, struct.pack("=Q", 1))
    first = table.address
    for number in range(1, 1000):
        table.set_row(number, struct.pack("=Q", number + 1))
    assert rows(table, 1001) == [*range(1, 1001), 0]
    assert device.uploads < 10
    assert struct.unpack("=8Q", ctypes.string_at(first, 64)) == (*range(1, 8), 0)
