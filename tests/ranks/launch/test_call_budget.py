"""How many functions of Python a call enters: what the host's time is made of, and exact, where clocks are not.

Calls that block the host are counted with the GPU's code for streams and events, which has a part in them, and so are
the calls of the driver that they make.
"""

from collections import Counter

import pytest
from mpi4py import MPI

import pyncclx
from support import gpu_streams
from support.arrays import host_only, xp
from support.functions import entered

COUNT, REPEATS = 256, 100  # where processors are busy, few of them wait for nothing
# The most functions that each call may enter.
BUDGETS = {
    "Allreduce": 14,
    "Allreduce of new arrays": 24,
    "Iallreduce, Wait": 30,
    "Send": 11,
    "Recv": 17,
    "Sendrecv": 26,
    "Irecv, Isend, Waitall": 41,
    "halo of 4": 74,
    "Startall, Waitall of 4": 50,
    "Start of a send": 10,
    "Start of a receive": 8,
    "Put": 13,
    "Get": 13,
    "Allreduce over nodes": 43,
    "Alltoallv": 14,
    "Barrier": 6,
    "allreduce of a number": 14,
    "dispatch": 22,
    "combine": 20,
}
BLOCKING = {
    "Send": 12,
    "Recv": 15,
    "Sendrecv": 23,
    "Irecv, Isend, Waitall": 58,
    "halo of 4": 96,
    "Startall, Waitall of 4": 62,
}
pytestmark = host_only
DRIVER = "cuLaunchKernelEx", "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "is_capturing", "synchronize"
# How often a call that blocks makes each of these. Only persistent messages launch kernels: MPI moves the others.
DRIVER_CALLS = {
    "Send": (0, 0, 0, 0, 0, 1),
    "Recv": (0, 0, 0, 0, 0, 1),
    "Sendrecv": (0, 0, 0, 0, 0, 2),
    "Irecv, Isend, Waitall": (0, 0, 1, 1, 0, 2),
    "halo of 4": (0, 0, 2, 2, 0, 3),
    "Startall, Waitall of 4": (2, 0, 1, 1, 0, 1),
}
# The same of calls that do not block, on the default stream, which cannot be captured.
ENQUEUED = {
    "Send": (1, 0, 0, 0, 0, 0),
    "Recv": (1, 0, 0, 0, 0, 0),
    "Sendrecv": (1, 0, 0, 0, 0, 0),
    "Irecv, Isend, Waitall": (2, 0, 0, 0, 0, 0),
    "Iallreduce, Wait": (1, 0, 2, 2, 0, 0),
}
Waitall = pyncclx.Request.Waitall


