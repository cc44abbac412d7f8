"""A rank's process ends: the others shrink the communicator, and the new one gets the memory of the failed one."""

import re
import subprocess

import pytest
from mpi4py import MPI

import launch

PROGRAM = """
import os, signal
from mpi4py import MPI
import pyncclx

comm = pyncclx.Communicator(MPI.COMM_WORLD).Dup()
comm.Allreduce(MPI.IN_PLACE, comm.Alloc(4))
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
lease = comm.team.lease
try:
    comm.Barrier(device=True)
except pyncclx.RankFailed as error:
    assert error.ranks == (1,) and error == MPI.ERR_PROC_FAILED
shrunk = comm.Shrink()
comm.Free()
x = shrunk.Alloc(4)
x[:] = 1
shrunk.Allreduce(MPI.IN_PLACE, x)
print(f"{x.tolist()} with {shrunk.team.lease.nbytes} of {lease.nbytes} bytes", flush=True)
os._exit(0)  # MPI cannot be finalized without the failed rank
"""


@pytest.mark.skipif(MPI.get_vendor()[0] != "Open MPI", reason="needs Open MPI, started so that jobs outlive processes")
def test_shrink_after_a_process_has_failed() -> None:
    program, *arguments = launch.mpiexec(3, "-c", PROGRAM)
    done = subprocess.run(
        [program, "--with-ft", "ulfm", *arguments],
        env=launch.environment("host"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if "unknown" in done.stderr.lower() and "ulfm" in done.stderr:
        pytest.skip("this Open MPI cannot go on without a process")
    lines = re.findall(r"(.*) with (\d+) of (\d+) bytes", done.stdout)
    assert [values for values, _, _ in lines] == ["[2.0, 2.0, 2.0, 2.0]"] * 2, done.stdout + done.stderr
    assert all(int(lease) == int(before) > 0 for _, lease, before in lines)
