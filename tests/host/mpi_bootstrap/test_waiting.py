"""MPI goes on for others while a rank waits."""

from support.survivors import needs_survivors, run_with_survivors

REVOKED = """
import os
from mpi4py import MPI
from mpi_bootstrap.waiting import let_go_on
MPI.COMM_WORLD.Barrier()
MPI.COMM_WORLD.Revoke()
let_go_on()
os.write(1, b"goes on\\n")
os._exit(0)
"""


@needs_survivors
def test_mpi_goes_on_when_the_world_is_revoked() -> None:
    done = run_with_survivors(REVOKED, ranks=2, timeout_s=60)
    assert done.stdout.count("goes on") == 2, done.stdout + done.stderr
