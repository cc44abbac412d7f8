"""MPI.ERRORS_ARE_FATAL and MPI.ERRORS_ABORT end the job for an error that pyncclx finds."""


import pytest

import launch

PROGRAM = """
import sys
import mpi4py
{rc}
import numpy as np
from mpi4py import MPI
import pyncclx

{first}
comm = pyncclx.Communicator(MPI.COMM_WORLD)
{then}
try:
    comm.Bcast(np.zeros(3), root=7)
except MPI.Exception:
    sys.stdout.write("raised")
sys.stdout.flush()
"""
WAYS = {
    "set": {"then": "comm.Set_errhandler(MPI.ERRORS_ARE_FATAL)"},
    "abort": {"then": "comm.Set_errhandler(MPI.ERRORS_ABORT)"},
    "set by mpi4py before": {"first": "MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_ARE_FATAL)"},
    "rc": {"rc": "mpi4py.rc.errors = 'fatal'", "then": "comm = comm.Dup()"},
}


def run(**lines):
    return launch.job(1, "-c", PROGRAM.format(**{"rc": "", "first": "", "then": "", **lines}))


@pytest.mark.parametrize("way", WAYS)
def test_the_job_ends_and_says_why(way):
    done = run(**WAYS[way])
    assert done.returncode != 0
    assert "raised" not in done.stdout
    assert "root is 7" in done.stderr


def test_errors_return():
    done = run(then="comm.Set_errhandler(MPI.ERRORS_ARE_FATAL); comm.Set_errhandler(MPI.ERRORS_RETURN)")
    assert (done.returncode, done.stdout) == (0, "raised"), done.stderr
