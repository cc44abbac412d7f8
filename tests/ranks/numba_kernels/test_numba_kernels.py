"""The collectives written in Python: the same results as the built-in kernels, bit by bit; they run on GPUs only."""

import importlib.util

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import NotSupported
from pyncclx.numba_kernels import compiled, workspace
from pyncclx.operators import ops
from support.arrays import HOST, Output, get, gpu_only, host_only, put, synchronize, xp
from support.everywhere import raises_everywhere
from support.reference import comparing, contributions, fold, labels

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="needs Numba's CUDA target")
one_communicator = pytest.mark.parametrize("comm", ["reversed"], indirect=True)
# Each is compiled by itself: every datatype and every operator, but not every pair of them.
kinds = list(zip(compiled.ELEMENTS, [*compiled.COMBINE] * 3, strict=False))


@pytest.fixture
def stream():
    return xp.cuda.Stream(non_blocking=True)


def lengths(size):
    """Bytes: nothing, odd ones, the last that goes as packets and the next, several turns of every block."""
    packets = workspace.BLOCKS * workspace.packet_nbytes(size)
    chunks = workspace.BLOCKS * workspace.chunk_nbytes(size)
    sizes = [0, 8, 24, 248, 4104, 98304, 98312, packets, packets + 8, 2**20 + 8, 2**21, 2**21 + 8]
    return [*sizes, chunks * size - 8, 2 * chunks * size + 40]


class Chain:
    """Calls of all of them, each on the results of those before, in one of their forms."""

    def __init__(self, comm, count, form):
        self.comm, self.count, self.form, self.size = comm, count, form, comm.size
        self.send, self.folded = put(labels(comm.rank, count) % 1000), Output(count, "i8")
        self.gathered, self.exchanged, self.arrived = (Output((self.size, count), "i8") for _ in range(3))
        self.counts, self.received = put(np.ones(self.size, "i8")), Output(self.size, "i8")
        rows = [self.exchanged.array, self.counts], [self.arrived.array, self.received.array]
        calls = [
            ("Allreduce", self.send, self.folded.array),
            ("Allgather", self.folded.array, self.gathered.array),
            ("Alltoall", self.gathered.array, self.exchanged.array),
            ("Alltoallv", *rows),
            ("Barrier",),
            ("Allreduce", self.folded.array, self.send, MPI.MIN),
        ]
        names = {"blocking": "{}", "nonblocking": "I{}", "persistent": "{}_init"}
        self.calls = [
            (names[form].format(name.lower() if form == "nonblocking" else name), *args) for name, *args in calls
        ]
        self.requests = self.make() if form == "persistent" else []

    def make(self):
        """Make each call; what they return."""
        device = {"Barrier": {"device": True}, "Ibarrier": {"device": True}, "Barrier_init": {"device": True}}
        return [
            getattr(self.comm, name)(*args, algorithm="numba", **device.get(name, {})) for name, *args in self.calls
        ]

    def run(self):
        """All of them, enqueued."""
        self.send += self.comm.rank
        if self.form == "persistent":
            pyncclx.Prequest.Startall(self.requests)
        requests = self.make() if self.form != "persistent" else self.requests
        if self.form != "blocking":
            pyncclx.Request.Waitall(requests)

    def check(self, compare, rounds):
        """What so many rounds lead to."""
        value = [labels(rank, self.count) % 1000 for rank in range(self.size)]
        for _ in range(rounds):
            total = sum(row + rank for rank, row in enumerate(value))
            value = [total] * self.size
        compare(self.folded, total, "sum")
        compare(self.exchanged, np.stack([total] * self.size), "blocks")
        compare(self.arrived, np.stack([total] * self.size), "rows")
        compare(self.received, np.ones(self.size, "i8"), "rows of each")
        assert np.array_equal(get(self.send), total), "least"


@gpu_only
@needs_numba
def test_barrier(comm):
    for _ in range(20):
        comm.Barrier(device=True, algorithm="numba")
    comm.synchronize()


@gpu_only
@needs_numba
def test_barrier_waits(comm):
    """What a rank stored before the barrier in its peers' memory, they see after it."""
    words = comm.Alloc(comm.size, "i8")
    for call in range(1, 30):
        for window in (window for window in comm.team.windows if window.holds(words.data.ptr)):
            for base in window.bases:
                memory = xp.cuda.UnownedMemory(base, 8 * comm.size, None, xp.cuda.Device().id)
                xp.ndarray(comm.size, "i8", xp.cuda.MemoryPointer(memory, 0))[comm.rank] = call
        comm.Barrier(device=True, algorithm="numba")
        seen = words.copy()
        comm.Barrier(device=True, algorithm="numba")
        assert get(seen).tolist() == [call] * comm.size


