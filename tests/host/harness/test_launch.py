"""What tests/launch.py starts ends with it, begins whatever killed launchers have left, and has a time limit."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mpi4py import MPI

import launch

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


# As a killed launcher of the same number has left it.
STALE = 'mkdir "$TMPDIR/ompi.$$"; touch "$TMPDIR/ompi.$$/pmix.$(hostname).tool"; exec "$@"'
REFUSES = f'echo >> "$0"; [ $(wc -l < "$0") -gt "$TIMES" ] || exit {launch.COULD_NOT_START}; exec "$@"'


def shell(script, name, **variables):
    """Run a command line that begins, or does not begin, a rank."""
    command = ["sh", "-c", script, name, *launch.mpiexec(1, "-c", "print('began')")]
    return launch.ended(command, launch.environment("host") | variables, 60, capture_output=True)


@pytest.mark.skipif(MPI.get_vendor()[0] != "Open MPI", reason="another launcher has no such files")
def test_files_of_another_launcher(tmp_path, monkeypatch):
    for variable in launch.folder_of(""):  # of the job that these tests are
        monkeypatch.delenv(variable, raising=False)
    done = shell(STALE, "sh", TMPDIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "began\n"), done.stderr
    monkeypatch.setattr(launch, "folder_of", lambda path: {})
    assert shell(STALE, "sh", TMPDIR=str(tmp_path)).returncode == launch.COULD_NOT_START


@pytest.mark.parametrize(("times", "code", "starts"), [(2, 0, 3), (9, launch.COULD_NOT_START, 3)])
def test_a_launcher_that_could_not_start_is_started_again(tmp_path, times, code, starts):
    done = shell(REFUSES, str(tmp_path / "starts"), TIMES=str(times))
    assert done.returncode == code, done.stderr
    assert len((tmp_path / "starts").read_text().splitlines()) == starts
    assert ("began" in done.stdout) == (code == 0)


def test_the_folder_of_a_launcher_is_its_own_and_removed():
    folders = []
    for _ in range(2):
        with launch.own_folder() as variables:
            folders += map(Path, variables.values())
            assert folders[-1].is_dir()
    assert folders[0] != folders[1]
    assert not any(each.exists() for each in folders)


def test_a_job_that_hangs_is_ended():
    """What it has printed is there."""
    done = launch.job(2, "-c", SLEEPS, seconds=3)
    assert done.returncode == launch.TIMED_OUT
    assert done.stdout.split() == ["started"] * 2
