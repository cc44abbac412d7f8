"""What a program spawns with Python's arguments, under the runner and without it."""

import sys

import pytest

from pyncclx.communicator import spawned

UNDER = ["-m", "pyncclx", "run"]


@pytest.fixture(autouse=True)
def runner():
    spawned.RUNNER.set(tuple(UNDER))
    yield
    spawned.RUNNER.reset()


@pytest.mark.parametrize(
    ("options", "program"),
    [
        ([], ["worker.py", "-c", "x"]),
        (["-u"], ["-m", "mpi4py.futures.server"]),
        (["-W", "error", "-X", "dev", "-O"], ["-c", "import sys", "-u"]),
        ([], ["-", "x"]),
    ],
)
def test_a_program_of_python(options, program):
    for command in (sys.executable, "/usr/bin/python3.12", "python"):
        assert spawned.arguments_under_runner(command, [*options, *program]) == [*options, *UNDER, *program]


def test_others():
    for command, args in [
        ("/bin/sh", ["worker.py"]),
        ("pythonic", ["worker.py"]),
        (sys.executable, None),
        (sys.executable, ["-u"]),
        (sys.executable, [*UNDER, "worker.py"]),
        (None, None),
    ]:
        assert spawned.arguments_under_runner(command, args) is args


def test_several():
    commands, args = [sys.executable, "/bin/sh"], [["a.py"], ["b"]]
    assert spawned.each_under_runner(commands, args) == [[*UNDER, "a.py"], ["b"]]
    assert spawned.each_under_runner(["/bin/true", "/bin/true"], None) == [[], []]
    assert spawned.each_under_runner(None, None) is None
    spawned.RUNNER.reset()
    assert spawned.each_under_runner(commands, args) is args
