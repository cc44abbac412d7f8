"""A program that goes wrong on purpose: python tests/support/faulty.py CAUSE, on 3 ranks; for tests of the analyser.

After a few calls that are well, rank 1 or all ranks do what the cause is. PYNCCLX_TIMEOUT ends what would hang.
"""

import os
import signal
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

import pyncclx

comm = pyncclx.Communicator(MPI.COMM_WORLD)
rank, size, odd = comm.rank, comm.size, comm.rank == 1
x, y = np.ones(1000, "f4"), np.zeros(1000, "f4")
LONG = 60.0  # longer than the test waits
HANGS = ("missing_partner", "unmatched_tag", "compile_wait", "mutual_receives", "settings_differ")


def well(calls: int = 20) -> None:
    for _ in range(calls):
        comm.Allreduce(x, y)
        comm.Bcast(y, 0)


def dead() -> None:
    if odd:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.Allreduce(x, y)


def exception() -> None:
    if odd:
        raise KeyError("no such batch")
    comm.Allreduce(x, y)


def stalled_before() -> None:
    if odd:
        time.sleep(LONG)
    comm.Allreduce(x, y)


def stopped() -> None:
    if odd:
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.Allreduce(x, y)


def ended() -> None:
    if odd:
        return
    comm.Allreduce(x, y)


def different_operation() -> None:
    if odd:
        comm.Bcast(y, 0)
    else:
        comm.Allreduce(x, y)


def different_root() -> None:
    comm.Bcast(y, 2 if odd else 0)


def different_operator() -> None:
    comm.Allreduce(x, y, MPI.MAX if odd else MPI.SUM)


def different_type() -> None:
    comm.Allreduce(x.astype("i4") if odd else x, y.astype("i4") if odd else y)


def different_count() -> None:
    count = 500 if odd else 1000
    comm.Allreduce(x[:count], y[:count])


def order_of_communicators() -> None:
    first, second = comm.Dup(), comm.Dup()
    for each in (first, second):
        each.Allreduce(x, y)
    for each in (second, first) if odd else (first, second):
        each.Allreduce(x, y)
    for each in (first, second):
        each.synchronize()


def missing_partner() -> None:
    if odd:
        comm.Recv(y, 0, 7)
    comm.Barrier()


def mutual_receives() -> None:
    if rank < 2:
        comm.Recv(y, 1 - rank, 3)
        comm.Send(x, 1 - rank, 3)
    comm.Barrier()


def unmatched_tag() -> None:
    if rank == 0:
        comm.Send(x, 1, 8)
    if odd:
        comm.Recv(y, 0, 7)
    comm.Barrier()


def lock_cycle() -> None:
    memory = comm.Alloc(8)
    win = pyncclx.Win.Create(memory, 4, comm=comm)
    if rank < 2:
        win.Lock(rank)
        MPI.Comm.Barrier(pair)
        win.Lock(1 - rank)
    comm.Barrier()


def full_capacity() -> None:
    counts = np.full(size, 4, "i8")
    received, rows = np.zeros(size, "i8"), np.ones((4 * size, 4), "f4")
    room = np.zeros((6 if odd else 4 * size, 4), "f4")
    comm.Alltoallv([rows, counts], [room, received], layout="packed")
    comm.synchronize()
    comm.Barrier()


def gpu_error() -> None:
    if odd:
        raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")
    comm.Allreduce(x, y)


def compile_wait() -> None:
    from pyncclx.backends.compilers import gxx  # noqa: PLC0415

    os.environ["PYNCCLX_CACHE"] = f"/tmp/pyncclx-faulty-{os.getpid()}"
    original = gxx.subprocess.Popen

    def slow(*args, **kwargs):
        if comm.rank == 0:
            time.sleep(LONG)
        return original(*args, **kwargs)

    gxx.subprocess.Popen = slow
    comm.Allreduce(x.astype("i2"), y.astype("i2"), MPI.BXOR)


def settings_differ() -> None:
    comm.Dup().Allreduce(x, y)


def slow_rank() -> None:
    for _ in range(30):
        if odd:
            time.sleep(0.02)
        comm.Allreduce(x, y)
    pyncclx.dump()


def healthy() -> None:
    if rank == 0:
        comm.Send(x, 1, 8)
    if odd:
        comm.Recv(y, 0, 8)
    win = pyncclx.Win.Create(comm.Alloc(8), 4, comm=comm)
    win.Lock(0)
    win.Unlock(0)
    win.Free()
    sub = comm.Split(rank % 2)
    sub.Allreduce(x, y)
    sub.Free()
    comm.Barrier()
    pyncclx.dump()


cause = sys.argv[1]
pair = MPI.COMM_WORLD.Split(rank < 2)
if cause == "settings_differ" and odd:
    os.environ["PYNCCLX_CHECK"] = "1"
well()
if cause in HANGS:  # in MPI, without an end
    threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGUSR1)).start()
try:
    globals()[cause]()
    comm.synchronize()
    if cause in ("stalled_before", "unmatched_tag", "missing_partner", "different_operation"):
        comm.Barrier()
except (pyncclx.PeerTimeout, pyncclx.RankFailed, pyncclx.CollectiveMismatch, pyncclx.CapacityExceeded) as error:
    print(f"rank {rank}: {error}", flush=True)
    time.sleep(1.0)  # the others dump
    os._exit(0)  # not MPI_Finalize, which may wait