class Calls:
    """The calls, on arrays of their own, between this rank and the ones beside it."""

    def __init__(self, comm):
        self.comm, self.left, self.right = comm, (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        self.x, self.y = xp.zeros(COUNT, "f4"), xp.zeros(COUNT, "f4")
        self.sides = [xp.zeros(8 * COUNT, "f4") for _ in range(4)]
        self.each = COUNT // comm.size
        self.kept = []
        self.after = None  # what makes an equal call possible again

    def of(self, name):
        """Return what makes a call; first, make what it needs."""
        comm, x, y, left, right = self.comm, self.x, self.y, self.left, self.right
        if name in ("Put", "Get"):
            window = pyncclx.Win.Create(comm.Alloc(COUNT, "f4"), 4, comm=comm)
            window.Lock_all()
            return lambda: getattr(window, name)(x, right)
        if name in ("dispatch", "combine"):
            return self.of_shuffle(name)
        if name == "Startall, Waitall of 4":
            return self.persistent_halo()
        if name.startswith("Start of"):
            return self.start(name)
        return {
            "Allreduce": lambda: comm.Allreduce(x, y),
            "Allreduce of new arrays": self.of_new_arrays,
            "Allreduce over nodes": lambda: comm.Allreduce(x, y),
            "Iallreduce, Wait": lambda: comm.Iallreduce(x, y).Wait(),
            "Send": lambda: comm.Send(x, right, 1),
            "Recv": lambda: comm.Recv(y, left, 1),
            "Sendrecv": lambda: comm.Sendrecv(x, right, 0, y, left, 0),
            "Irecv, Isend, Waitall": lambda: Waitall([comm.Irecv(y, left, 3), comm.Isend(x, right, 3)]),
            "halo of 4": self.halo,
            "Barrier": comm.Barrier,
            "allreduce of a number": lambda: comm.allreduce(1),
            "Alltoallv": lambda: comm.Alltoallv([x, self.each], [y, self.each]),
        }[name]

    def of_new_arrays(self):
        self.kept += xp.zeros(COUNT, "f4"), xp.zeros(COUNT, "f4")  # the next ones are elsewhere
        self.comm.Allreduce(*self.kept[-2:])

    def halo(self):
        a, b, c, d = self.sides
        comm, left, right = self.comm, self.left, self.right
        Waitall([comm.Irecv(a, left, 1), comm.Irecv(b, right, 2), comm.Isend(c, right, 1), comm.Isend(d, left, 2)])

    def persistent_halo(self):
        a, b, c, d = self.sides
        comm, left, right = self.comm, self.left, self.right
        requests = [comm.Recv_init(a, left, 1), comm.Recv_init(b, right, 2)]
        requests += [comm.Send_init(c, right, 1), comm.Send_init(d, left, 2)]

        def call():
            pyncclx.Prequest.Startall(requests)
            Waitall(requests)

        return call

    def start(self, name):
        """Both requests are started in each round; `after` starts the other one and waits for both."""
        send, receive = self.comm.Send_init(self.x, self.right, 1), self.comm.Recv_init(self.y, self.left, 1)
        first, second = (send, receive) if name == "Start of a send" else (receive, send)

        def after():
            second.Start()
            Waitall([send, receive])

        self.after = after
        return first.Start

    def of_shuffle(self, name):
        sizes = {"num_experts": 8, "capacity": 128, "hidden": 32, "k": 1, "max_tokens": 8}
        shuffle = self.comm.Create_token_shuffle(**sizes, dtype="float32")
        tokens, weights, ids = xp.zeros((8, 32), "f4"), xp.ones((8, 1), "f4"), xp.arange(8).reshape(8, 1)
        rows, handle = shuffle.dispatch(tokens, ids, weights)
        if name == "dispatch":
            return lambda: shuffle.dispatch(tokens, ids, weights)
        return lambda: shuffle.combine(rows.data, handle)


def fewest(comm, name, taken=list):
    """Return what the quickest of some equal calls enters, with messages that have come where it receives.

    It is the one with the fewest calls of the driver. Return also what `taken` has returned after it.
    """
    calls = Calls(comm)
    call, other = calls.of(name), {"Send": calls.of("Recv"), "Recv": calls.of("Send")}.get(name)
    counted = []
    for _ in range(REPEATS):
        if name == "Recv":
            other()
        MPI.Comm.Barrier(comm)
        taken()
        counted.append((entered(call), taken()))
        if name == "Send":
            other()
        if calls.after is not None:
            calls.after()
        MPI.Comm.Barrier(comm)
    return min(counted, key=lambda pair: (len(pair[1]), len(pair[0])))


@pytest.fixture
def comm(name, monkeypatch):
    if name.endswith("over nodes"):
        monkeypatch.setenv("PYNCCLX_NODE", str(MPI.COMM_WORLD.rank))
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as comm:
        yield comm


@pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="measured between two ranks")
@pytest.mark.parametrize("name", BUDGETS)
def test_a_call_enters_few_functions(comm, name):
    functions, _ = fewest(comm, name)
    assert len(functions) <= BUDGETS[name], "\n".join(functions)


@pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="measured between two ranks")
@pytest.mark.parametrize("name", BLOCKING)
def test_a_blocking_call_enters_few_functions(name):
    with gpu_streams.installed() as driver, pyncclx.Communicator(MPI.COMM_WORLD).Dup() as comm:
        comm.blocking = "host"
        functions, calls = fewest(comm, name, driver.taken)
    assert len(functions) <= BLOCKING[name], "\n".join(functions)
    assert counts_of(calls) == DRIVER_CALLS[name], calls


def counts_of(calls):
    """Return how often each of `DRIVER` was called."""
    counts = Counter(call for call, *_ in calls)
    return tuple(counts[call] for call in DRIVER)


@pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="measured between two ranks")
@pytest.mark.parametrize("name", ENQUEUED)
def test_an_enqueued_call_makes_few_calls_of_the_driver(name):
    with gpu_streams.installed() as driver, pyncclx.Communicator(MPI.COMM_WORLD).Dup() as comm:
        _, calls = fewest(comm, name, driver.taken)
    assert counts_of(calls) == ENQUEUED[name], calls
