"""The host device with CUDA's legacy default stream as the current one: it waits for all blocking streams."""

import threading
from contextlib import contextmanager

from pyncclx import backends

LONGEST_S = 3.0  # that a busy stream is busy; what waits for it fails the test by then


class LegacyStream:
    """Runs what it is given at once, after all that blocking streams have been given before."""

    ptr = 0
    is_alone = False  # others give it work

    def __init__(self):
        self.blocking, self._ends = [], []

    @property
    def given(self):
        self._ends.append([(stream, stream.given) for stream in self.blocking])
        return len(self._ends)

    def has_done(self, number):
        return all(stream.has_done(end) for stream, end in self._ends[number - 1])

    def wait(self, number):
        for stream, end in self._ends[number - 1]:
            stream.wait(end)

    def check(self):
        pass

    def enqueue(self, work, parameters=b""):
        self.wait(self.given)
        work()


class Streams:
    """The legacy default stream, and busy ones beside it."""

    def __init__(self, device):
        self.device, self.legacy = device, LegacyStream()

    def new(self, *, blocking):
        stream = self.device.new_stream()
        if blocking:
            self.legacy.blocking.append(stream)
        return stream

    @contextmanager
    def busy(self, *, blocking):
        """A stream is busy as long as this lasts: nothing in it may have waited for it."""
        end, late = threading.Event(), []
        stream = self.new(blocking=blocking)
        stream.enqueue(lambda: end.wait(LONGEST_S) or late.append("waited for a busy stream"))
        try:
            yield stream
        finally:
            end.set()
            self.device.synchronize(stream)
        assert not late


def installed(monkeypatch):
    """Make it a fixture."""
    device = backends.select()
    streams = Streams(device)
    with monkeypatch.context() as patch:
        patch.setattr(device, "current_stream", lambda: streams.legacy)
        private = device.private_stream
        patch.setattr(device, "current_and_private", lambda: (streams.legacy, private()))
        patch.setattr(device, "external_stream", lambda pointer: streams.legacy)
        yield streams
        device.synchronize()