@gpu_only
@needs_numba
def test_allreduce_sizes(comm):
    with comparing() as compare:
        for call, nbytes in enumerate(lengths(comm.size)):
            for offset in (0, 1):
                count = nbytes // 4
                vectors = contributions(comm.size, count, call=call)
                recv = Output(count, "f4", offset=offset)
                comm.Allreduce(put(vectors[comm.rank], offset), recv.array, algorithm="numba")
                compare(recv, fold(ops.SUM, vectors), f"count {count}, offset {offset}")


@gpu_only
@needs_numba
@one_communicator
@pytest.mark.parametrize(("name", "op"), kinds)
def test_allreduce_datatype_and_operator(comm, name, op):
    with comparing() as compare:
        for count in (1, 37, 70_001):
            vectors = contributions(comm.size, count, name)
            recv = Output(count, name)
            comm.Allreduce(put(vectors[comm.rank]), recv.array, ops.TABLE[op].mpi, algorithm="numba")
            compare(recv, fold(ops.TABLE[op], vectors), f"count {count}")


@gpu_only
@needs_numba
def test_allreduce_in_place(comm):
    with comparing() as compare:
        for nbytes in lengths(comm.size):
            vectors = contributions(comm.size, nbytes // 8, "float64")
            recv = Output(nbytes // 8, "f8").fill(vectors[comm.rank])
            comm.Allreduce(MPI.IN_PLACE, recv.array, algorithm="numba")
            compare(recv, fold(ops.SUM, vectors), f"{nbytes} bytes")


@gpu_only
@needs_numba
@pytest.mark.parametrize("in_place", [False, True])
def test_allgather(comm, in_place):
    with comparing() as compare:
        for call, nbytes in enumerate(lengths(comm.size)):
            count = nbytes // 8
            sends = [labels(rank, count, call) for rank in range(comm.size)]
            recv = Output((comm.size, count), "i8")
            if in_place:
                recv.array[comm.rank] = put(sends[comm.rank])
            comm.Allgather(MPI.IN_PLACE if in_place else put(sends[comm.rank]), recv.array, algorithm="numba")
            compare(recv, np.stack(sends), f"{nbytes} bytes")


@gpu_only
@needs_numba
@pytest.mark.parametrize("in_place", [False, True])
def test_alltoall(comm, in_place):
    with comparing() as compare:
        for call, nbytes in enumerate(lengths(comm.size)):
            count = nbytes // 8
            blocks = [labels(rank, comm.size * count, call).reshape(comm.size, count) for rank in range(comm.size)]
            recv = Output((comm.size, count), "i8")
            if in_place:
                recv.fill(blocks[comm.rank])
            comm.Alltoall(MPI.IN_PLACE if in_place else put(blocks[comm.rank]), recv.array, algorithm="numba")
            compare(recv, np.stack([block[comm.rank] for block in blocks]), f"{nbytes} bytes")


@gpu_only
@needs_numba
def test_odd_lengths_and_addresses(comm):
    with comparing() as compare:
        for nbytes in (1, 3, 17, 1023, 5001, 3_000_001):
            sends = [np.random.default_rng([rank, nbytes]).integers(0, 256, nbytes, "u1") for rank in range(comm.size)]
            for offset in (0, 1, 5):
                recv = Output((comm.size, nbytes), "u1", offset=offset)
                comm.Allgather(put(sends[comm.rank], offset), recv.array, algorithm="numba")
                compare(recv, np.stack(sends), f"{nbytes} bytes at {offset}")


@gpu_only
@needs_numba
def test_calls_back_to_back(comm):
    """Nothing waits between the calls; packets and chunks, and operations, take turns."""
    counts = (3, 60_000, 4, 300_000, 5, 1) * 4
    calls = [[labels(rank, count, call) for rank in range(comm.size)] for call, count in enumerate(counts)]
    sends = [put(rows[comm.rank]) for rows in calls]
    sums = [Output(count, "i8") for count in counts]
    gathered = [Output((comm.size, count), "i8") for count in counts]
    synchronize()
    for send, folded, rows in zip(sends, sums, gathered, strict=True):
        comm.Allreduce(send, folded.array, algorithm="numba")
        comm.Allgather(send, rows.array, algorithm="numba")
        comm.Barrier(device=True, algorithm="numba")
        comm.Allreduce(MPI.IN_PLACE, send, MPI.MAX)
    with comparing() as compare:
        for call, rows in enumerate(calls):
            compare(sums[call], sum(rows), f"sums of call {call}")
            compare(gathered[call], np.stack(rows), f"rows of call {call}")


@gpu_only
@needs_numba
@one_communicator
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("form", ["blocking", "nonblocking", "persistent"])
def test_forms(comm, stream, form, graph):
    """Each form, replayed from a graph or not, on two communicators in turn; nothing waits between the rounds.

    Persistent calls use the results of each other, so they have to run in the order of their starts.
    """
    comm.ordered_starts = form == "persistent"
    other = comm.Dup()
    with stream:
        chains = [Chain(comm, 33, form), Chain(other, 200_000, form), Chain(comm, 4000, form)]

        def run():
            for chain in chains:
                chain.run()

        run()
        if graph:
            stream.synchronize()
            stream.begin_capture()
            run()
            captured = stream.end_capture()
        for _ in range(5):
            captured.launch(stream) if graph else run()
    stream.synchronize()
    with comparing() as compare:
        for chain in chains:
            chain.check(compare, 6)
    other.Free()
    comm.ordered_starts = False


@gpu_only
@needs_numba
@pytest.mark.parametrize("before", [1, 2, 3, 4])
def test_turns_wrap_around(before):
    """The last 32 bits of the count begin anew, which packets carry."""
    comm = pyncclx.Communicator().Dup()
    comm.Allreduce(put(np.ones(300_000, "f4")), Output(300_000, "f4").array, algorithm="numba")
    comm.Allreduce(put(np.ones(30_000, "f4")), Output(30_000, "f4").array, algorithm="numba")
    synchronize()
    turns = workspace.workspace_of(comm, "Allreduce").address
    memory = xp.cuda.UnownedMemory(turns, 8 * workspace.BLOCKS, None, xp.cuda.Device().id)
    xp.ndarray(workspace.BLOCKS, "i8", xp.cuda.MemoryPointer(memory, 0))[...] = 2**32 - 1 - before
    synchronize()
    MPI.Comm.Barrier(comm)
    with comparing() as compare:
        for call, count in enumerate((5, 5, 30_000, 5, 300_000, 5, 30_000, 5)):
            vectors = contributions(comm.size, count, call=call)
            recv = Output(count, "f4")
            comm.Allreduce(put(vectors[comm.rank]), recv.array, algorithm="numba")
            compare(recv, fold(ops.SUM, vectors), f"call {call}")
    comm.Free()


@gpu_only
@needs_numba
@pytest.mark.ranks(2)
def test_a_rank_that_does_not_come(monkeypatch):
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "0.5")
    comm = pyncclx.Communicator().Dup()
    vector = put(np.ones(5, "f4"))
    comm.Allreduce(vector, Output(5, "f4").array, algorithm="numba")
    comm.synchronize()
    MPI.Comm.Barrier(comm)
    if comm.rank > 0:
        comm.Allreduce(vector, Output(5, "f4").array, algorithm="numba")
        with pytest.raises(pyncclx.PeerTimeout, match="pyncclx_receive_packets"):
            comm.synchronize()
    MPI.COMM_WORLD.Barrier()
    comm.Free()


@one_communicator
def test_what_they_do_not_take(comm):
    wrong = put(np.ones(4, "c8")), put(np.ones(4, "f4"))
    if not HOST:
        with raises_everywhere(comm, NotSupported, match=r"algorithm='numba' folds .*, not complex64 by SUM; leave"):
            comm.Allreduce(wrong[0], xp.empty_like(wrong[0]), algorithm="numba")
        unaligned = put(np.zeros(33, "u1"), 1)
        with raises_everywhere(comm, NotSupported, match="elements at multiples of their 4 bytes"):
            comm.Allreduce([unaligned[:32], "f4"], [unaligned[:32], "f4"], algorithm="numba")
    with raises_everywhere(comm, ValueError, match="Allgather: algorithm is 'nonsense'; it can be .*'numba'"):
        comm.Allgather(wrong[1], xp.empty(4 * comm.size, "f4"), algorithm="nonsense")
    with raises_everywhere(comm, ValueError, match="Barrier: algorithm is 'nonsense'; it can be 'numba'"):
        comm.Barrier(device=True, algorithm="nonsense")


@host_only
@one_communicator
def test_not_on_the_host_device(comm):
    vector, rows = np.ones(4, "f4"), np.ones((comm.size, 4), "f4")
    for call in (
        lambda: comm.Allreduce(vector, vector.copy(), algorithm="numba"),
        lambda: comm.Allgather(vector, rows, algorithm="numba"),
        lambda: comm.Alltoall(rows, rows.copy(), algorithm="numba"),
        lambda: comm.Barrier(device=True, algorithm="numba"),
    ):
        with raises_everywhere(comm, NotSupported, match="algorithm='numba' is a kernel that Numba compiles for GPUs"):
            call()
