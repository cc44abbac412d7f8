"""Programs of ranks that end, leave, or are freed in some order; each rank prints what became of it.

ends.py NAME COUNT     COUNT is that of the arrays' elements

PYNCCLX_TEST_NODES has the pretend nodes, PYNCCLX_TEST_THREADS MPI's level of threads.
"""

import atexit
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time

import mpi4py

faulthandler.dump_traceback_later(110, exit=True)
mpi4py.rc.thread_level = os.environ.get("PYNCCLX_TEST_THREADS", "multiple")

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
if RANK == 1:  # after the library's own functions: by then no thread of the library runs
    atexit.register(time.sleep, float(os.environ.get("PYNCCLX_TEST_END_S", "0")))
NODES = os.environ.get("PYNCCLX_TEST_NODES", "")
if NODES:
    os.environ["PYNCCLX_NODE"] = NODES.split(",")[RANK]

import pyncclx  # noqa: E402
from pyncclx.memory.heap import HEAP  # noqa: E402

LATE_S = 2.5
COUNT = int(sys.argv[2])


def say(*words):
    print(f"rank {RANK}:", *words, flush=True)


def reduced(comm, value):
    """The sum of ranks' values on rank 0."""
    y = np.full(COUNT, -1.0)
    comm.Reduce(np.full(COUNT, value + RANK), y if RANK == 0 else None, root=0)
    comm.synchronize()
    return y[0]


def with_kernels(call=None):
    """Return a communicator that waits for late ranks as long as PYNCCLX_TEST_TIMEOUT.

    Another one has made the call before, so that none of its ranks waits for a compiler.
    """
    with pyncclx.Communicator().Dup() as other:
        reduced(other, 0.0)
        if call is not None:
            call(other)
        other.synchronize()
    os.environ["PYNCCLX_TIMEOUT"] = os.environ.get("PYNCCLX_TEST_TIMEOUT", "100")
    return pyncclx.Communicator().Dup()


def after_the_last_call():
    """Rank 1's program ends after a call of which rank 0 needs its part, and the last rank is late."""
    comm = with_kernels()
    reduced(comm, 0.0)
    if RANK == SIZE - 1:
        time.sleep(LATE_S)
    try:
        result = reduced(comm, 5.0)
        say("right" if RANK or result == 5.0 * SIZE + sum(range(SIZE)) else f"wrong {result}")
    except pyncclx.PeerTimeout as error:
        say("PeerTimeout", error.peer)
    except pyncclx.Aborted:  # the late rank, if rank 0 has stopped waiting by then
        say("Aborted")


def left_out():
    """Rank 1 leaves out a call of each communicator. The others wait for it, or for a rank that itself waits for it.

    Short calls before have left values in the packets' slots that are no places in windows.
    """
    x, rows = np.full(COUNT, 1.0 + RANK), np.empty((SIZE, COUNT))
    few, sums, each = np.ones(9), np.zeros(9), COUNT // SIZE

    def all_of(comm):
        y, z = comm.Alloc((2, COUNT), "f8")
        for call in calls.values():
            call(comm, y, z)
        comm.Allreduce(few, sums)

    calls = {
        "Reduce": lambda comm, y, z: comm.Reduce(x, y, root=0),
        "Bcast": lambda comm, y, z: comm.Bcast(y, root=0),
        "Scan": lambda comm, y, z: comm.Scan(x, np.empty_like(x)),
        "Allgather": lambda comm, y, z: comm.Allgather(x, rows),
        "Gather": lambda comm, y, z: comm.Gather(x, rows, root=2),
        "Ireduce": lambda comm, y, z: comm.Ireduce(x, y, root=3).Wait(),
        "Allreduce": lambda comm, y, z: comm.Allreduce(y, z),
        "Alltoall": lambda comm, y, z: comm.Alltoall([y, each], [z, each]),
    }
    with_kernels(all_of).Free()
    for name, call in calls.items():
        comm = pyncclx.Communicator().Dup()
        y, z = comm.Alloc((2, COUNT), "f8")
        y[:] = 0.0
        for _ in range(2):
            call(comm, y, z)
        for _ in range(2):
            comm.Allreduce(few, sums)
        try:
            if RANK != 1:
                call(comm, y, z)
                comm.synchronize()
            say(name, "ok")
        except pyncclx.PeerTimeout as error:
            say(name, error.peer)
        MPI.COMM_WORLD.Barrier()
        comm.Free()


