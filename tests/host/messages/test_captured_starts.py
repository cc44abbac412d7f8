"""Starts of persistent messages in a capture: what is captured together is launched once."""

from contextlib import nullcontext
from types import SimpleNamespace

from pyncclx.messages.persistent import starts


class Work(SimpleNamespace):
    """A persistent receive of an array of some producer."""

    def check_capture(self):
        """It has a channel."""

    def capture(self, stream, batch):
        batch.append((self.producer, stream))

    def capture_end(self, event, stream):
        self.ended = event, stream


def test_arrays_of_several_producers_on_one_stream_take_one_launch(monkeypatch):
    launched = []
    monkeypatch.setattr(starts, "launch", lambda _, __, batch, stream: launched.append((list(batch), stream)))
    device = SimpleNamespace(current_stream=lambda: "stream", is_capturing=lambda _: True)
    order = SimpleNamespace(aside=lambda _: "aside", following=nullcontext, mark=lambda _: "event")
    caller = SimpleNamespace(stream=None, blocking=None)
    endpoint = SimpleNamespace(serial=1, comm_failure=None, device=device, caller=caller, order=order)
    buffer = SimpleNamespace(stream=None)
    works = [
        Work(peer=0, receives=True, endpoint=endpoint, buffer=buffer, of_current=True, producer=producer)
        for producer in ("CuPy", "Numba")
    ]
    starts.start_several(works)
    assert launched == [([("CuPy", "stream"), ("Numba", "stream")], "aside")]
    assert [work.ended for work in works] == [("event", "stream")] * 2
