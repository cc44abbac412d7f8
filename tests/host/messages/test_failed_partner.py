"""A rank dies in the middle of a partitioned message: the other end raises RankFailed, and goes on with the rest."""

import subprocess

import pytest
from mpi4py import MPI

import launch

PROGRAM = """
import os, signal, sys
from mpi4py import MPI
import numpy as np
import pyncclx

comm = pyncclx.Communicator(MPI.COMM_WORLD).Dup()
comm.Allreduce(MPI.IN_PLACE, comm.Alloc(4))
x, y = comm.Alloc(4), comm.Alloc(4)
x[:] = 1 + comm.rank

def one_round(peer, partitions):
    Send, Receive = comm.Psend_init(x, 2, peer, 3), comm.Precv_init(y, 2, peer, 3)
    for partition in range(partitions):
        pyncclx.Prequest.Startall([Receive, Send])
        Send.Pready_range(0, 1)
        pyncclx.Request.Waitall([Receive, Send])
    return Send, Receive

if comm.rank == 2:
    one_round(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)
if comm.rank == 0:
    Send, Receive = one_round(2, 1)
    pyncclx.Prequest.Startall([Receive, Send])
    Send.Pready(0)
    if sys.argv[1] == "sends":
        Send.Pready(1)
    try:
        (Send if sys.argv[1] == "sends" else Receive).Wait()
        comm.synchronize()
        while True:
            comm.Iprobe(1)
    except pyncclx.RankFailed as error:
        assert error.ranks == (2,), error
        print("known", flush=True)
if comm.rank < 2:
    one_round(1 - comm.rank, 3)
    print(f"{y.tolist()}", flush=True)
    os._exit(0)  # MPI cannot be finalized without the failed rank
"""


@pytest.mark.skipif(MPI.get_vendor()[0] != "Open MPI", reason="needs Open MPI, started so that jobs outlive processes")
@pytest.mark.parametrize("what", ["sends", "receives"])
def test_a_partner_that_dies(what: str) -> None:
    program, *arguments = launch.mpiexec(3, "-c", PROGRAM, what)
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
    assert sorted(done.stdout.split("\n")) == ["", "[1.0, 1.0, 1.0, 1.0]", "[2.0, 2.0, 2.0, 2.0]", "known"], (
        done.stdout + done.stderr
    )
