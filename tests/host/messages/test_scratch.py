"""Host memory that MPI receives into is used again once copies from it are over."""

import weakref

import numpy as np
import pytest

from pyncclx.backends import select
from pyncclx.messages.memory.scratch import Scratch
from pyncclx.messages.progress.pending_sends import PendingSends


class Copy:
    """The event behind a copy."""

    def __init__(self):
        self.over = False

    def is_over(self):
        return self.over


class MessageMonitor:
    """Stands for the thread that looks at what the library keeps."""

    asleep = True

    def wake(self):
        pass


@pytest.fixture
def pending_sends():
    return PendingSends(MessageMonitor())


@pytest.fixture(params=[False, True], ids=["ordinary", "pinned"])
def scratch(request, pending_sends):
    return Scratch(select(), pending_sends, is_pinned=request.param)


def address(piece):
    return np.frombuffer(piece, np.uint8).ctypes.data


def test_a_piece_is_used_again(scratch):
    first = scratch.take(100)
    scratch.give_back(first)
    assert address(scratch.take(200)) == address(first)


def test_not_before_what_is_copied_from_it_is_over(scratch):
    copies, pieces = [Copy() for _ in range(3)], [scratch.take(100) for _ in range(3)]
    for piece, copy in zip(pieces, copies, strict=True):
        scratch.give_back(piece, copy)
    assert address(scratch.take(100)) not in map(address, pieces)
    copies[0].over = True
    assert address(scratch.take(100)) == address(pieces[0])
    copies[2].over = True  # of another stream than the one before
    assert address(scratch.take(100)) == address(pieces[2])
    copies[1].over = True
    assert address(scratch.take(100)) == address(pieces[1])


def test_a_stream_that_waits_keeps_no_memory_of_others(scratch):
    """However many messages come meanwhile, they need no more pieces than are in use at once."""
    scratch.give_back(scratch.take(100), Copy())
    places = set()
    for _ in range(20):
        piece, copy = scratch.take(100), Copy()
        places.add(address(piece))
        scratch.give_back(piece, copy)
        copy.over = True
    assert len(places) <= 2


@pytest.mark.parametrize("release", [Scratch.give_back, Scratch.drop])
def test_memory_that_is_not_used_again(scratch, pending_sends, release):
    """It is freed when its copy is over, though no other message follows."""
    memory, copy = np.empty(3 << 20, np.uint8), Copy()
    freed = weakref.ref(memory)
    release(scratch, memory, copy)
    del memory
    pending_sends.sweep()
    assert freed() is not None
    copy.over = True
    pending_sends.sweep()
    assert freed() is None


@pytest.mark.parametrize("nbytes", [1, 1 << 20, 3 << 20])
def test_room(scratch, nbytes):
    """There is room for a message of twice the length, which MPI may write when it refuses it."""
    piece = scratch.take(nbytes)
    assert len(piece) >= 2 * nbytes
    piece[:] = bytes(len(piece))


def test_no_more_memory_than_messages_at_once(scratch):
    """However many come one after another."""
    places = set()
    for _ in range(20):
        pieces, copies = [scratch.take(20_000) for _ in range(2)], [Copy() for _ in range(2)]
        places.update(map(address, pieces))
        for piece, copy in zip(pieces, copies, strict=True):
            scratch.give_back(piece, copy)
            copy.over = True
    assert len(places) == 2
