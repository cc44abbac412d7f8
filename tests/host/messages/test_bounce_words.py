"""Words of the bounce memory: blocks of receiving kernels, clocks that end the waits for a failed sender."""

import pytest

from pyncclx.backends import host
from pyncclx.messages.memory import bounce


def test_arrived_words_are_never_handed_out_twice(monkeypatch):
    """However many there are: the host waits for no kernel, which may wait for what this thread is about to do."""
    device = host.Device()
    memory = bounce.BounceMemory(device)
    monkeypatch.setattr(device, "synchronize", lambda *_: 1 / 0)
    words = [memory.arrived[ptr, 1, 39] for ptr in range(500)]
    taken = [word + 4 * index for word in words for index in range(39)]
    assert len(set(taken)) == len(taken)
    assert memory.arrived[3, 1, 39] == words[3]
    assert all(device.peek(word, 4) == bytes(4) for word in words)


@pytest.mark.parametrize("clock", [1, 7, 2**32 - 1, 2**32, 2**32 + 7, 3 << 32])
def test_a_failed_sender_releases_kernels_at_any_clock(clock):
    """A kernel waits until a word is no smaller than the clock, with an equal upper half."""
    device = host.Device()
    memory = bounce.BounceMemory(device)
    memory.pulled[b"sender"] = {5: clock}
    assert memory.release_receives(b"sender", memory.address) == {clock}
    ready, _ = bounce.words_of(memory.address, 5)
    (word,) = bounce.CLOCK.unpack(device.peek(ready, bounce.CLOCK.size))
    assert word >= clock
    assert word >> 32 == clock >> 32
