"""Objects that cannot be sent or opened: the rank whose part fails raises, no other one waits for it, all goes on."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx import events
from pyncclx.messages import receive
from pyncclx.messages.send import Outgoing
from pyncclx.objects import packed_arrays
from pyncclx.objects.packed_arrays import PackedArrays
from support.arrays import put
from support.everywhere import assert_everywhere
from support.labelled_messages import assert_all_read, map_peers
from support.objects import difference
from support.reference import labels
from support.reversed_ranks import reversed_ranks, ring

LONG = 20_001  # elements of 8 bytes: more than fit in a slot

comm = pytest.fixture(reversed_ranks, scope="module")
ring = pytest.fixture(ring)


@pytest.fixture(autouse=True)
def by_kernels(comm, monkeypatch):
    """Arrays of any length go by kernels; the first messages, which bring their data, are over."""
    monkeypatch.setattr(packed_arrays, "SHORT_NBYTES", -1)
    map_peers(comm)


class Fault(Exception):
    """What is raised on purpose."""


class Stop(BaseException):
    """The same, as Ctrl-C raises it."""


FAULTS = (Fault, Stop)


class Evil:
    """An object that raises on one rank of the world when it is unpickled, with device arrays in it or without."""

    def __init__(self, rank, fault, *arrays):
        self.fields = rank, fault, *arrays

    def __reduce__(self):
        return _evil, self.fields


def _evil(rank, fault, *arrays):
    if MPI.COMM_WORLD.rank == rank:
        raise fault("unpickled")
    return "evil", *arrays


def values(comm, call=0):
    return put(labels(comm.rank, LONG, call))


def sent_around(comm, name):
    """A call that sends to the rank above and receives from the one below."""

    def call(obj):
        above, below = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        if name == "sendrecv":
            return comm.sendrecv(obj, above, 3, None, below, 3)
        request = comm.irecv(bytearray(1 << 20), below, 3)
        error, sent = None, None
        try:
            sent = getattr(comm, name)(obj, above, 3)
        except BaseException as raised:
            error = raised
        if any(MPI.Comm.allgather(comm, error is not None)):
            request.Cancel()
            request.Wait()
        if error is not None:
            raise error
        received = request.wait()
        if sent is not None:
            sent.wait()
        return received

    return call


CALLS = {  # given a communicator: a call with an object of this rank
    **{name: lambda comm, name=name: sent_around(comm, name) for name in ("send", "ssend", "isend", "issend")},
    "sendrecv": lambda comm: sent_around(comm, "sendrecv"),
    "bcast": lambda comm: comm.bcast,
    "gather": lambda comm: comm.gather,
    "scatter": lambda comm: lambda obj: comm.scatter([obj] * comm.size),
    "allgather": lambda comm: comm.allgather,
    "alltoall": lambda comm: lambda obj: comm.alltoall([obj] * comm.size),
    "reduce": lambda comm: comm.reduce,
    "allreduce": lambda comm: comm.allreduce,
    "scan": lambda comm: comm.scan,
}
BY_COLLECTIVES = ("bcast", "allgather", "allreduce")


def check_all(comm):
    """All calls are right, and no memory of earlier ones is kept."""
    assert_all_read(comm)
    problem, below = "", (comm.rank - 1) % comm.size
    for number, (name, call) in enumerate(CALLS.items()):
        own = call(comm)(values(comm, number))
        every = [labels(rank, LONG, number) for rank in range(comm.size)]
        expected = {
            "bcast": every[0],
            "scatter": every[0],
            "gather": None if comm.rank else every,
            "allgather": every,
            "alltoall": every,
            "reduce": None if comm.rank else sum(every),
            "allreduce": sum(every),
            "scan": sum(every[: comm.rank + 1]),
        }.get(name, every[below])
        problem = problem or difference(own, expected, name)
    assert_everywhere(comm, not problem, problem)


def attempt(call, obj):
    """The exception of a call that was raised on purpose, or that MPI raises; None if there is none."""
    try:
        call(obj)
    except (*FAULTS, MPI.Exception, ValueError) as error:
        return error
    return None


def failing(monkeypatch, owner, name, fault, after=0):
    """Let a function raise, from the call with this number on."""
    own, calls = getattr(owner, name), []

    def refuse(*args, **kwargs):
        calls.append(name)
        if len(calls) > after:
            raise fault(name)
        return own(*args, **kwargs)

    monkeypatch.setattr(owner, name, refuse)


class Listener:
    """A listener to events that raises."""

    def __init__(self, fault, after):
        self.fault, self.left = fault, after

    def __call__(self, event):
        self.left -= 1
        if self.left < 0:
            raise self.fault("event")


SENDING = {"of": PackedArrays, "pack": PackedArrays, "_choose": Outgoing, "signal_ready": Outgoing}
SEALED = [name for name in CALLS if name not in (*BY_COLLECTIVES, "scan")]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("point", [*SENDING, "event"])
@pytest.mark.parametrize("name", SEALED)
def test_raised_while_sending(comm, monkeypatch, name, point, fault):
    """On all ranks that send, at the first object for another rank or at the second: MPI has been given none."""
    sends = comm.rank == 0 or name != "scatter"
    after = 1 if name in ("scatter", "alltoall") and comm.size > 1 else 0
    with monkeypatch.context() as patched:
        if point == "event":
            patched.setattr(events, "listeners", [Listener(fault, after)])
        else:
            failing(patched, SENDING[point], point, fault, after)
        error = attempt(CALLS[name](comm), values(comm)) if sends else None
    assert_everywhere(comm, isinstance(error, fault) or not sends, repr(error))
    check_all(comm)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("point", ["like", "finish"])
@pytest.mark.parametrize("name", SEALED)
def test_raised_while_receiving(comm, monkeypatch, name, point, fault):
    """On one rank: the others, which have sent to it or received something themselves, have nothing to do with it."""
    with monkeypatch.context() as patched:
        if comm.rank == 0:
            failing(patched, PackedArrays, point, fault)
        error = attempt(CALLS[name](comm), values(comm))
    assert_everywhere(comm, isinstance(error, fault) if comm.rank == 0 else error is None, repr(error))
    check_all(comm)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", SEALED)
def test_memory_that_cannot_be_read(comm, monkeypatch, name):
    """The receiver raises what it has met, whatever that is, and its sender goes on."""
    with monkeypatch.context() as patched:
        if comm.rank == 0:
            failing(patched, receive, "address_of", Fault)
        error = attempt(CALLS[name](comm), values(comm))
    assert_everywhere(comm, isinstance(error, Fault) if comm.rank == 0 else error is None, repr(error))
    check_all(comm)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("point", ["like", "finish"])
@pytest.mark.parametrize("name", BY_COLLECTIVES)
def test_raised_in_a_collective_of_arrays(comm, monkeypatch, name, point):
    """Before the kernel all ranks raise, for none can do without the others; behind it only the one does."""
    with monkeypatch.context() as patched:
        if comm.rank == 0:
            failing(patched, PackedArrays, point, Fault)
        error = attempt(CALLS[name](comm), values(comm))
    raises = comm.rank == 0 or point == "like"
    assert_everywhere(comm, isinstance(error, Fault) == raises and (error is None) != raises, repr(error))
    check_all(comm)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("arrays", [0, 1])
@pytest.mark.parametrize("name", [name for name in CALLS if "reduce" not in name and name != "scan"])
def test_unpickling_raises_on_one_rank(comm, name, arrays, fault):
    """One object among those of all ranks; where a rank receives several, those behind it are declined."""
    to_one, sender = comm.rank == 0, 0 if name in ("bcast", "scatter") else comm.size - 1
    evil = Evil(MPI.Comm.bcast(comm, MPI.COMM_WORLD.rank), fault, *[values(comm)] * arrays)
    error = attempt(CALLS[name](comm), evil if comm.rank == sender else {"x": values(comm)})
    assert_everywhere(comm, isinstance(error, fault) if to_one else error is None, repr(error))
    check_all(comm)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["gather", "alltoall", "allgather"])
def test_unpickling_the_first_object_raises(comm, name):
    """All objects behind it hold device arrays, which nobody reads."""
    evil = Evil(MPI.Comm.bcast(comm, MPI.COMM_WORLD.rank), Fault)
    error = attempt(CALLS[name](comm), evil if comm.rank == 0 else {"x": values(comm)})
    assert_everywhere(comm, isinstance(error, Fault) if comm.rank == 0 else error is None, repr(error))
    check_all(comm)


@pytest.mark.ranks(2)
def test_an_operator_raises_at_root(comm):
    """Of shapes that do not fit; what other ranks have sent is declined."""
    error = attempt(comm.reduce, put(np.ones((LONG, 2 + comm.rank))))
    assert_everywhere(comm, isinstance(error, ValueError) if comm.rank == 0 else error is None, repr(error))
    check_all(comm)


class Refusing:
    """An object that cannot be added on one rank of the world."""

    def __init__(self, rank, fault):
        self.rank, self.fault = rank, fault

    def __add__(self, other):
        if MPI.COMM_WORLD.rank == self.rank:
            raise self.fault("added")
        return self

    __radd__ = __add__


REDUCTIONS = {
    "reduce": lambda comm, obj, op: comm.reduce(obj, op),
    "reduce to last": lambda comm, obj, op: comm.reduce(obj, op, comm.size - 1),
    "allreduce": lambda comm, obj, op: comm.allreduce(obj, op),
    "scan": lambda comm, obj, op: comm.scan(obj, op),
    "exscan": lambda comm, obj, op: comm.exscan(obj, op),
}


@pytest.mark.timeout(60)
@pytest.mark.ranks(2)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("op", [MPI.SUM, lambda first, second: first + second])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_an_operator_raises_on_one_rank(comm, name, op, fault):
    """Rank 0 adds in all reductions; the ranks that would get a result raise what it has raised."""
    obj = Refusing(MPI.Comm.bcast(comm, MPI.COMM_WORLD.rank), fault)
    error = None
    try:
        REDUCTIONS[name](comm, obj, op)
    except (*FAULTS, RuntimeError) as raised:
        error = raised
    # In scans, rank 1 adds alone what it gets.
    gets = {"reduce": False, "reduce to last": comm.rank == comm.size - 1, "allreduce": True}.get(name, comm.rank > 1)
    if comm.rank == 0:
        is_right = type(error) is fault
    else:
        is_right = type(error) is (RuntimeError if fault is Stop else fault) if gets else error is None
        is_right = is_right and (not gets or f"[failed on rank 0 of {comm.size}]" in str(error))
    assert_everywhere(comm, is_right, repr(error))
    check_all(comm)


@pytest.mark.timeout(60)
@pytest.mark.ranks(3)
@pytest.mark.parametrize("name", ["reduce", "allreduce"])
def test_an_operator_raises_beside_an_array(comm, name):
    """The array of the last rank is declined."""
    refusing = Refusing(MPI.Comm.bcast(comm, MPI.COMM_WORLD.rank), Fault)
    error = attempt(CALLS[name](comm), values(comm) if comm.rank == comm.size - 1 else refusing)
    raises = comm.rank == 0 or name == "allreduce"
    assert_everywhere(comm, isinstance(error, Fault) if raises else error is None, repr(error))
    check_all(comm)


@pytest.mark.parametrize("wrong", [{"source": 99}, {"recvtag": -7}, {"dest": 99}, {"sendtag": -7}])
def test_refused_arguments_of_sendrecv(comm, ring, wrong):
    """Nothing is sent: the peer's next receive gets the next object."""
    above, below = ring
    arguments = {"dest": above, "source": below, **wrong}
    error = attempt(lambda obj: comm.sendrecv(obj, **arguments), values(comm, 7))
    assert_everywhere(comm, isinstance(error, MPI.Exception), repr(error))
    received = comm.sendrecv(values(comm, 8), above, source=below)
    assert_everywhere(comm, not difference(received, labels(below, LONG, 8)))
    check_all(comm)


def test_the_pickle_of_a_send_stays_while_its_receive_raises(comm, ring):
    """Each rank's long message comes late to its receiver, after the sender's own receive has raised."""
    above, below = ring
    world = MPI.Intracomm(comm).allgather(MPI.COMM_WORLD.rank)
    with comm.Dup() as other:
        request = other.isend(Evil(world[above], Fault, put(np.ones(3))), above, 1)
        obj = {"raw": bytes(range(250)) * 20_000, "array": put(labels(comm.rank, 5))}
        error = attempt(lambda obj: other.sendrecv(obj, above, 2, None, below, 1), obj)
        junk = [b"\xdd" * len(obj["raw"]) for _ in range(3)]
        MPI.Comm.Barrier(comm)
        received = other.recv(source=below, tag=2)
        request.wait()
    assert_everywhere(comm, isinstance(error, Fault) and len(junk) == 3, repr(error))
    assert_everywhere(comm, received["raw"] == obj["raw"] and not difference(received["array"], labels(below, 5)))
