"""Calls on new arrays in each step use the launch of an earlier equal call, with the addresses of the new arrays."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.launch import launched, run
from support.arrays import get, host_only, put, xp

WORLD = MPI.COMM_WORLD
SIZE, LAST = WORLD.size, WORLD.size - 1
EACH, ROOM = 5, 64  # elements of a block; of the memory around an array
COUNTS = [EACH - rank % 2 for rank in range(SIZE)]
DISPLS = [EACH * rank for rank in range(SIZE)]
ROWS = EACH * SIZE
TURNS = 5
IN_PLACE = MPI.IN_PLACE


def at_root(comm, array):
    return array if comm.rank == LAST else None


def of_rank(comm, array):
    return [array, COUNTS[comm.rank]]


def blocks(array):
    return [array, COUNTS, DISPLS, MPI.INT]


# What each does with two arrays of `ROWS` elements.
CALLS = {
    "Allreduce": lambda comm, a, b: comm.Allreduce(a, b),
    "Allreduce in place": lambda comm, a, b: comm.Allreduce(IN_PLACE, b, MPI.MAX),
    "Allreduce of a part": lambda comm, a, b: comm.Allreduce([a, (EACH, 2), MPI.INT], [b, (EACH, 1), MPI.INT]),
    "Reduce": lambda comm, a, b: comm.Reduce(a, at_root(comm, b), root=LAST),
    "Reduce, with an array that is not looked at": lambda comm, a, b: comm.Reduce(a, b, root=LAST),
    "Bcast": lambda comm, a, b: comm.Bcast(b, LAST),
    "Allgather": lambda comm, a, b: comm.Allgather(a[:EACH], b),
    "Allgather in place": lambda comm, a, b: comm.Allgather(IN_PLACE, b),
    "Allgatherv": lambda comm, a, b: comm.Allgatherv(of_rank(comm, a), blocks(b)),
    "Alltoall": lambda comm, a, b: comm.Alltoall(a, b),
    "Alltoallv": lambda comm, a, b: comm.Alltoallv(
        [a, [COUNTS[comm.rank]] * SIZE, DISPLS, MPI.INT], [b, COUNTS, DISPLS, MPI.INT]
    ),
    "Gather": lambda comm, a, b: comm.Gather(a[:EACH], at_root(comm, b), LAST),
    "Gather in place": lambda comm, a, b: comm.Gather(IN_PLACE if comm.rank == LAST else a[:EACH], b, LAST),
    "Gatherv": lambda comm, a, b: comm.Gatherv(of_rank(comm, a), blocks(b) if comm.rank == LAST else None, LAST),
    "Scatter": lambda comm, a, b: comm.Scatter(at_root(comm, a), b[:EACH], LAST),
    "Scatterv": lambda comm, a, b: comm.Scatterv(
        blocks(a) if comm.rank == LAST else None, [b, COUNTS[comm.rank]], LAST
    ),
    "Reduce_scatter_block": lambda comm, a, b: comm.Reduce_scatter_block(a, b[:EACH]),
    "Scan": lambda comm, a, b: comm.Scan(a, b),
    "Exscan": lambda comm, a, b: comm.Exscan(a, b, MPI.MAX),
    "Iallreduce": lambda comm, a, b: comm.Iallreduce(a, b).Wait(),
    "Ialltoall": lambda comm, a, b: comm.Ialltoall(a, b).Wait(),
}


@pytest.fixture(scope="module", params=["ordinary", "windows"])
def made(request):
    """Return a communicator, and a function that makes memory: of a window in every other turn, or never."""
    with pyncclx.Communicator(WORLD.Dup()) as comm:
        memory = comm.Alloc(4 * TURNS * ROWS * ROOM, "i4") if request.param == "windows" else None
        comm.Allreduce(xp.ones(3, "f4"), xp.zeros(3, "f4"))
        used = [0]

        def make(turn, count):
            if memory is None or turn % 2:
                return xp.empty(count, "i4")
            used[0] = (used[0] + count + 1) % (memory.size - count)
            return memory[used[0] : used[0] + count]

        yield comm, make


def refuse(*args, **kwargs):
    raise AssertionError("the arguments were looked at")


@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_mpi4py(made, name, monkeypatch):
    comm, make = made
    kept = []
    for turn in range(TURNS):
        begin = 1 + turn % 3  # addresses of all alignments
        wholes = [np.arange(ROWS + ROOM, dtype="i4") + 1000 * comm.rank + 100000 * turn + 17 * n for n in range(2)]
        ours = [make(turn, ROWS + ROOM) for _ in wholes]
        kept.append(ours)  # or the next arrays may have the addresses of these
        for our, whole in zip(ours, wholes, strict=True):
            our[...] = put(whole)
        if turn == 2:
            monkeypatch.setattr(run, "enqueue", refuse)
            monkeypatch.setattr(launched, "enqueue", refuse)
        CALLS[name](comm, *[our[begin : begin + ROWS] for our in ours])
        CALLS[name](WORLD, *[whole[begin : begin + ROWS] for whole in wholes])
        for our, whole in zip(ours, wholes, strict=True):
            np.testing.assert_array_equal(get(our), whole, f"{name}, turn {turn}")


@pytest.mark.parametrize("name", ["Allreduce", "Allgather", "Alltoall"])
def test_long_messages_go_to_windows_and_out_of_them(name, monkeypatch):
    """Kernels write long messages straight to memory of windows, and others through the heap."""
    count = 96 << 10  # elements of a block
    with pyncclx.Communicator(WORLD.Dup()) as comm:
        window = comm.Alloc(4 * SIZE * count, "i4")
        for turn in range(6):
            recv = window[turn * 7 :] if turn % 2 == 0 else xp.empty(SIZE * count, "i4")
            send = window[2 * SIZE * count + 11 * turn :] if turn % 3 == 0 else xp.empty(SIZE * count, "i4")
            send, recv = send[: count if name == "Allgather" else SIZE * count], recv[: SIZE * count]
            whole = np.arange(send.size, dtype="i4") % 1013 + 10000 * comm.rank + turn
            send[...], recv[...], wanted = put(whole), -1, np.empty(SIZE * count, "i4")
            if turn == 1:
                monkeypatch.setattr(run, "enqueue", refuse)
            getattr(comm, name)(send, recv)
            getattr(WORLD, name)(whole, wanted)
            np.testing.assert_array_equal(get(recv), wanted, f"{name}, turn {turn}")


FIRST, SECOND = [(EACH, 0), MPI.INT], [(EACH, ROWS), MPI.INT]  # a block at the beginning, and behind `ROWS` elements
PARTS = {
    name: lambda comm, a, b, name=name: getattr(comm, name)([a, *FIRST], [b, *SECOND])
    for name in ("Allreduce", "Allgather", "Alltoall", "Scan", "Exscan", "Gather", "Scatter")
} | {"Iallreduce": lambda comm, a, b: comm.Iallreduce([a, *FIRST], [b, *SECOND]).Wait()}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_one_array_and_of_two(made, name):
    """Calls on two parts of one array object are not like those on two arrays."""
    comm, make = made
    kept = []
    for turn, is_one in enumerate((True, True, False, False, True)):
        wholes = [np.arange(2 * ROWS, dtype="i4") + 1000 * comm.rank + 100000 * turn + 7 * n for n in range(2)]
        ours = [make(turn, 2 * ROWS) for _ in wholes]
        kept.append(ours)
        for our, whole in zip(ours, wholes, strict=True):
            our[...] = put(whole)
        for each, arrays in ((comm, ours), (WORLD, wholes)):
            PARTS[name](each, arrays[0], arrays[0 if is_one else 1])
        for our, whole in zip(ours, wholes, strict=True):
            np.testing.assert_array_equal(get(our), whole, f"{name}, turn {turn}")


def test_a_buffer_that_counts_at_root_only(made):
    """Elsewhere MPI does not look at it, so it may be the receive buffer itself."""
    comm, _ = made
    kept = []
    for is_one in (True, True, False, False):
        recv = xp.full(EACH, -1, "i4")
        send = put(np.arange(ROWS, dtype="i4")) if comm.rank == 0 else recv if is_one else xp.full(EACH, -2, "i4")
        kept.append((send, recv))
        comm.Scatter(send, recv, 0)
        np.testing.assert_array_equal(get(recv), np.arange(EACH) + EACH * comm.rank)
        if comm.rank and not is_one:
            np.testing.assert_array_equal(get(send), np.full(EACH, -2))


@pytest.mark.parametrize("given", ["left out", "list", "array", "array that changes"])
def test_counts_that_change_where_ranks_exchange_them(given):
    """Ireduce_scatter: a rank whose arrays are as before has to take part in the exchange."""
    with pyncclx.Communicator(WORLD.Dup()) as comm:
        comm.Allreduce(xp.ones(3, "f4"), xp.zeros(3, "f4"))
        kept, array = [], np.zeros(SIZE, "i4")
        for turn in range(6):
            counts = [2 + (rank + turn // 2) % 2 for rank in range(SIZE)]
            array[:] = counts
            recvcounts = {"left out": None, "list": counts, "array": np.array(counts, "i4")}.get(given, array)
            send = np.arange(sum(counts), dtype="i4") + 100 * turn
            begin = sum(counts[: comm.rank])
            kept.append((put(send + comm.rank), xp.zeros(counts[comm.rank], "i4"), recvcounts))
            comm.Ireduce_scatter(*kept[-1]).Wait()
            wanted = (SIZE * send + SIZE * LAST // 2)[begin : begin + counts[comm.rank]]
            np.testing.assert_array_equal(get(kept[-1][1]), wanted, f"turn {turn}")


@pytest.mark.parametrize("node_of", [None, lambda rank: 2 * rank // SIZE], ids=["one node", "nodes"])
@pytest.mark.parametrize("name", ["Reduce_scatter", "Ireduce_scatter"])
@pytest.mark.parametrize("given", ["left out", "array that changes"])
@pytest.mark.ranks(2)
def test_equal_arguments_with_other_counts(given, name, node_of, monkeypatch):
    """The first rank passes the same arrays in each call, while the last ranks' counts or array change."""
    if node_of is not None:
        monkeypatch.setenv("PYNCCLX_NODE", str(node_of(WORLD.rank)))
    with pyncclx.Communicator(WORLD.Dup()) as comm:
        comm.Allreduce(xp.ones(3, "f4"), xp.zeros(3, "f4"))
        whole, send, counts = xp.zeros(ROWS, "i4"), xp.zeros(ROWS, "i4"), np.full(SIZE, EACH)
        parts = {count: whole[:count] for count in range(1, 2 * EACH)}
        for turn in range(6):
            # With two ranks the first one's count changes, too, if the ranks pass counts.
            moved = turn // 2 if SIZE > 2 or given != "left out" else 0
            counts[-2:] = EACH + moved, EACH - moved
            begin, count = int(counts[: comm.rank].sum()), int(counts[comm.rank])
            values = np.arange(ROWS, dtype="i4") + 100 * turn
            send[...] = whole[...] = put(values + comm.rank)
            arguments = (send, parts[count]) if given == "left out" else (IN_PLACE, whole, counts)
            request = getattr(comm, name)(*arguments)
            if request is not None:
                request.Wait()
            wanted = SIZE * values + SIZE * LAST // 2
            np.testing.assert_array_equal(get(whole[:count]), wanted[begin : begin + count], f"turn {turn}")


