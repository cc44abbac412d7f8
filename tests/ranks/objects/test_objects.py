"""mpi4py's lower-case methods with device arrays: what mpi4py gives with NumPy's, in device arrays, by kernels."""

import pickle
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx import events
from pyncclx.messages.peers import Peers
from pyncclx.objects import broadcast as spread
from pyncclx.objects import operands, packed_arrays
from pyncclx.objects.packed_arrays import PackedArrays
from support.arrays import get, put, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.objects import KINDS, built, difference
from support.reference import labels
from support.reversed_ranks import reversed_ranks, ring

comm = pytest.fixture(reversed_ranks, scope="module")
ring = pytest.fixture(ring)


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch):
    """Arrays of any length go by kernels, unless a test says otherwise."""
    monkeypatch.setattr(packed_arrays, "SHORT_NBYTES", -1)


@contextmanager
def recorded():
    """The events of what is done inside, as pairs of operation and way."""
    seen = []
    events.listeners.append(listener := lambda event: seen.append((event.operation, event.how)))
    try:
        yield seen
    finally:
        events.listeners.remove(listener)


def each(comm, kind, call, host):
    return [built(kind, 10 * comm.rank + rank, call, host=host) for rank in range(comm.size)]


COLLECTIVES = {  # of our class or of mpi4py's, given the arguments' kind
    "bcast": lambda cls, comm, kind, call, host: cls.bcast(
        comm, built(kind, 5, call, host=host) if comm.rank == comm.size - 1 else None, comm.size - 1
    ),
    "gather": lambda cls, comm, kind, call, host: cls.gather(comm, built(kind, comm.rank, call, host=host)),
    "scatter": lambda cls, comm, kind, call, host: cls.scatter(
        comm, each(comm, kind, call, host) if comm.rank == 0 else None
    ),
    "allgather": lambda cls, comm, kind, call, host: cls.allgather(comm, built(kind, comm.rank, call, host=host)),
    "alltoall": lambda cls, comm, kind, call, host: cls.alltoall(comm, each(comm, kind, call, host)),
    "sendrecv": lambda cls, comm, kind, call, host: cls.sendrecv(
        comm, built(kind, comm.rank, call, host=host), (comm.rank + 1) % comm.size, 3, None, MPI.ANY_SOURCE, 3
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_as_mpi4py_with_numpy(comm, name, kind):
    """Three times: the first messages between two ranks go through MPI."""
    problem = ""
    for call in range(3):
        with recorded() as seen:
            own = COLLECTIVES[name](type(comm), comm, kind, call, False)
        expected = COLLECTIVES[name](MPI.Intracomm, comm, kind, call, True)
        problem = problem or difference(own, expected)
    if kind == "one" and not (name in ("scatter", "bcast") and comm.rank):
        wanted = {"bcast": "Bcast", "allgather": "Allgatherv"}.get(name, "send"), events.NATIVE
        problem = problem or ("" if wanted in seen else f"no kernel: {seen}")
    assert_everywhere(comm, not problem, problem)


@pytest.mark.parametrize("kind", ["one", "shared", "hundred", "empty", "Fortran"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_short_arrays_are_copied_through_the_host(comm, monkeypatch, name, kind):
    """In one piece, inside of the pickle: no kernel moves them, and the results are the same."""
    monkeypatch.undo()
    with recorded() as seen:
        own = COLLECTIVES[name](type(comm), comm, kind, 0, False)
    expected = COLLECTIVES[name](MPI.Intracomm, comm, kind, 0, True)
    problem = difference(own, expected) or ("a kernel" if any(how == events.NATIVE for _, how in seen) else "")
    assert_everywhere(comm, not problem, problem)


@pytest.mark.parametrize("name", ["bcast", "allgather", "gather"])
def test_short_and_long_arrays_together(comm, monkeypatch, name):
    """Each rank goes by the length of its own."""
    monkeypatch.setattr(packed_arrays, "SHORT_NBYTES", 1000)
    x = put(labels(comm.rank, 10 if comm.rank else 1000))
    own = getattr(comm, name)(x)
    every = [labels(r, 10 if r else 1000) for r in range(comm.size)]
    expected = {"bcast": every[0], "allgather": every, "gather": None if comm.rank else every}[name]
    assert_everywhere(comm, not difference(own, expected))


SENDS = {
    "isend": lambda comm, obj, dest: comm.isend(obj, dest, 4),
    "issend": lambda comm, obj, dest: comm.issend(obj, dest, 4),
}
RECEIVES = {
    "recv": lambda comm, status: comm.recv(status=status),
    "irecv": lambda comm, status: comm.irecv(bytearray(1 << 20), tag=4).wait(status),
    "test": lambda comm, status: until(comm.irecv(bytearray(1 << 20), tag=4), status),
    "waitall": lambda comm, status: MPI.Request.waitall([comm.irecv(bytearray(1 << 20), tag=4)], [status])[0],
    "mprobe": lambda comm, status: comm.mprobe(tag=4).recv(status),
    "Probe": lambda comm, status: (comm.Probe(), comm.recv(status=status))[1],
    "plain": lambda comm, status: MPI.Intracomm(comm).recv(status=status),
}


def until(request, status):
    while not (done := request.test(status))[0]:
        pass
    return done[1]


@pytest.mark.parametrize("kind", ["long", "shared"])
@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("receive", RECEIVES)
def test_every_way_to_receive(comm, ring, send, receive, kind):
    """By any way the object comes with device arrays, and the status has its rank and tag."""
    above, below = ring
    problem = ""
    for call in range(2):
        request = SENDS[send](comm, built(kind, comm.rank, call), above)
        status = MPI.Status()
        own = RECEIVES[receive](comm, status)
        request.wait()
        problem = problem or difference(own, built(kind, below, call, host=True))
        if (status.source, status.tag) != (below, 4):
            problem = f"source {status.source}, tag {status.tag}"
        comm.Barrier()
    assert_everywhere(comm, not problem, problem)


def test_messages_with_several_tags_are_matched_by_mpi(comm, ring):
    """Objects with and without arrays, received in another order than they were sent in."""
    above, below = ring
    sent = [
        comm.isend(obj, above, tag) for tag, obj in enumerate((put(labels(comm.rank, 9)), "text", [put(np.ones(3))]))
    ]
    last, first, text = comm.recv(tag=2), comm.recv(source=below, tag=0), comm.recv()
    for request in sent:
        request.wait()
    ok = not difference(first, labels(below, 9)) and text == "text" and not difference(last, [np.ones(3)])
    assert_everywhere(comm, ok)


@pytest.mark.parametrize("count", [100, 30_000])
def test_what_is_sent_may_be_changed_at_once(comm, ring, count):
    """mpi4py has pickled it by then: nothing reads the sender's array later."""
    above, below = ring
    for call in range(3):
        x = put(labels(comm.rank, count, call))
        request = comm.isend([x], above)
        x[...] = -1
        comm.Barrier()
        received = comm.recv(source=below)
        request.wait()
        assert_everywhere(comm, not difference(received, [labels(below, count, call)]), f"call {call}")


def test_results_are_arrays_of_their_own(comm):
    """At root too, as mpi4py gives a copy."""
    x = put(labels(7, 50))
    one, many = comm.bcast(x), comm.bcast([x, x + 1])
    one[...] = many[0][...] = many[1][...] = 0
    assert_everywhere(comm, np.array_equal(get(x), labels(7, 50)))


# ---- objects without arrays, and pickles of the program's own --------------------------------------------------------


def test_objects_without_arrays_are_mpi4pys(comm, ring):
    """The message is what mpi4py sends, byte by byte."""
    above, below = ring
    for obj in ({"a": [1, 2.5, "x"]}, list(range(1000)), KeyError("deep", {"set": {1, 2}})):
        expected = MPI.pickle.dumps(obj)
        request = comm.isend(obj, above)
        status, received = MPI.Status(), np.zeros(len(expected), np.uint8)
        MPI.Comm.Recv(comm, [received, MPI.BYTE], below, status=status)
        request.wait()
        assert_everywhere(comm, status.Get_count(MPI.BYTE) == len(expected) and received.tobytes() == expected)


class Unpicklable:
    """It refuses, after whatever arrays came before it."""

    def __reduce__(self):
        raise LookupError("not to be pickled")


@pytest.mark.parametrize("name", ["bcast", "gather", "scatter", "allgather", "alltoall", "isend", "sendrecv", "reduce"])
def test_an_object_that_cannot_be_pickled_is_refused(comm, name):
    """As mpi4py does, before anything is sent; the communicator lives."""
    bad = [put(np.ones(5)), Unpicklable()]
    arguments = {"scatter": ([bad] * comm.size, comm.rank), "alltoall": ([bad] * comm.size,), "bcast": (bad, comm.rank)}
    more = {"isend": (bad, 0), "sendrecv": (bad, 0)}
    with raises_everywhere(comm, LookupError, "not to be pickled"):
        getattr(comm, name)(*{**arguments, **more}.get(name, (bad,)))
    assert_everywhere(
        comm, not difference(comm.allgather(put(labels(comm.rank, 3))), [labels(r, 3) for r in range(comm.size)])
    )


def test_a_pickle_of_the_programs_own_is_used(comm):
    """Of arrays too: nothing is taken out of what it pickles."""
    counted = []

    def dumps(obj, protocol=None):
        counted.append(obj)
        return pickle.dumps(obj, protocol)

    x = put(labels(comm.rank, 40))
    for protocol in (None, 5):
        MPI.pickle.__init__(dumps, pickle.loads, protocol)
        try:
            with recorded() as seen:
                everything = comm.allgather([x])
        finally:
            MPI.pickle.__init__()
        ok = len(counted) == 1 and counted.pop()[0] is x and not [each for each in seen if each[1] == events.NATIVE]
        assert_everywhere(comm, ok and np.array_equal(get(everything[0][0]), labels(0, 40)), f"{protocol}, {seen}")


# ---- reductions ------------------------------------------------------------------------------------------------------


def operand(rank, dtype):
    return ((labels(rank, 1000) % 5) + 1).astype(dtype).reshape(10, 100)


REDUCED = [(op, dtype) for op in ("SUM", "PROD") for dtype in ("f4", "f8", "i4", "c8", "u1")]
REDUCED += [(op, dtype) for op in ("BAND", "BOR", "BXOR") for dtype in ("i8", "u2")]


@pytest.mark.parametrize(("op", "dtype"), REDUCED)
@pytest.mark.parametrize("name", ["allreduce", "reduce"])
def test_reductions(comm, name, op, dtype):
    """Of arrays in either order, of one with gaps, on all ranks alike; small numbers, so that no sum is rounded."""
    op = getattr(MPI, op)
    for change in (lambda x: x, lambda x: x.T, lambda x: x[::2, ::3]):
        own = getattr(comm, name)(change(put(operand(comm.rank, dtype))), op)
        expected = getattr(MPI.Intracomm, name)(comm, change(operand(comm.rank, dtype)), op)
        same = own is None if expected is None else np.array_equal(get(own), expected) and own.dtype == expected.dtype
        assert_everywhere(comm, same and (own is None or type(own) is xp.ndarray), f"{own} is not {expected}")


def test_an_allreduce_is_a_kernel(comm):
    """One, and what mpi4py is given in its place holds no data."""
    with recorded() as seen:
        comm.allreduce(put(operand(comm.rank, "f4")))
    assert_everywhere(comm, ("Allreduce", events.NATIVE) in seen, str(seen))


@pytest.mark.parametrize("name", ["allreduce", "reduce"])
@pytest.mark.parametrize("odd", [3, 2.5, "shape", "type", "host"])
def test_reductions_of_ranks_that_differ(comm, name, odd):
    """Python's operators do what they can: a number and an array, shapes that fit, two types."""
    changed = {
        "shape": lambda x: x[:1],
        "type": lambda x: x.astype("i8"),
        "host": lambda x: x[0, 0].item(),
    }.get(odd, lambda x: odd)
    x = operand(comm.rank, "f4")
    mine, theirs = (changed(put(x)), changed(x)) if comm.rank == comm.size - 1 else (put(x), x)
    own, expected = getattr(comm, name)(mine), getattr(MPI.Intracomm, name)(comm, theirs)
    assert_everywhere(comm, own is None if expected is None else np.array_equal(get(own), expected), f"{own}")


@pytest.mark.parametrize("dtype", [">f8", ">i4", "<f4", "=c16"])
@pytest.mark.parametrize("name", ["allreduce", "reduce"])
def test_reductions_of_types_in_another_byte_order(comm, name, dtype):
    """As mpi4py, on all ranks or on one: Python's operators reduce what kernels cannot."""
    for mine in (dtype, dtype if comm.rank == 0 else ">f8"):
        x = operand(comm.rank, mine)
        own, expected = getattr(comm, name)(put(x)), getattr(MPI.Intracomm, name)(comm, x)
        ok = own is None if expected is None else np.array_equal(get(own), expected) and own.dtype == expected.dtype
        assert_everywhere(comm, ok, f"{own} is not {expected}")


class Wrapped:
    """A class of the program's whose operator takes whatever the other operand has."""

    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return Wrapped(self.value + getattr(other, "value", other))

    def __radd__(self, other):
        if not isinstance(other, (xp.ndarray, np.ndarray)):
            raise TypeError(type(other))
        return Wrapped(other + self.value)

    __array_ufunc__ = None


@pytest.mark.parametrize("name", ["allreduce", "reduce"])
def test_a_class_with_operators_of_its_own_among_arrays(comm, name):
    """Its operators get arrays, and nothing that stands for them."""
    for wrapped in range(comm.size):
        x = operand(comm.rank, "f8")
        mine, theirs = (Wrapped(put(x)), Wrapped(x)) if comm.rank == wrapped else (put(x), x)
        own, expected = getattr(comm, name)(mine), getattr(MPI.Intracomm, name)(comm, theirs)
        if expected is not None and comm.size > 1:
            assert np.array_equal(get(own.value), expected.value)
        MPI.Comm.Barrier(comm)


def test_other_reductions_are_pythons(comm):
    """Comparisons of whole arrays raise, lists are joined, a function is called."""
    x = put(np.arange(3.0) + comm.rank)
    if comm.size > 1:
        with pytest.raises(ValueError, match="ambiguous"):
            MPI.MAX(x, x)
    joined = comm.allreduce([x])
    twice = comm.allreduce(x, op=lambda a, b: a + b)
    ok = len(joined) == comm.size and not difference(joined[0], np.arange(3.0))
    assert_everywhere(comm, ok and np.array_equal(get(twice), get(comm.allreduce(x))))
    numbers = comm.allreduce(comm.rank), comm.reduce((comm.rank,)), comm.scan(x), comm.exscan(comm.rank)
    assert_everywhere(
        comm, numbers[0] == sum(range(comm.size)) and np.array_equal(get(numbers[2]), get(x) * 0 + get(numbers[2]))
    )


# ---- where kernels cannot, and errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*COLLECTIVES, "allreduce"])
def test_without_kernels_the_data_goes_through_the_host(comm, monkeypatch, name):
    """As between nodes: the results are the same device arrays."""
    for module in (spread, operands):
        monkeypatch.setattr(module, "has_kernels", lambda comm: False)
    monkeypatch.setattr(Peers, "is_reader", lambda self, rank: False)
    monkeypatch.setattr(comm.endpoint.peers, "readers", frozenset())
    with recorded() as seen:
        if name == "allreduce":
            own, expected = comm.allreduce(put(operand(comm.rank, "f4"))), comm.size
            problem = "" if np.array_equal(get(own), sum(operand(r, "f4") for r in range(comm.size))) else "wrong"
        else:
            own = COLLECTIVES[name](type(comm), comm, "shared", 0, False)
            expected = COLLECTIVES[name](MPI.Intracomm, comm, "shared", 0, True)
            problem = difference(own, expected)
    assert_everywhere(
        comm, not problem and not [each for each in seen if each[1] == events.NATIVE], f"{problem} {seen}"
    )


@pytest.mark.parametrize("name", ["bcast", "allgather", "allreduce"])
def test_no_memory_on_one_rank(comm, monkeypatch, name):
    """All ranks raise, none waits in a kernel for the one that has no arrays; then all goes on."""
    comm.allreduce(put(np.ones(4)))

    def refuse(*_):
        raise MemoryError("none left")

    with monkeypatch.context() as patched, raises_everywhere(comm, MemoryError, "none left"):
        if comm.rank == 0:
            patched.setattr(PackedArrays, "like", refuse)
        getattr(comm, name)(put(labels(comm.rank, 64)))
    assert_everywhere(comm, not difference(comm.bcast(put(labels(9, 64))), labels(9, 64)))


@pytest.mark.ranks(2)
def test_no_memory_for_a_message(comm, monkeypatch, ring):
    """The receiver raises, and the sender's memory is free for other messages."""
    above, below = ring
    for _ in range(3):
        comm.sendrecv(put(labels(comm.rank, 20_000)), above, source=below)

    def refuse(*_):
        raise MemoryError("none left")

    request = comm.isend(put(labels(comm.rank, 20_000)), above)
    with monkeypatch.context() as patched, raises_everywhere(comm, MemoryError, "none left"):
        patched.setattr(PackedArrays, "like", refuse)
        comm.recv(source=below)
    request.wait()
    comm.synchronize()
    comm.Barrier()
    places = comm.endpoint.context.bounce.tickets.held_for(comm.endpoint.peers.numbers[above])
    assert_everywhere(comm, not places, f"{places} are held")
    assert_everywhere(
        comm, not difference(comm.sendrecv(put(labels(comm.rank, 9)), above, source=below), labels(below, 9))
    )


def test_wrong_ranks_and_tags_raise_before_anything_is_offered(comm):
    x = put(np.ones(4))
    for call in (lambda: comm.send(x, comm.size), lambda: comm.send(x, 0, -5), lambda: comm.gather(x, comm.size)):
        with raises_everywhere(comm, MPI.Exception):
            call()
    assert_everywhere(comm, comm.recv(source=MPI.PROC_NULL) is None and comm.send(x, MPI.PROC_NULL) is None)


def test_ranks_that_pass_none(comm):
    """Only some ranks have arrays, and the others come along."""
    mine = put(labels(comm.rank, 8)) if comm.rank == comm.size - 1 else None
    everything = comm.allgather(mine)
    expected = [labels(r, 8) if r == comm.size - 1 else None for r in range(comm.size)]
    assert_everywhere(comm, not difference(everything, expected))
    many = comm.gather(mine, root=0)
    assert_everywhere(comm, comm.rank or not difference(many, expected))
