"""What a rank of a fault test runs: an operation again and again, until it raises; then the way on.

    program.py OPERATION CALLS     with PYNCCLX_FAULT in the environment, and PYNCCLX_TEST_FOLDER for the outcomes

The outcome of a rank is a line of JSON in a file: what was raised, what it names, how long the call took.
"""

import faulthandler
import json
import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["PYNCCLX_TEST_FOLDER"])
STACKS = open(FOLDER / f"stacks{os.getpid()}", "w")  # noqa: SIM115  # until the process ends
faulthandler.dump_traceback_later(float(os.environ["PYNCCLX_TEST_SECONDS"]), file=STACKS, exit=True)

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

if "PYNCCLX_TEST_NODES" in os.environ:  # as in conftest.py: the pretend nodes of the ranks
    os.environ["PYNCCLX_NODE"] = os.environ["PYNCCLX_TEST_NODES"].split(",")[MPI.COMM_WORLD.rank]

import pyncclx  # noqa: E402

COUNT, LONG = 1000, 60_000  # elements: some packets, and more than a slot holds


class Work:
    """A communicator, and what operations on it need; making it is collective."""

    def __init__(self, comm):
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.right, self.left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self.x, self.y = np.full(COUNT, comm.rank + 1, "f4"), np.zeros(COUNT, "f4")
        self.long, self.other = np.full(LONG, comm.rank + 1, "f4"), np.zeros(LONG, "f4")
        self.all = np.zeros(COUNT * comm.size, "f4")
        self.made = {}

    def once(self, name, make):
        """What an operation needs, made at its first call."""
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    def window(self):
        return self.once("window", lambda: pyncclx.Win.Create(self.comm.Alloc(COUNT), 4, comm=self.comm))

    def shuffle(self):
        return self.once(
            "shuffle",
            lambda: self.comm.Create_token_shuffle(2 * self.size, 64, 16, "float32", k=2, max_tokens=8),
        )


def allreduce(work):
    work.comm.Allreduce(work.x, work.y)
    work.comm.synchronize()
    assert (work.y == work.size * (work.size + 1) / 2).all()


def bcast(work):
    work.comm.Bcast(work.y if work.rank else work.x, 0)
    work.comm.Barrier(device=True)
    assert work.rank == 0 or (work.y == 1).all()


def reduce(work):
    work.comm.Reduce(work.x, work.y, root=work.size - 1)
    work.comm.Barrier(device=True)


def allgather(work):
    work.comm.Allgather(work.x, work.all)
    assert (work.all.reshape(work.size, -1) == np.arange(1, work.size + 1)[:, None]).all()


def alltoallv(work):
    counts, got = np.full(work.size, 4), np.zeros(work.size, "i8")
    recv = np.zeros((8 * work.size, 16), "f4")
    rows = np.full((4 * work.size, 16), work.rank + 1, "f4")
    work.comm.Alltoallv([rows, counts], [recv, got], layout="packed")
    work.comm.synchronize()
    assert (got == 4).all()
    assert (recv[: 4 * work.size : 4, 0] == np.arange(1, work.size + 1)).all()


def barrier(work):
    work.comm.Barrier(device=True)


def iallreduce(work):
    work.comm.Iallreduce(work.x, work.y).Wait()
    assert (work.y == work.size * (work.size + 1) / 2).all()


def persistent(work):
    request = work.once("request", lambda: work.comm.Allreduce_init(work.x, work.y))
    request.Start()
    while not request.Test():
        time.sleep(0.001)
    work.comm.synchronize()


def sendrecv(work):
    work.comm.Sendrecv(work.long, work.right, 3, work.other, work.left, 3)
    assert (work.other == work.left + 1).all()
    work.comm.Sendrecv(work.x, work.left, 4, work.y, work.right, 4)
    assert (work.y == work.right + 1).all()


def isend_any(work):
    request = work.comm.Isend(work.long, work.right, 5)
    work.comm.Recv(work.other, MPI.ANY_SOURCE, 5)
    request.Wait()
    assert (work.other == work.left + 1).all()


def objects(work):
    everyone = work.comm.allgather({"rank": work.rank, "array": work.x})
    assert [each["rank"] for each in everyone] == list(range(work.size))
    assert all((each["array"] == rank + 1).all() for rank, each in enumerate(everyone))


def object_messages(work):
    """In a circle: the array is long, so its receiver reads it in the sender's memory."""
    got = work.comm.sendrecv({"array": work.long}, work.right, 6, None, work.left, 6)
    assert (got["array"] == work.left + 1).all()


def plain_objects(work):
    assert work.comm.bcast(work.rank, work.size - 1) == work.size - 1
    assert work.comm.allreduce(1) == work.size


