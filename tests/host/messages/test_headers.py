"""Headers of endpoints that are gone: their kernels may still use them, and a call must not wait for these."""

from types import SimpleNamespace

import pytest

from pyncclx.messages.memory import headers
from pyncclx.messages.memory.headers import HEADER_NBYTES, HEADERS, Headers, Used


class Event:
    def record(self, stream):
        if stream.destroyed:
            raise RuntimeError("invalid handle")
        self.stream = stream

    def is_over(self):
        return self.stream.over


class Device:
    def event(self):
        return Event()

    def can_leave(self, stream):
        return stream.can_leave

    def fill_zero(self, address, nbytes):
        assert nbytes == HEADER_NBYTES

    def synchronize(self, stream=None):
        pytest.fail("a kernel there may wait for a peer's next call")


def stream(*, over=False, can_leave=True, destroyed=False):
    return SimpleNamespace(over=over, can_leave=can_leave, destroyed=destroyed)


@pytest.fixture
def quiet(monkeypatch):
    """What is freed when nothing is under way."""
    frees = []
    retired = SimpleNamespace(add=frees.append, free=lambda: [free() for free in frees])
    monkeypatch.setattr(headers.RETIRED, "get", lambda: retired)
    return frees


@pytest.fixture
def all_taken(quiet):
    """Headers of which none is free; `closed` has the error records of those that were taken back."""
    made = Headers(Device(), 0)
    for _ in range(HEADERS):
        made.take()
    made.closed = []
    made._device.allocate_exported = lambda nbytes: SimpleNamespace(address=1 << 30)
    return made


def retire(made, header, *streams):
    watch = SimpleNamespace(close=lambda: made.closed.append(header))
    made.gone.append(Used(header, watch, dict(enumerate(streams))))


def test_its_kernels_have_ended(all_taken):
    retire(all_taken, 128, stream(over=True), stream(over=True))
    retire(all_taken, 256)
    assert (all_taken.take(), all_taken.take()) == (128, 256)
    assert all_taken.closed == [128, 256]


def test_a_kernel_runs(all_taken):
    """Another header is taken meanwhile."""
    running = stream()
    retire(all_taken, 128, stream(over=True), running)
    assert all_taken.take() == 1 << 30
    assert not all_taken.closed
    running.over = True
    all_taken.reclaim()
    assert all_taken.closed == [128]


@pytest.mark.parametrize("last", [stream(can_leave=False), stream(destroyed=True)], ids=["captured", "destroyed"])
def test_nobody_can_say_when_they_end(all_taken, quiet, last):
    """Of a stream that is captured, or another one in each thread, or no more: when nothing is under way."""
    retire(all_taken, 128, stream(over=True), last)
    all_taken.reclaim()
    assert len(quiet) == 1
    assert not all_taken.closed
    assert all_taken.take() == 128
