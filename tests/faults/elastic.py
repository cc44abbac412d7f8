"""Ranks are killed one after another, and each time the others shrink, and grow to the old size again.

    elastic.py KILLS     prints "done" and what the first and the last rounds have left, on rank 0
"""

import faulthandler
import os
import sys
from pathlib import Path

faulthandler.dump_traceback_later(float(os.environ.get("PYNCCLX_TEST_SECONDS", "100")), exit=True)

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

import pyncclx  # noqa: E402

KILLS = int(sys.argv[1])


def works(comm):
    x, y = np.full(5000, comm.rank + 1, "f4"), np.zeros(5000, "f4")
    for _ in range(3):
        comm.Allreduce(x, y)
    comm.synchronize()
    assert (y == comm.size * (comm.size + 1) / 2).all()


def held(comm):
    """Descriptors, mappings, leases, mapped heaps, and the bytes of the lease."""
    maps = len(Path("/proc/self/maps").read_text().splitlines())
    heap = comm.team.heap
    return len(os.listdir("/proc/self/fd")), maps, len(heap.leases), len(heap.peers), comm.team.lease.nbytes


def main():
    parent, step, before = MPI.Comm.Get_parent(), 0, None
    if parent != MPI.COMM_NULL:
        comm = pyncclx.Communicator(parent.Merge(True))
        step = comm.bcast(None, 0)
    else:
        comm = pyncclx.Communicator().Dup()
    works(comm)
    while step < KILLS:
        if comm.rank == 1 + step % (comm.size - 1):
            os.kill(os.getpid(), 9)
        try:
            works(comm)
        except (pyncclx.RankFailed, pyncclx.Revoked):
            pass
        else:
            raise AssertionError("no rank has failed")
        comm.Revoke()
        shrunk = comm.Shrink()
        comm.Free()
        comm = shrunk.Grow(1, sys.executable, [__file__, str(KILLS)])
        shrunk.Free()
        step = comm.bcast(step + 1, 0)
        works(comm)
        if before is None:
            before = held(comm)
    if comm.rank == 0:
        print("done", before, held(comm), comm.size, flush=True)
    comm.Barrier(device=True)
    os._exit(0)  # Open MPI's MPI_Finalize waits for dead ranks, where some were spawned


main()
