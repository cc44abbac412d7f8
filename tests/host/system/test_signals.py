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
