"""Children that a rank forks: nothing they do changes the rank, and calls raise there."""

import re

import pytest

import launch

BEGIN = """
import os, signal, sys, threading, time
import mpi4py
mpi4py.rc.finalize = False  # in a child it hangs, with mpi4py alone too
from mpi4py import MPI
import numpy as np
import pyncclx
from pyncclx.requests.open_receives import LOCK

comm = pyncclx.Communicator(MPI.COMM_WORLD).Dup()
rank, size = comm.rank, comm.size

def allreduce(number):
    result = np.zeros(1001, "i4")
    comm.Allreduce(np.arange(1001, dtype="i4") + number * rank, result)
    assert (result == size * np.arange(1001) + number * sum(range(size))).all(), result

allreduce(1)
window = comm.Alloc(7, "i4")
window[:] = rank
request = comm.Iallreduce(np.ones(5), np.zeros(5))
receiving = comm.Irecv(bytearray(9), rank, 8)
"""
# In the child of rank 1, forked while another thread has a lock of the library
CHILDREN = {
    "raises": "raise ValueError('of the child')",
    "exits": "sys.exit(0)",
    "ends at once": "os._exit(0)",
    "calls": """
peers = comm
makers = {
    "Allreduce": lambda: comm.Allreduce(np.ones(3), np.zeros(3)), "send": lambda: comm.send(b"x" * 100, 0),
    "Irecv": lambda: comm.Irecv(np.zeros(3), 0), "Barrier": comm.Barrier, "Free": comm.Free,
    "Wait": request.Wait, "Test": receiving.Test,
    "Alloc": lambda: comm.Alloc(3), "Dup": comm.Dup, "Lock": lambda: pyncclx.Win.Create(window, comm=comm),
    "Iprobe": comm.Iprobe, "new": lambda: pyncclx.Communicator(MPI.COMM_SELF).Allreduce(np.ones(3), np.zeros(3)),
}
for name, make in makers.items():
    try:
        make()
    except pyncclx.NotSupported as error:
        assert "was forked by a rank" in str(error), error
    else:
        raise AssertionError(name)
assert (comm.rank, window[0], pyncclx.dump()) == (1, 1, None)
os._exit(0)
""",
}
END = """
allreduce(2)
request.Wait()
comm.Send(bytearray(9), rank, 8)
receiving.Wait()
comm.Alloc(3)
sys.stdout.write(f"rank {rank}: right, child {code}\\n")
sys.stdout.flush()
MPI.Finalize()
"""


def run(program, ranks=3, **variables):
    done = launch.job(ranks, "-c", BEGIN + program + END, **{"PYNCCLX_TIMEOUT": "60", **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(re.findall(r"rank (\d): right, child (-?\d+)", done.stdout)), done


@pytest.mark.parametrize("child", CHILDREN)
def test_the_end_of_a_child(child, tmp_path):
    """The others see nothing of it for longer than the end of a program is waited for; no rank dumps."""
    codes, done = run(
        f"""
code = 0
if rank == 1:
    locked, over = threading.Event(), threading.Event()
    threading.Thread(target=lambda: [LOCK.acquire(), locked.set(), over.wait(30), LOCK.release()]).start()
    locked.wait()
    pid = os.fork()
    if not pid:
        exec({CHILDREN[child]!r})
    over.set()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    time.sleep(1.3)
comm.Alloc(5)
""",
        PYNCCLX_DUMP=str(tmp_path),
    )
    assert codes == {"0": "0", "1": "1" if child == "raises" else "0", "2": "0"}, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_to_a_child(number):
    """Rank 1 waits for the others meanwhile: its kernel goes on, and no handler runs."""
    codes, done = run(
        f"""
code = 0
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
if rank == 1:
    begun, begins = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(begins, b"1")
            time.sleep(30)
        except (KeyboardInterrupt, SystemExit):
            os._exit(7)
    threading.Thread(target=lambda: os.read(begun, 1) and os.kill(pid, signal.{number})).start()
else:
    time.sleep(1.5)
allreduce(3)
if rank == 1:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
    )
    assert codes == {"0": "0", "1": "7", "2": "0"}, done.stderr


def test_requests_that_a_child_drops():
    """No destructor calls MPI, which would take the parent's messages."""
    codes, done = run(
        """
import mpi_bootstrap

code = 0
if rank == 1:
    column = MPI.INT.Create_vector(9, 1, 2).Commit()
    requests = [comm.Irecv([bytearray(68), 1, column], 0, 1), comm.Recv_init([bytearray(68), 1, column], 0, 2)]
    pid = os.fork()
    if not pid:
        mpi_bootstrap.same_ranks = lambda comm: os._exit(66)  # makes a communicator, for a look at the memory
        requests.clear()
        sys.exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
comm.Barrier()
if rank == 0:
    comm.Send(bytearray(36), 1, 1)
if rank == 1:
    requests[0].Wait()
"""
    )
    assert codes == {"0": "0", "1": "0", "2": "0"}, done.stderr
