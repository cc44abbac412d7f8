"""Programs that end without freeing what they have made."""

import re

import pytest

import launch

# It leaves communicators, one of which MPI alone has freed, their leases, arrays, a window and a token shuffle.
PROGRAM = """
import sys
import numpy as np
from mpi4py import MPI
import pyncclx

world = pyncclx.Communicator(MPI.COMM_WORLD)
comms = [world.Dup() for _ in range(3)]
arrays = [comm.Alloc(1000) for comm in comms]
for number, (comm, array) in enumerate(zip(comms, arrays)):
    array[:] = number + comm.rank
    comm.Allreduce(MPI.IN_PLACE, array)
win = pyncclx.Win.Create(arrays[0], comm=comms[0])
win.Fence()
shuffle = comms[1].Create_token_shuffle(2 * world.size, 16, 16, "f4", k=1, max_tokens=8)
shuffle.explain()
peer = 1 - world.rank
request = comms[2].Isendrecv(arrays[1], peer, 0, arrays[2], peer)
MPI.Comm.f2py(comms.pop(1).py2f()).Free()
request.Wait()
comms[1].synchronize()
wanted = 1 * world.size + sum(range(world.size))
sys.stdout.write(f"rank {world.rank}: {(arrays[2] == wanted).all()}\\n")
sys.stdout.flush()
"""
ENDS = {
    "at exit": "",
    "early": "MPI.Finalize()\n",
    "early on one rank": "if world.rank == 0:\n    MPI.Finalize()\n",
    "after the last reference": "del comms, arrays, win, shuffle, world\nMPI.Finalize()\n",
    "an array later": "kept = arrays\nMPI.Finalize()\nassert kept[2][0] == wanted\n",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_frees_nothing(end):
    """It ends with code 0 and without a word on stderr, and what it has printed is there."""
    done = launch.job(2, "-c", PROGRAM + ENDS[end])
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"rank (\d): (\w+)", done.stdout)) == [("0", "True"), ("1", "True")]
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


LOST = """
import numpy as np
from mpi4py import MPI
import pyncclx

comm = pyncclx.Communicator(MPI.COMM_WORLD).Dup()
recv = np.zeros(1 if comm.rank else 2 * comm.size)
comm.Alltoallv([np.ones(2 * comm.size), np.full(comm.size, 2)], recv, layout="packed")
"""


@pytest.mark.parametrize("end", ["", "MPI.Finalize()", "MPI.Comm.f2py(comm.py2f()).Free()"])
def test_rows_without_room_are_reported_at_the_end(end):
    """No later call raises it: a line on stderr names the rank, its room and what came."""
    done = launch.job(2, "-c", LOST + end)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall("before a call has raised CapacityExceeded: .*rank 1", done.stderr)) == 1, done.stderr
