"""Functions of atexit and destructors that communicate, while the interpreter ends and starts no thread any more."""

import re
from functools import partial

import pytest

import launch

PROGRAM = """
import atexit, sys
import numpy as np
from mpi4py import MPI
import pyncclx

class Late:
    def __init__(self):
        self.comm, self.np, self.MPI, self.write = pyncclx.Communicator(MPI.COMM_WORLD).Dup(), np, MPI, sys.stdout.write
        self.flush, self.begun = sys.stdout.flush, None

    def allreduce(self):
        return self.finish(self.begin("Allreduce"))

    def iallreduce(self):
        return self.finish(self.begin("Iallreduce"))

    def tested(self):
        request, result = self.begin("Iallreduce")
        while not request.Test():
            pass
        return self.finish((None, result))

    def begin(self, name):
        result = self.np.zeros(50001)
        return getattr(self.comm, name)(self.np.full(50001, self.comm.rank + 1.0), result), result

    def finish(self, begun):
        request, result = begun
        if request is not None:
            request.Wait()
        return (result == sum(range(1, self.comm.size + 1))).all()

    def in_flight(self):
        return self.finish(self.begun)

    def messages(self):
        peer, mine, theirs = 1 - self.comm.rank, self.np.full(50001, self.comm.rank), self.np.full(50001, -1)
        self.comm.Sendrecv(mine, peer, 1, theirs, peer, 1)
        receive = self.comm.Irecv(theirs[1:], peer, 2)
        self.comm.Isend(mine[1:] + 10, peer, 2).Wait()
        receive.Wait()
        objects = self.comm.sendrecv({"a": mine}, peer, 3, None, peer, 3)["a"]
        return theirs[0] == peer and (theirs[1:] == peer + 10).all() and (objects == peer).all()

    def memory(self):
        comm = self.comm.Split(0, -self.comm.rank)
        array = comm.Alloc(3)
        array[:] = comm.rank + 1
        comm.Allreduce(self.MPI.IN_PLACE, array)
        return (array == 3).all()

    def run(self):
        self.write(f"rank {self.comm.rank}: {bool(getattr(self, sys_argv[2])())}\\n")
        self.flush()

    def __del__(self):
        if sys_argv[1] == "destructor":
            self.run()

sys_argv = sys.argv[:]
late = Late()
if sys.argv[3] == "same":
    late.begun = late.begin("Allreduce")
    assert getattr(late, sys.argv[2])()
if sys.argv[2] == "in_flight":
    late.begun = late.begin("Iallreduce")
if sys.argv[1] == "atexit":
    atexit.register(late.run)
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return partial(_run, str(tmp_path / "program.py"))


def _run(program, where, what, before, *, runner=("-m", "pyncclx", "run")):
    done = launch.job(2, *runner, program, where, what, before, seconds=60, PYNCCLX_TIMEOUT="15")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stdout + done.stderr
    assert sorted(re.findall(r"rank (\d): (\w+)", done.stdout)) == [("0", "True"), ("1", "True")], done.stderr


@pytest.mark.parametrize("what", ["allreduce", "iallreduce", "tested", "in_flight", "messages", "memory"])
@pytest.mark.parametrize("where", ["destructor", "atexit"])
def test_the_first_call(run, where, what):
    """It starts no thread: in a destructor that would hang, and in a function of atexit raise from Python 3.12 on."""
    run(where, what, "nothing")


@pytest.mark.parametrize("what", ["iallreduce", "messages"])
def test_calls_that_have_started_threads_before(run, what):
    """Which do not run any more in a destructor."""
    run("destructor", what, "same")


def test_a_destructor_where_nothing_can_be_imported(run):
    """Without a runner Python has given up its modules by then; a blocking call that was made before needs none."""
    run("destructor", "allreduce", "same", runner=())
