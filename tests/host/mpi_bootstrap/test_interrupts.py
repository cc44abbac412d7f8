"""SIGINT while ranks meet on the host: a handler that was set in C stays, one of Python's comes back."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap import interrupts_deferred

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import faulthandler, os, signal, sys, tempfile
from mpi4py import MPI
import mpi_bootstrap

log = tempfile.TemporaryFile("w+")
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
if sys.argv[1] == "C":
    faulthandler.register(signal.SIGINT, file=log)
before = signal.getsignal(signal.SIGINT)
for _ in range(2):
    try:
        mpi_bootstrap.agree(MPI.COMM_SELF, lambda: os.kill(os.getpid(), signal.SIGINT))
    except KeyboardInterrupt:
        print("raised")
    assert signal.getsignal(signal.SIGINT) is before
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("raised")
log.seek(0)
print(log.read().count("most recent call first"), "traces")
"""


@pytest.mark.parametrize(("handler", "raised", "traces"), [("C", 0, 3), ("Python", 3, 0)])
def test_the_handler(handler, raised, traces):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, handler],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "raised\n" * raised + f"{traces} traces\n"


class Raised(Exception):
    """What a handler raises."""


@pytest.fixture
def send():
    """A function that sends this process a signal whose handler raises."""

    def leave(*_):
        raise Raised

    before = signal.signal(signal.SIGUSR2, leave)
    yield lambda: signal.raise_signal(signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("place", ["before", "inside"])
def test_an_inner_meeting_succeeds_on_all_ranks_or_none(send, place):
    """Its own end runs no handler: the outer meeting would undo on other ranks what has succeeded on this one."""
    undone, made = [], []

    def inner():
        with interrupts_deferred():
            if place == "inside":
                send()
            made.append(1)
        return "made"

    @interrupts_deferred()
    def outer():
        if place == "before":
            send()
        made.append(mpi_bootstrap.agree(MPI.COMM_SELF, inner, undo=undone.append))

    with pytest.raises(Raised):
        outer()
    assert (made, undone) == ([1, "made"], [])


def test_a_handler_runs_at_once_where_it_is_allowed(send):
    with pytest.raises(Raised):
        mpi_bootstrap.agree(MPI.COMM_SELF, send)