def beside_a_rank_that_stands_still():
    """Rank 1 leaves out a call. Rank 2 has made it, and then keeps the interpreter while rank 0 waits."""
    comm = with_kernels()
    reduced(comm, 0.0)
    try:
        if RANK != 1:
            reduced(comm, 5.0)
            say("ok")
        else:
            say("late")
        if RANK == 2:
            ctypes.PyDLL(None).usleep(int(LATE_S * 1e6))
    except pyncclx.PeerTimeout as error:
        say("PeerTimeout", error.peer)
    MPI.COMM_WORLD.Barrier()
    comm.Free()


def freed_after_a_timeout():
    """The last rank does not come to a call; the others free the communicator, and then it does so, too."""
    comm = with_kernels(lambda other: other.Allreduce(np.ones(COUNT), np.empty(COUNT)))
    reduced(comm, 0.0)
    shuffle = comm.Create_token_shuffle(SIZE, 4 * SIZE, 16, "float32", k=1, max_tokens=4)
    shuffle.dispatch(np.ones((4, 16), "f4"), np.zeros((4, 1), "i8"))
    comm.synchronize()
    y, raised = np.empty(COUNT), ""
    if RANK < SIZE - 1:
        try:
            comm.Allreduce(np.ones(COUNT), y)
            comm.synchronize()
        except (pyncclx.PeerTimeout, pyncclx.Aborted) as error:
            raised = type(error).__name__
    else:
        time.sleep(LATE_S + 3)
        raised = "absent"
    shuffle.Free()
    comm.Free()
    say("freed", comm == MPI.COMM_NULL, bool(raised))
    other = pyncclx.Communicator().Dup()
    other.Allreduce(np.ones(COUNT), y)
    other.synchronize()
    say("right" if (y == SIZE).all() else f"wrong {y[0]}", len(HEAP.get().leases), "leases")
    other.Free()


def freed_after_a_first_call():
    """The last rank leaves out a communicator's first nonblocking call, which makes what the library meets on."""
    comm = with_kernels()
    reduced(comm, 0.0)
    y, raised = np.empty(COUNT), []
    if RANK < SIZE - 1:
        try:
            comm.Iscatterv([np.ones(SIZE * COUNT), [COUNT] * SIZE] if RANK == 0 else None, y).Wait()
        except pyncclx.PeerTimeout as error:
            raised = ["PeerTimeout", error.peer]
    else:
        time.sleep(LATE_S)
    MPI.COMM_WORLD.Barrier()
    comm.Free()
    say("freed", comm == MPI.COMM_NULL, *raised)


def a_long_send_behind_short_ones():
    """MPI has still to send the short ones when rank 0 waits for the long one, which is received last."""
    comm = pyncclx.Communicator().Dup()
    short, long = np.empty(4000, "u1"), np.empty(100_000, "u1")
    comm.Sendrecv(np.ones(9), 1 - RANK, 0, np.empty(9), 1 - RANK, 0)
    for turn in range(2):
        if RANK == 0:
            long[:] = 7 + turn
            request = comm.Isend(long, 1, 9)
            for number in range(COUNT):
                comm.Isend(np.full(4000, number % 251, "u1"), 1, 1).Free()
            request.Wait()
            comm.synchronize()
            continue
        time.sleep(0.5)
        for number in range(COUNT):
            comm.Recv(short, 0, 1)
            comm.synchronize()
            assert (short == number % 251).all(), number
        comm.Recv(long, 0, 9)
        comm.synchronize()
        assert (long == 7 + turn).all()
    say("right")


