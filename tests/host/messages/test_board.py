"""Boards of partitioned messages: a receiver's offers, and a sender's answers."""

import pytest

from pyncclx.messages.envelope import EMPTY, Envelope, Sender
from pyncclx.messages.partitioned import board
from pyncclx.messages.partitioned.board import NBYTES, OwnBoard, PeerBoard

HERE, SLOTS = 4096, board._SLOTS  # the board's address
SENDER = Sender(b"u" * 16, b"node".ljust(16), b"handle".ljust(64), 4096, b"name".ljust(16), b"t" * 16)


class Memory:
    """Device memory of one board. `halves` writes are only begun."""

    def __init__(self):
        self.bytes, self.halves = bytearray(NBYTES), 0

    def peek(self, address, nbytes):
        return bytes(self.bytes[address - HERE : address - HERE + nbytes])

    def poke(self, address, data):
        assert HERE <= address <= HERE + NBYTES - len(data)
        if self.halves:
            data, self.halves = data[: len(data) // 2], self.halves - 1
        self.bytes[address - HERE : address - HERE + len(data)] = data


@pytest.fixture
def memory():
    return Memory()


def offer(own, content):
    """Write an offer; return its slot."""
    slot = own.reserve()
    own.offer(slot, content)
    return slot


@pytest.fixture
def own(memory):
    return OwnBoard(memory, HERE)


@pytest.fixture
def peer(memory):
    return PeerBoard(memory, HERE)


def test_offers_and_answers(own, peer):
    slots = [offer(own, b"offer %d" % i) for i in range(SLOTS)]
    assert own.is_full
    notes, following = peer.look()
    assert following is None
    assert {note.slot: note.content.rstrip(b"\0") for note in notes} == {
        slot: b"offer %d" % i for i, slot in enumerate(slots)
    }
    assert not any(own.answer(slot) for slot in slots)
    for note in reversed(notes):
        peer.answer(note, note.content.rstrip(b"\0").replace(b"offer", b"answer"))
    assert [own.answer(slot).rstrip(b"\0") for slot in slots] == [b"answer %d" % i for i in range(SLOTS)]
    assert peer.look() == ([], None)


def test_an_offer_is_new_until_it_is_seen(own, peer):
    offer(own, b"first")
    (note,) = peer.look()[0]
    assert peer.look()[0] == [note]
    peer.see(note)
    assert peer.look()[0] == []


def test_a_slot_is_used_again(own, peer):
    slots = [offer(own, b"") for _ in range(SLOTS)]
    notes, _ = peer.look()
    note = next(each for each in notes if each.slot == slots[5])
    peer.answer(note, b"first answer")
    for each in notes:
        peer.see(each)
    assert own.answer(slots[5])
    own.free(slots[5])
    assert offer(own, b"second") == slots[5]
    assert own.answer(slots[5]) is None
    (second,) = peer.look()[0]
    peer.answer(second, b"second answer")
    assert own.answer(slots[5]).rstrip(b"\0") == b"second answer"


def test_what_is_written_in_parts_is_not_read(memory, own, peer):
    memory.halves = 1
    slot = offer(own, b"x" * board.CONTENT_NBYTES)
    assert peer.look() == ([], None)
    own.free(slot)
    offer(own, b"whole")
    (note,) = peer.look()[0]
    memory.halves = 1
    peer.answer(note, b"y" * board.CONTENT_NBYTES)
    assert own.answer(slot) is None


def test_the_next_board(memory, own, peer):
    following = Envelope(SENDER, EMPTY, 7, NBYTES, offset=128, allocation=1 << 40, handle=b"h".ljust(64))
    memory.halves = 1
    own.link(following)
    assert peer.look() == ([], None)
    own.link(following)
    assert peer.look() == ([], following)
