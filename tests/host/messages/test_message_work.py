"""What the request of several messages waits for on the host: the messages are made up here."""

from types import SimpleNamespace

import pytest

from pyncclx.messages.pending import MessageWork
from pyncclx.requests.request import request_of


class Device:
    """Notes which streams the host waits for; some raise."""

    def __init__(self, failing):
        self.failing, self.waited = failing, []

    def current_stream(self):
        return None

    def is_capturing(self, stream):
        return False

    def synchronize(self, stream):
        self.waited.append(stream.ptr)
        if stream.ptr in self.failing:
            raise OSError(f"stream {stream.ptr}")


def message_on(ptr, endpoint):
    """A message that is over, of an array on a stream of its own."""
    stream = SimpleNamespace(ptr=ptr)
    buffer = SimpleNamespace(stream=stream, of_torch=True)
    return SimpleNamespace(endpoint=endpoint, stream=stream, buffer=buffer, is_settled=True)


def request_on(streams, failing=()):
    device = Device(failing)
    caller = SimpleNamespace(blocking="host", stream=SimpleNamespace(ptr=9))
    endpoint = SimpleNamespace(device=device, caller=caller, serial=1, check=lambda: None, broken=())
    work = MessageWork()
    work.messages = tuple(message_on(each, endpoint) for each in streams)
    return device, request_of(work)


@pytest.mark.parametrize("streams", [(), (1,), (1, 2), (3, 3)])
def test_the_host_waits_once_for_each_stream(streams):
    device, request = request_on(streams)
    assert request.Wait()
    assert device.waited == sorted(set(streams))


def test_the_host_waits_for_both_where_one_raises():
    device, request = request_on((1, 2), failing=(1,))
    with pytest.raises(OSError, match="stream 1"):
        request.Wait()
    assert device.waited == [1, 2]
    assert not request