def revoked_again_and_again():
    """A rank revokes a communicator, all shrink and free it, and go on with another."""
    for turn in range(6):
        comm = pyncclx.Communicator().Dup()
        y = np.empty(COUNT)
        comm.Allreduce(np.ones(COUNT), y)
        comm.synchronize()
        MPI.COMM_WORLD.Barrier()
        if turn % SIZE == RANK:
            comm.Revoke()
        raised = []
        while len(raised) < 2:
            try:
                comm.Allreduce(np.ones(COUNT), y)
                comm.synchronize()
                assert turn % SIZE != RANK, "a call succeeds on the rank that has revoked the communicator"
            except (pyncclx.Revoked, pyncclx.Aborted) as error:
                raised.append(type(error).__name__)
        shrunk = comm.Shrink()
        say(raised[-1], len(HEAP.get().leases), "leases")
        comm.Free()
        shrunk.Allreduce(np.ones(COUNT), y)
        shrunk.synchronize()
        assert (y == SIZE).all()
        shrunk.Free()
    say("done")


def revoked_host_calls():
    """Calls that mpi4py performs raise what those of kernels raise."""
    comm, data = pyncclx.Communicator().Dup(), [bytearray(8), MPI.BYTE]
    comm.Allreduce(np.ones(COUNT), np.empty(COUNT))
    comm.synchronize()
    MPI.COMM_WORLD.Barrier()
    if RANK == 0:
        comm.Revoke()
    while not comm.Is_revoked():
        time.sleep(0.01)
    calls = {
        "Barrier": comm.Barrier,
        "barrier": comm.barrier,
        "Bcast": lambda: comm.Bcast(data),
        "Send": lambda: comm.Send(data, 1 - RANK),
        "Recv": lambda: comm.Recv(data, 1 - RANK),
        "bcast": lambda: comm.bcast(data),
    }
    for name, call in calls.items():
        try:
            call()
        except MPI.Exception as error:
            say(name, type(error).__name__)
    both = {
        "Isendrecv": lambda: comm.Isendrecv(data, 1 - RANK, 0, [bytearray(8), MPI.BYTE], 1 - RANK),
        "Isendrecv_replace": lambda: comm.Isendrecv_replace(data, 1 - RANK, 0, 1 - RANK),
    }
    for name, begin in both.items():
        try:
            begin().Wait()
        except MPI.Exception as error:
            say(name, error.Get_error_class() == MPI.ERR_REVOKED)
    MPI.COMM_WORLD.Barrier()
    os._exit(0)


def until(is_over):
    while not is_over():
        time.sleep(0.001)


WAYS = {
    "Wait": lambda request: request.Wait(),
    "Test": lambda request: until(request.Test),
    "Get_status": lambda request: (until(request.Get_status), request.Wait()),
    "Waitall": lambda request: pyncclx.Request.Waitall([request]),
    "Testall": lambda request: until(lambda: pyncclx.Request.Testall([request])),
    "Waitany": lambda request: pyncclx.Request.Waitany([request]),
    "Waitsome": lambda request: pyncclx.Request.Waitsome([request]),
    "waitall": lambda request: pyncclx.Request.waitall([request]),
}


def revoked_requests():
    """Requests of host and device arrays, and of mpi4py's own calls, end in whatever way a program waits for them."""
    comm, peer = pyncclx.Communicator().Dup(), 1 - RANK
    begin = {
        "host": lambda: comm.Irecv([bytearray(800), MPI.BYTE], peer, 1),
        "device": lambda: comm.Irecv(np.empty(COUNT), peer, 2),
        "both": lambda: comm.Isendrecv([bytearray(8), MPI.BYTE], peer, 3, np.empty(COUNT), peer, 4),
        "hosts": lambda: comm.Isendrecv([bytearray(8), MPI.BYTE], peer, 7, [bytearray(8), MPI.BYTE], peer, 8),
        "replaced": lambda: comm.Isendrecv_replace([bytearray(8), MPI.BYTE], peer, 9, peer, 10),
        "mpi4py's": lambda: MPI.Comm.Irecv(comm, bytearray(800), peer, 5),
        "object": lambda: comm.irecv(None, peer, 6),
    }
    requests = {(kind, way): begin[kind]() for kind in begin for way in WAYS}
    MPI.COMM_WORLD.Barrier()
    if RANK == 0:
        comm.Revoke()
    for (kind, way), request in requests.items():
        try:
            # mpi4py's own method asks MPI, whose Open MPI then finds no failures.
            WAYS["Wait" if way == "Get_status" and kind in ("mpi4py's", "object") else way](request)
            say(kind, way, "ended")
        except MPI.Exception as error:
            reason = error.__cause__ if error.Get_error_class() == MPI.ERR_IN_STATUS else error
            say(kind, way, isinstance(error, pyncclx.Revoked) or reason.Get_error_class() == MPI.ERR_REVOKED)
    MPI.COMM_WORLD.Barrier()
    os._exit(0)


