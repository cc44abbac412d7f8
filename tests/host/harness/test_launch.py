"""What tests/launch.py starts ends with it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
SLEEPS = "import time; print('started', flush=True); time.sleep(60)"
STARTS = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import launch
command = [sys.executable, "-c", {SLEEPS!r}]
launch.run(launch.mpiexec(2, "-c", {SLEEPS!r}) if sys.argv[1] == "ranks" else command, launch.environment("host"), 60)
"""


def runs(process):
    """Whether it has not ended; as long as its parent does not ask how, it stays in the list of processes."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children_of(parent):
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(child) for child in found.split()]


@pytest.mark.parametrize("what", ["process", "ranks"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_started_ends_with_the_starter(number, what):
    starter = subprocess.Popen([sys.executable, "-c", STARTS, what], stdout=subprocess.PIPE, text=True)
    for _ in range(2 if what == "ranks" else 1):
        assert "started" in starter.stdout.readline()
    (child,) = children_of(starter.pid)
    below = children_of(child)
    assert len(below) == (2 if what == "ranks" else 0)
    starter.send_signal(number)
    starter.wait()
    end = time.monotonic() + 20
    while time.monotonic() < end and any(map(runs, (child, *below))):
        time.sleep(0.05)
    assert not list(filter(runs, (child, *below)))