def test_other_kinds_of_arrays_are_other_calls(made):
    """Results do not depend on what was called with arrays of other types, lengths or orders before."""
    comm, _ = made
    for turn in range(3):
        for dtype in ("i4", "f4", "u1", "f8"):
            for shape in ((4,), (2, 2), (5,)):
                send = xp.full(shape, comm.rank + turn, dtype)
                recv = xp.zeros(shape, dtype)
                comm.Allreduce(send, recv)
                np.testing.assert_array_equal(get(recv), np.full(shape, SIZE * LAST / 2 + SIZE * turn, dtype))


@host_only
def test_read_only_arrays_are_refused_as_before(made):
    comm, _ = made
    for _ in range(3):
        comm.Bcast(xp.ones(7, "i4"))
    readonly = xp.ones(7, "i4")
    readonly.flags.writeable = False
    if comm.rank:
        with pytest.raises(BufferError):
            comm.Bcast(readonly)
        comm.Bcast(xp.ones(7, "i4"))
    else:
        comm.Bcast(readonly)


@host_only
def test_pointers_without_a_length(made):
    """heat passes MPI.buffer objects of no length at the addresses of tensors."""
    comm, _ = made
    kept = []
    for turn in range(4):
        send, recv = xp.full(33, comm.rank + turn, "f4"), xp.zeros(33, "f4")
        kept.append((send, recv))
        specs = [[MPI.buffer.fromaddress(each.ctypes.data, 0), 33, MPI.FLOAT] for each in (send, recv)]
        comm.Allreduce(*specs)
        np.testing.assert_array_equal(recv, np.full(33, SIZE * LAST / 2 + SIZE * turn, "f4"))


@host_only
def test_memory_of_a_bytearray(made):
    """It is the host's, as the bytearray is, although an MPI.buffer of an address has the same type and length."""
    comm, _ = made
    for turn in range(4):
        array, memory = xp.full(8, comm.rank + turn, "u1"), bytearray([comm.rank + turn] * 8)
        comm.Bcast(MPI.buffer.fromaddress(array.ctypes.data, 8), LAST)
        comm.Bcast(MPI.buffer.frombuffer(memory) if comm.rank else memory, LAST)
        assert bytes(memory) == bytes(array) == bytes([LAST + turn] * 8), f"turn {turn}"