def without_threads_of_mpi():
    """Calls that do not block are refused where a thread would call MPI; those that block work, beside MPI's."""
    comms = [pyncclx.Communicator().Dup() for _ in range(2)]
    x, y = np.ones(COUNT), np.empty(COUNT)
    refused = 0
    for _ in range(20):
        for comm in comms:
            y[:] = -1
            comm.Allreduce(x, y)
            comm.synchronize()
            assert (y == SIZE).all()
            for begin in (comm.Iallreduce, comm.Allreduce_init):
                try:
                    request = begin(x, y)
                except pyncclx.NotSupported as error:
                    refused += "THREAD_MULTIPLE" in str(error)
                else:
                    MPI.COMM_WORLD.Barrier()
                    if begin == comm.Allreduce_init:
                        request.Start()
                    MPI.COMM_WORLD.Barrier()
                    request.Wait()
            MPI.COMM_WORLD.Barrier()
    say("refused", refused)


def interrupted_in_wait_signal():
    """Ctrl-C while a stream waits for a signal that does not come."""
    comm = pyncclx.Communicator().Dup()
    comm.Barrier(device=True)  # whose kernel all ranks load together
    win = pyncclx.Win.Create(comm.Alloc(10, "f8"), 8, comm=comm)
    if RANK == 1:
        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
        try:
            win.Wait_signal(2)
            comm.synchronize()
        except KeyboardInterrupt:
            say("interrupted")
    MPI.COMM_WORLD.Barrier()
    try:
        comm.Barrier(device=True)
        comm.synchronize()
    except pyncclx.Aborted as error:
        say("rank 1 was interrupted" in str(error))
    MPI.COMM_WORLD.Barrier()  # the others learn of it by then
    os._exit(0)


def left_in_a_first_call():
    """Rank 0 begins a call that no other rank makes, and its program ends."""
    comm = pyncclx.Communicator().Dup()
    request = comm.Iallreduce(np.ones(COUNT), np.empty(COUNT)) if RANK == 0 else MPI.REQUEST_NULL
    say("begun", request.Test() is (RANK > 0))


def finalized_in_a_first_call():
    """The same, where the program itself finalizes MPI."""
    left_in_a_first_call()
    MPI.Finalize()


def interrupted_in_a_first_call():
    """Ctrl-C while rank 1 waits for a call that the others begin afterwards; the call is made all the same."""
    comm, y = pyncclx.Communicator().Dup(), np.empty(COUNT)
    if RANK == 1:
        request = comm.Iallreduce(np.ones(COUNT), y)
        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
        try:
            request.Wait()
        except KeyboardInterrupt:
            say("interrupted")
    MPI.COMM_WORLD.Barrier()
    if RANK != 1:
        comm.Iallreduce(np.ones(COUNT), y).Wait()
    comm.synchronize()
    say("right" if (y == SIZE).all() else f"wrong {y[0]}")
    comm.Allreduce(np.full(COUNT, 2.0), y)
    comm.synchronize()
    say("right" if (y == 2 * SIZE).all() else f"wrong {y[0]}")
    comm.Free()


globals()[sys.argv[1]]()
