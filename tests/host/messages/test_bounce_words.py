"""Words of the bounce memory that count the blocks of receiving kernels."""

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
