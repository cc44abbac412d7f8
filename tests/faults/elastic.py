"""Ranks are killed one after another, and each time the others shrink, and grow to the old size again.

elastic.py KILLS     prints "done" and what the first and the last rounds have left, on rank 0
"""

import contextlib
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


def start():
    """The communicator to begin with: of all ranks, or of those that have grown by this one."""
    parent = MPI.Comm.Get_parent()
    if parent == MPI.COMM_NULL:
        return pyncclx.Communicator().Dup()
    return pyncclx.Communicator(parent.Merge(True))


def recover(comm):
    """Go on without the rank that has failed, and with a new one in its place."""
    comm.Revoke()  # a rank may wait for one that lives, and has left
    shrunk = comm.Shrink()
    comm.Free()
    grown = shrunk.Grow(1, sys.executable, [__file__, str(KILLS)])
    shrunk.Free()
    return grown


def round_of(comm, step, kept):
    """Work; then a rank dies, and the others find out, in this call or, where they come late, in the one before."""
    step = comm.bcast(step, 0)
    works(comm)
    if step:
        kept.append(held(comm))
    if step < KILLS:
        if comm.rank == 1 + step % (comm.size - 1):
            os.kill(os.getpid(), 9)
        works(comm)
        raise AssertionError("no rank has failed")


def main():
    comm, step, kept = start(), 0, []  # of the steps, rank 0's counts
    while True:
        try:
            round_of(comm, step, kept)
            break
        except (pyncclx.RankFailed, pyncclx.Revoked):
            comm = recover(comm)
            step += 1
    if comm.rank == 0:
        print("done", kept[0], kept[-1], comm.size, flush=True)
    with contextlib.suppress(pyncclx.RankFailed):  # of one that ended before this one came
        comm.Barrier(device=True)
        comm.synchronize()
    os._exit(0)  # Open MPI's MPI_Finalize waits for dead ranks, where some were spawned


main()
