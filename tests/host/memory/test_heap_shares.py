"""How the heap is shared out among communicators and their tracks."""

import pytest

from pyncclx.backends.host import Device
from pyncclx.errors import NotSupported
from pyncclx.memory.heap import KEPT_PARTS, LAST_PARTS, PARTS, SHARES, Heap

NBYTES, LEAST = 1 << 23, 4096


@pytest.fixture
def heap():
    made = Heap(Device(), NBYTES)
    yield made
    made.memory.close()


def leases(heap, **kind):
    """Lease until there is no room; the lengths."""
    lengths = []
    while True:
        try:
            lengths.append(heap.reserve(LEAST, **kind).nbytes)
        except NotSupported:
            return lengths


def test_many_tracks_leave_room_to_communicators(heap):
    for _ in SHARES:
        heap.reserve(LEAST)
    assert len(leases(heap, is_beside=True)) > 100
    assert len(leases(heap)) == LAST_PARTS


def test_tracks_of_many_communicators(heap):
    """They have room, if little each, down to what is left to communicators."""
    while sum(lease.nbytes for lease in heap.leases) <= NBYTES * (PARTS - KEPT_PARTS) // PARTS:
        heap.reserve(LEAST)
    tracks = leases(heap, is_beside=True)
    assert set(tracks) == {LEAST}
    assert len(tracks) > 50
