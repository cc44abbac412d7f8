"""Streams that have had work: idle ones are dropped, beyond a few."""

import weakref
from types import SimpleNamespace

import pytest

from pyncclx.team.kept import FEW, UsedStreams


class Stream:
    def __init__(self, ptr, *, idle=True, per_thread=False):
        self.ptr, self.idle, self.per_thread = ptr, idle, per_thread


@pytest.fixture
def used():
    return UsedStreams(SimpleNamespace(is_idle=lambda one: one.idle, is_per_thread=lambda one: one.per_thread))


def test_a_new_stream_for_each_step(used):
    streams = weakref.WeakSet()
    for step in range(100):
        stream = Stream(step)
        streams.add(stream)
        used.add(stream)
        del stream
        assert len(streams) <= 2 * FEW
    assert list(used)[-FEW:] == list(range(100 - FEW, 100))


def test_those_with_work_stay(used):
    kept = [Stream(number, idle=False) for number in range(3)] + [Stream(3, per_thread=True)]
    for stream in (*kept, *(Stream(number) for number in range(10, 50))):
        used.add(stream)
    assert all(used[stream.ptr] is stream for stream in kept)


def test_one_that_is_used_again_is_among_the_last(used):
    first = Stream(0)
    for number in range(1, 100):
        used.add(first)
        used.add(Stream(number))
        assert used[0] is first
        assert used.last.ptr == number


def test_nothing_is_left(used):
    stream = Stream(5)
    used.add(stream)
    used.clear()
    assert not used
    used.add(stream)
    assert used == {5: stream}
