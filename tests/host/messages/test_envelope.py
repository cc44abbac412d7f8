"""Envelopes: what is packed is unpacked, in either length, and nothing else is taken for one."""

import random

import pytest

from pyncclx.messages import envelope
from pyncclx.messages.envelope import ENVELOPE_NBYTES, SHORT_NBYTES, Envelope, Sender, eager, may_be_envelope, unpack

SENDER = Sender(b"u" * 16, b"n" * 16, b"handle", 1 << 21, b"\0socket", b"t" * 16)
CHANNEL = (1 << 40, 7, 1 << 21, b"h" * 64, 3, 9, 4096, 512)
PACKED = {
    "short": eager(SENDER, 5, 1000, 17, 1, 1 << 20),
    "of a channel": eager(SENDER, 5, 1000, 17, 1, 1 << 20, CHANNEL),
    "offered": Envelope(SENDER, envelope.OFFERED, 5, 1000, 17, 1, 0, 64, *CHANNEL[:4]).pack(),
}


@pytest.mark.parametrize("name", PACKED)
def test_what_is_packed_is_unpacked(name):
    packed = PACKED[name]
    found = unpack(packed + bytes(ENVELOPE_NBYTES), len(packed))
    assert (found.sender, found.clock, found.nbytes, found.place, found.source) == (SENDER, 5, 1000, 17, 1)
    assert (found.offset, found.is_short) == (64 if name == "offered" else 1 << 20, name == "short")
    if name == "of a channel":
        assert found.of_channel == CHANNEL
    assert found.handle.rstrip(b"\0") == (b"" if name == "short" else CHANNEL[3])
    assert len(packed) == (SHORT_NBYTES if found.is_short else ENVELOPE_NBYTES)
    assert may_be_envelope(len(packed))


def test_open_mpi_completes_the_send_of_a_short_envelope_at_once():
    """It does so for messages of up to 256 bytes; a multiple of 32 bytes is whole elements of any datatype."""
    assert SHORT_NBYTES <= 256
    assert SHORT_NBYTES % 32 == ENVELOPE_NBYTES % 32 == 0
    assert not may_be_envelope(256)


@pytest.mark.parametrize("name", PACKED)
def test_a_changed_or_cut_envelope_is_none(name):
    packed, draw = PACKED[name], random.Random(name)
    assert unpack(packed, len(packed) - 1) is None
    for at in draw.sample(range(len(packed)), 100):
        changed = bytearray(packed)
        changed[at] ^= 1 << draw.randrange(8)
        assert unpack(memoryview(changed), len(packed)) is None, at
