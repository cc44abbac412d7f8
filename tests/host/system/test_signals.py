"""Signals that a thread gets: those of this process alone, also while and after an event loop has a descriptor."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import asyncio, os, queue, signal
from pyncclx.system.signals import SIGNALS, has_default_action

came = queue.SimpleQueue()
SIGNALS.get().functions.append(lambda numbers: [came.put(number) for number in numbers])
signal.signal(signal.SIGUSR2, lambda *_: None)

def next_one(number):
    os.kill(os.getpid(), number)
    assert came.get(timeout=20) == number

next_one(signal.SIGUSR2)
"""


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_event_loop_and_what_comes_after_it():
    """The loop gets its signals, and so does the thread; the program sees no descriptor but its own."""
    run("""
async def main():
    loop, hung_up = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)
    next_one(signal.SIGHUP)
    await asyncio.wait_for(hung_up.wait(), 20)

asyncio.run(main())
next_one(signal.SIGUSR2)
reading, writing = os.pipe2(os.O_NONBLOCK)
assert signal.set_wakeup_fd(writing) == -1
next_one(signal.SIGUSR2)
assert os.read(reading, 10) == bytes([signal.SIGUSR2])
assert signal.set_wakeup_fd(-1) == writing
try:
    signal.set_wakeup_fd(reading + 100)
except OSError:
    next_one(signal.SIGUSR2)
next_one(signal.SIGUSR2)
""")


def test_a_child():
    """Its signals do not come, whether Python has run in it or not: then it writes to the parent's socket."""
    run("""
mine, set_ = signal.set_wakeup_fd, SIGNALS.get()._set
writing = SIGNALS.get()._writing.fileno()
for of_parent in (False, True):
    pid = os.fork()
    if not pid:
        assert signal.set_wakeup_fd is set_ is not mine
        assert set_(writing if of_parent else -1, warn_on_full_buffer=False) == -1
        os.kill(os.getpid(), signal.SIGUSR2)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
next_one(signal.SIGUSR2)
assert came.empty()
""")


def test_a_default_action_is_one_that_nothing_has_changed():
    run("""
import faulthandler
assert has_default_action(signal.SIGUSR1)
faulthandler.register(signal.SIGUSR1)
assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
assert not has_default_action(signal.SIGUSR1)
assert not has_default_action(signal.SIGUSR2)
faulthandler.unregister(signal.SIGUSR1)
assert has_default_action(signal.SIGUSR1)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
assert not has_default_action(signal.SIGUSR1)
""")


def test_the_dump_signal_is_left_to_a_handler_set_in_c(tmp_path):
    """Where the action is the default one, it makes a dump; in a child it is the default one again."""
    run(f"""
import faulthandler, sys, time
os.environ["PYNCCLX_VERBOSE"] = "0"
from mpi4py import MPI
import numpy as np, pyncclx
from pyncclx.recording.ring import RING

log = open({str(tmp_path / "log")!r}, "w+")
faulthandler.register(signal.SIGUSR1, file=log)
pyncclx.Communicator(MPI.COMM_WORLD).Allreduce(np.ones(3), np.zeros(3))
os.kill(os.getpid(), signal.SIGUSR1)
log.seek(0)
assert "most recent call first" in log.read()
faulthandler.unregister(signal.SIGUSR1)
from pyncclx.recording import failures
os.environ["PYNCCLX_DUMP"] = {str(tmp_path / "dump")!r}
failures.note = lambda *_: None
failures.watch(RING.get())
pid = os.fork()
if not pid:
    os.kill(os.getpid(), signal.SIGUSR1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGUSR1
assert not os.path.exists({str(tmp_path / "dump")!r})
os.kill(os.getpid(), signal.SIGUSR1)
end = time.monotonic() + 20
while not os.path.exists({str(tmp_path / "dump" / "rank-0.json")!r}) and time.monotonic() < end:
    time.sleep(0.01)
assert time.monotonic() < end
""")
