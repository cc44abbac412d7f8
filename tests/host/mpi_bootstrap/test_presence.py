"""Pages of processes: a death is marked, an end by itself is told from it, notes arrive whole."""

import os
import signal
import time

import pytest

from mpi_bootstrap.presence import _MOST_NOTES, ENDED, RAISED, RUNNING, Note, PeerPresence, Presence

NOTE = Note(b"g" * 16, "timed out", 1, 2, 3, 4, 5, 6, "Allreduce")


@pytest.fixture
def child():
    """A process with a page, as another one sees it; it ends as the word says that it is sent."""
    presence, (begin, begun), (orders, order) = Presence(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os._exit(_live(presence, begun, orders))
    os.read(begin, 1)
    yield PeerPresence(os.dup(presence.fd)), pid, lambda word: os.write(order, word)
    for fd in (presence.fd, begin, begun, orders, order):
        os.close(fd)


def _live(presence, begun, orders):
    presence.hold()
    os.write(begun, b"x")
    word = os.read(orders, 20)
    if word == b"end":
        presence.end(ENDED)
    elif word == b"raise":
        presence.end(RAISED, "ValueError: mine")
    return 0


def until(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


def test_a_process_that_is_killed(child):
    seen, pid, _ = child
    assert not seen.has_died
    assert seen.is_quiet()
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: seen.has_died)
    os.waitpid(pid, 0)
    assert not seen.is_quiet()


def test_a_process_that_leaves_without_a_word(child):
    """As by os._exit: for its peers that is a death."""
    seen, pid, order = child
    order(b"nothing")
    os.waitpid(pid, 0)
    assert seen.has_died


@pytest.mark.parametrize(("word", "state", "text"), [(b"end", ENDED, ""), (b"raise", RAISED, "ValueError: mine")])
def test_a_process_that_ends_by_itself(child, word, state, text):
    seen, pid, order = child
    assert seen.state == RUNNING
    order(word)
    os.waitpid(pid, 0)
    assert not seen.has_died
    assert (seen.state, seen.text) == (state, text)


def test_notes():
    presence = Presence()
    seen = PeerPresence(os.dup(presence.fd))
    assert seen.new_notes() == []
    presence.note(NOTE)
    assert not seen.is_quiet()
    assert seen.new_notes() == [NOTE]
    assert seen.new_notes() == []
    for number in range(3 * _MOST_NOTES):  # more than there is room for: the last ones are there
        presence.note(NOTE._replace(epoch=number))
    assert [note.epoch for note in seen.new_notes()] == list(range(2 * _MOST_NOTES, 3 * _MOST_NOTES))
    os.close(presence.fd)


def test_a_note_that_is_being_written_is_none():
    data = bytearray(NOTE.pack())
    assert Note.unpack(bytes(data)) == NOTE
    data[30] ^= 1
    assert Note.unpack(bytes(data)) is None