def alloc(work):
    assert work.comm.Alloc(10).size == 10


def dup(work):
    with work.comm.Dup() as duplicate:
        duplicate.Barrier(device=True)


def compile_first(work):
    """The first call of a kind: ranks meet to prepare the kernel."""
    kinds = work.once("kinds", lambda: iter(("i4", "u4", "i8", "u8", "f8", "i2", "u2")))
    array = np.ones(8, next(kinds))
    work.comm.Allreduce(MPI.IN_PLACE, array)
    work.comm.synchronize()


def fence(work):
    win = work.window()
    win.Fence()
    win.Put(work.x[:10], work.right, 0)
    win.Fence()


def lock(work):
    win = work.window()
    win.Lock(0)
    win.Accumulate(work.x[:10], 0, 0)
    time.sleep(0.01)
    win.Unlock(0)


def accumulate(work):
    win = work.window()
    win.Lock_all()
    win.Accumulate(work.x[:10], work.right, 0)
    win.Flush_all()
    win.Unlock_all()
    work.comm.Barrier(device=True)


def signals(work):
    win = work.window()
    win.Put_signal(work.x[:10], work.right, 0, signal=2)
    win.Wait_signal(2)
    work.comm.synchronize()


def dispatch(work):
    shuffle = work.shuffle()
    tokens = np.full((8, 16), work.rank + 1, "f4")
    experts = (np.arange(16).reshape(8, 2) + work.rank) % (2 * work.size)
    rows, handle = shuffle.dispatch(tokens, experts, np.full((8, 2), 0.5, "f4"))
    back = shuffle.combine(rows.data, handle)
    work.comm.synchronize()
    assert (back == work.rank + 1).all()


def agree(work):
    assert work.comm.Agree(3) == 3


OPERATIONS = {
    **{each.__name__: each for each in (allreduce, bcast, reduce, allgather, alltoallv, barrier, iallreduce)},
    **{each.__name__: each for each in (persistent, sendrecv, isend_any, alloc, dup, compile_first, fence, lock)},
    **{each.__name__: each for each in (objects, object_messages, plain_objects)},
    **{each.__name__: each for each in (accumulate, signals, dispatch, agree)},
}


def describe(error):
    """What an exception is and names."""
    names = ("ranks", "world_ranks", "operation", "epoch", "host", "peer", "rank", "reason", "missing")
    fields = {name: getattr(error, name) for name in names if hasattr(error, name)}
    return {"type": type(error).__name__, "text": str(error), **fields}


def attempt(work, call):
    """Make a call; return what it raised, and how long it took."""
    began = time.monotonic()
    try:
        call(work)
        work.comm.synchronize()
        return None
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("PYNCCLX_TEST_ESCAPE") == "1" and type(error).__name__ == "InjectedFault":
            raise
        return {**describe(error), "seconds": time.monotonic() - began}


def go_on(work, call):
    """Shrink, and do the same there, at once."""
    team = work.comm.state.team  # `comm.team` would raise
    whole = team.lease.nbytes if team is not None else None
    work.comm.Revoke()  # a rank may wait for one that lives, and has left
    comm = work.comm.Shrink()
    again = Work(comm)
    for _ in range(3):
        call(again)
    comm.synchronize()
    leased = comm.team.lease.nbytes
    work.comm.Free()
    return {"size": comm.size, "whole": whole, "leased": leased, "failed": work_of_failed(comm)}


def work_of_failed(comm):
    return len([uid for uid in comm.team.heap.peers if uid not in comm.team.heap.members])


def main():
    name, calls = sys.argv[1], int(sys.argv[2])
    MPI.COMM_WORLD.Barrier()  # some ranks start late
    os.environ["PYNCCLX_TIMEOUT"] = os.environ["PYNCCLX_TEST_TIMEOUT"]
    work, call, outcome = Work(pyncclx.Communicator(MPI.COMM_WORLD).Dup()), OPERATIONS[name], {}
    work.comm.Barrier(device=True)
    for number in range(1, calls + 1):
        outcome = attempt(work, call)
        if outcome is not None:
            outcome |= {"call": number, "again": attempt(work, call)}
            break
    outcome = outcome or {"type": None}
    outcome["world_rank"] = MPI.COMM_WORLD.rank
    file = FOLDER / f"rank{MPI.COMM_WORLD.rank}"
    file.write_text(json.dumps(outcome))
    if os.environ.get("PYNCCLX_TEST_SHRINK") == "1" and outcome["type"] is not None:
        outcome["after"] = go_on(work, call)
        file.write_text(json.dumps(outcome))


main()
