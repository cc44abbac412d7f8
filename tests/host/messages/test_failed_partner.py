"""A rank dies in the middle of a partitioned message: the other end raises RankFailed, and goes on with the rest."""

import pytest

from support.survivors import needs_survivors, run_with_survivors

PROGRAM = """
import contextlib, os, signal, sys
from mpi4py import MPI
import numpy as np
import pyncclx

comm = pyncclx.Communicator(MPI.COMM_WORLD).Dup()
comm.Allreduce(MPI.IN_PLACE, comm.Alloc(4))
x, y = comm.Alloc(4), comm.Alloc(4)
x[:] = 1 + comm.rank

def exchange(peer, rounds):
    send, receive = comm.Psend_init(x, 2, peer, 3), comm.Precv_init(y, 2, peer, 3)
    for _ in range(rounds):
        pyncclx.Prequest.Startall([receive, send])
        send.Pready_range(0, 1)
        pyncclx.Request.Waitall([receive, send])
    return send, receive

if comm.rank == 2:
    exchange(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)
if comm.rank == 0:
    try:
        send, receive = exchange(2, 1)
        pyncclx.Prequest.Startall([receive, send])
        send.Pready_range(0, 1)
        (send if sys.argv[1] == "sends" else receive).Wait()
        comm.synchronize()
        while True:
            comm.Iprobe(1)
    except pyncclx.RankFailed as error:
        assert error.ranks == (2,), error
        print("known", flush=True)
    with contextlib.suppress(pyncclx.RankFailed):  # it may be known twice: by the call, and by a kernel that left
        comm.synchronize()
if comm.rank < 2:
    exchange(1 - comm.rank, 3)
    print(f"{y.tolist()}", flush=True)
    os._exit(0)  # MPI cannot be finalized without the failed rank
"""


@needs_survivors
@pytest.mark.parametrize("what", ["sends", "receives"])
def test_a_partner_that_dies(what: str) -> None:
    done = run_with_survivors(PROGRAM, what, ranks=3, timeout_s=200)
    assert sorted(done.stdout.split("\n")) == ["", "[1.0, 1.0, 1.0, 1.0]", "[2.0, 2.0, 2.0, 2.0]", "known"], (
        done.stdout + done.stderr
    )
