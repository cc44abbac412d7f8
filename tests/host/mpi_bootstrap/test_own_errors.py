"""Exceptions of signal handlers of every kind are told from those of the interrupted function itself."""

import functools
import os
import signal
import time

import pytest

import mpi_bootstrap
from mpi_bootstrap.own_errors import own_error, own_errors_suppressed


class Handlers:
    def __call__(self, *arguments):
        raise TimeoutError

    def method(self, number, frame=None):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        with mpi_bootstrap.interrupts_deferred():
            self(number, frame)

    def converting(self, number, frame):
        try:
            self.method(number, frame)
        except TimeoutError:
            raise ValueError from None


def of_two(number, frame):
    def inner():
        raise OSError(number, frame)

    inner()


HANDLERS = {
    "of two": of_two,
    "of any": lambda *_: 1 / 0,
    "with names": functools.partial(lambda *them, extra, **more: 1 / 0, extra=1),
    "object": Handlers(),
    "method": Handlers().method,
    "converting": Handlers().converting,
    "partial": functools.partial(lambda extra, number, frame: 1 / 0, 1),
    "Ctrl-C": signal.default_int_handler,
}


def interrupted():
    signal.raise_signal(signal.SIGALRM)
    time.sleep(0)


@mpi_bootstrap.interrupts_deferred()
def interrupted_late():
    os.kill(os.getpid(), signal.SIGALRM)
    time.sleep(0)


@pytest.mark.parametrize("work", [interrupted, interrupted_late])
@pytest.mark.parametrize("name", HANDLERS)
def test_exceptions_of_handlers(name, work):
    before, found = signal.signal(signal.SIGALRM, HANDLERS[name]), []
    try:
        try:
            work()
        except BaseException as error:
            found.append(own_error(error))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert found == [None]


def failing(*arguments):
    raise ValueError(arguments)


@pytest.mark.parametrize("call", [failing, functools.partial(failing, (1, 2)), lambda: failing(*range(9))])
def test_own_errors(call):
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        call()
    assert own_error(raised.value) is raised.value
    with own_errors_suppressed():
        call()


def test_no_own_errors():
    with pytest.raises(KeyboardInterrupt), own_errors_suppressed():
        raise KeyboardInterrupt
    assert own_error(KeyboardInterrupt()) is None


def test_an_exception_of_a_handler_is_not_suppressed():
    before = signal.signal(signal.SIGALRM, of_two)
    try:
        with pytest.raises(OSError), own_errors_suppressed():  # noqa: PT011
            interrupted()
    finally:
        signal.signal(signal.SIGALRM, before)
