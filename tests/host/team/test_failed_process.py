"""A rank's process ends: the others shrink the communicator, and the new one gets the memory of the failed one."""

import re

from support.survivors import needs_survivors, run_with_survivors

PROGRAM = """
import os, signal
from mpi4py import MPI
import pyncclx

comm = pyncclx.Communicator(MPI.COMM_WORLD).Dup()
comm.Allreduce(MPI.IN_PLACE, comm.Alloc(4))
lease = comm.team.lease  # raises once the others know of the death
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
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


@needs_survivors
def test_shrink_after_a_process_has_failed() -> None:
    done = run_with_survivors(PROGRAM, ranks=3, timeout_s=100)
    lines = re.findall(r"(.*) with (\d+) of (\d+) bytes", done.stdout)
    assert [values for values, _, _ in lines] == ["[2.0, 2.0, 2.0, 2.0]"] * 2, done.stdout + done.stderr
    assert all(int(lease) == int(before) > 0 for _, lease, before in lines)
