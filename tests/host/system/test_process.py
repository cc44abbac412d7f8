"""Values that a process holds once: made at the first use, by one thread; forgotten by `reset`."""

import threading
import time

import pytest

from pyncclx.system import process
from pyncclx.system.process import PerProcess


@pytest.fixture
def made():
    """The numbers of the calls that made a value, and the value."""
    calls = []

    def make():
        time.sleep(0.05)  # the other thread comes meanwhile
        calls.append(len(calls))
        return object()

    value = PerProcess(make)
    yield calls, value
    process._resets.remove(value.reset)


def test_threads_get_the_same(made):
    calls, value = made
    found = []
    threads = [threading.Thread(target=lambda: found.append(value.get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(map(id, found))) == 1
    assert calls == [0]


def test_reset_makes_another(made):
    calls, value = made
    assert value.made is None
    first = value.get()
    assert value.made is first
    value.reset()
    assert value.made is None
    assert value.get() is not first
    assert calls == [0, 1]


def test_set_puts_a_value_in_its_place(made):
    calls, value = made
    value.get()
    value.set("ours")
    assert value.get() == value.made == "ours"
    assert calls == [0]


def test_a_failure_is_tried_again():
    answers = iter([ValueError("first"), "second"])

    def make():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    value = PerProcess(make, lasting=True)
    with pytest.raises(ValueError, match="first"):
        value.get()
    assert value.get() == "second"


def test_reset_of_the_process(made):
    """It forgets values and what functions have returned, empties containers, and leaves what lasts."""
    _, value = made
    lasting = PerProcess(object, lasting=True)
    numbers = process.held([1, 2])
    constant = process.cached(object)
    before = value.get(), constant()
    kept = lasting.get()
    try:
        process.reset()
        assert value.get() is not before[0]
        assert constant() is not before[1]
        assert numbers == []
        assert lasting.get() is kept
    finally:
        process._resets.remove(numbers.clear)
        process._resets.remove(constant.cache_clear)
