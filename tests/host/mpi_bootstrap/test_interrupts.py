"""SIGINT while ranks meet on the host: a handler that was set in C stays, one of Python's comes back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
