"""Alltoallv with counts on the device: rows move by the counts at the kernel's run, and never past the capacity."""

import numpy as np
import pytest

from pyncclx import CapacityExceeded
from pyncclx.operators import ops
from support.arrays import Output, get, put, synchronize, xp
from support.everywhere import assert_everywhere
from support.in_python import also_in_python  # noqa: F401
from support.lease import layout_of
from support.reference import comparing, contributions, fold, labels

pytestmark = pytest.mark.usefixtures("also_in_python")

WIDTH = 3  # int64 elements of a row: 24 bytes, no multiple of 16
LAYOUTS = pytest.mark.parametrize("layout", ["packed", "slots"])


def matrices(size, chunk_rows):
    """Row counts [sender, receiver] by name: what a shuffle of tokens can come to."""
    random = np.random.default_rng(size)
    some = random.integers(0, 20, (size, size))
    one_receives, one_sends, mixed = np.zeros((3, size, size), int)
    one_receives[:, size - 1] = 7
    one_sends[0, :] = 7
    mixed[:] = random.choice([0, 1, chunk_rows, 3 * chunk_rows + 1], (size, size))
    return {"some": some, "none": some * 0, "one receives": one_receives, "one sends": one_sends, "mixed": mixed}


def rows_to_send(matrix, rank, call=0):
    """What `rank` sends, in order of receivers; a row's elements are made of sender, call and place."""
    return labels(rank, int(matrix[rank].sum()) * WIDTH, call).reshape(-1, WIDTH)


def rows_received(matrix, rank, layout, capacity, call=0):
    """What `rank` must receive: (rows by source, counts, displs, cut)."""
    blocks, counts, displs, room = [], [], [], capacity
    for source in range(len(matrix)):
        begin = int(matrix[source, :rank].sum())
        block = rows_to_send(matrix, source, call)[begin : begin + matrix[source, rank]][: max(room, 0)]
        displs.append(sum(counts) if layout == "packed" else source * capacity)
        blocks.append(block)
        counts.append(len(block))
        room = capacity if layout == "slots" else room - len(block)
    return blocks, np.array(counts), np.array(displs), matrix[:, rank] - counts


class Shuffle:
    """Arguments and results of one dynamic Alltoallv."""

    def __init__(self, comm, layout, capacity, with_status=True):
        self.comm, self.layout, self.capacity = comm, layout, capacity
        rows = (comm.size, capacity) if layout == "slots" else (capacity,)
        self.recv = Output((*rows, WIDTH), "i8")
        self.counts, self.displs, self.total = Output(comm.size, "i8"), Output(comm.size, "i8"), Output(1, "i8")
        self.status = Output(comm.size, "i8") if with_status else None

    def start(self, send, counts, displs=None):
        status = self.status.array if self.status else None
        self.comm.Alltoallv(
            [send, (counts, displs)],
            [self.recv.array, (self.counts.array, self.displs.array)],
            layout=self.layout,
            total=self.total.array,
            status=status,
        )

    def compare(self, compare, matrix, what, call=0):
        expected = rows_received(matrix, self.comm.rank, self.layout, self.capacity, call)
        blocks, counts, displs, cut = expected
        recv = np.full(self.recv.array.shape, np.frombuffer(b"\xa5" * 8, "i8")[0]).reshape(-1, WIDTH)
        for block, displ in zip(blocks, displs, strict=True):
            recv[displ : displ + len(block)] = block
        compare(self.recv, recv.reshape(self.recv.array.shape), f"{what}: rows")
        compare(self.counts, counts, f"{what}: counts")
        compare(self.displs, displs, f"{what}: displs")
        compare(self.total, np.array([counts.sum()]), f"{what}: total")
        if self.status:
            compare(self.status, cut, f"{what}: status")


def capacity_for(comm, matrix, layout):
    """Exactly the room that the busiest rank needs."""
    return int(matrix.max() if layout == "slots" else matrix[:, comm.rank].sum())


@LAYOUTS
def test_counts(comm, layout):
    chunk_rows = layout_of(comm).chunk_nbytes * layout_of(comm).channels // (8 * WIDTH)
    with comparing() as compare:
        for name, matrix in matrices(comm.size, chunk_rows).items():
            for spare in (0, 5):
                shuffle = Shuffle(comm, layout, capacity_for(comm, matrix, layout) + spare)
                shuffle.start(put(rows_to_send(matrix, comm.rank)), put(matrix[comm.rank]))
                shuffle.compare(compare, matrix, f"{name}, {spare} spare")


@LAYOUTS
def test_same_arrays_with_other_counts(comm, layout):
    """What a training step does: the arrays stay, their contents change, nothing waits for the host."""
    found = [matrices(comm.size, 50 + call)["some" if call % 3 else "mixed"] for call in range(9)]
    capacity = max(int(matrix.sum()) for matrix in found)
    send, counts = xp.empty((capacity, WIDTH), "i8"), xp.empty(comm.size, "i8")
    with comparing() as compare:
        for call, matrix in enumerate(found):
            rows = rows_to_send(matrix, comm.rank, call)
            send[: len(rows)] = put(rows)
            counts[...] = put(matrix[comm.rank])
            shuffle = Shuffle(comm, layout, capacity)
            shuffle.start(send, counts)
            shuffle.compare(compare, matrix, f"call {call}", call)


@LAYOUTS
def test_capacity_too_small(comm, layout):
    """The rows that fit arrive, the status has which were cut; the ranks' capacities differ."""
    with comparing() as compare:
        for name, matrix in matrices(comm.size, 100).items():
            for few in (1, 2, 10):
                missing = few + comm.rank if layout == "packed" else few
                shuffle = Shuffle(comm, layout, max(0, capacity_for(comm, matrix, layout) - missing))
                shuffle.start(put(rows_to_send(matrix, comm.rank)), put(matrix[comm.rank]))
                shuffle.compare(compare, matrix, f"{name}, {missing} too few")


@LAYOUTS
def test_capacity_too_small_without_status(comm, layout):
    """The next call raises, on the ranks whose rows were cut, and the communicator goes on."""
    matrix = np.full((comm.size, comm.size), 4)
    needed = capacity_for(comm, matrix, layout)
    cut = comm.rank == comm.size - 1
    shuffle = Shuffle(comm, layout, needed - 3 * cut, with_status=False)
    shuffle.start(put(rows_to_send(matrix, comm.rank)), put(matrix[comm.rank]))
    synchronize()
    vectors, recv = contributions(comm.size, 10), Output(10, "f4")
    if cut:
        with pytest.raises(CapacityExceeded) as raised:
            comm.Allreduce(put(vectors[comm.rank]), recv.array)
        source = comm.size - 1 if layout == "packed" else raised.value.source
        assert (raised.value.rank, raised.value.source) == (comm.rank, source)
        assert (raised.value.wanted, raised.value.capacity) == (4, 1)
    comm.Allreduce(put(vectors[comm.rank]), recv.array)
    with comparing() as compare:
        shuffle.compare(compare, matrix, "cut")
        compare(recv, fold(ops.SUM, vectors), "afterwards")
    comm.synchronize()


def test_displs(comm):
    """Rows anywhere in sendbuf, out of order, with gaps and overlaps."""
    size, rank = comm.size, comm.rank
    send = labels(rank, 40 * WIDTH).reshape(-1, WIDTH)
    displs = [(7 * (size - to) + 3) % 30 for to in range(size)]
    recv, counts = Output((5 * size, WIDTH), "i8"), Output(size, "i8")
    where = (put(np.full(size, 5)), put(np.array(displs)))
    comm.Alltoallv([put(send), where], [recv.array, counts.array], layout="packed")
    mine = displs[rank]
    expected = [labels(source, 40 * WIDTH).reshape(-1, WIDTH)[mine : mine + 5] for source in range(size)]
    with comparing() as compare:
        compare(recv, np.concatenate(expected), "rows")
        compare(counts, np.full(size, 5), "counts")


def test_rows_of_every_shape(comm):
    """A row is what one index of the first dimension holds: also one byte, also a matrix."""
    with comparing() as compare:
        for shape in ((), (1,), (17,), (5, 7)):
            rows = np.random.default_rng(5).integers(0, 200, (2 * comm.size, *shape)).astype("u1")
            recv = Output((2 * comm.size, *shape), "u1")
            comm.Alltoallv([put(rows + np.uint8(comm.rank)), put(np.full(comm.size, 2))], recv.array, layout="packed")
            mine = rows[2 * comm.rank : 2 * comm.rank + 2]
            compare(recv, np.concatenate([mine + np.uint8(s) for s in range(comm.size)]), f"rows of shape {shape}")


@pytest.mark.parametrize(("counts", "displs"), [([-1], None), ([9], None), ([3], [6]), ([3], [-1]), ([2**62], [2**62])])
def test_counts_outside_of_the_buffer(comm, counts, displs):
    """A row count for one rank that sendbuf has not: nothing goes there, and the sender's next call raises."""
    size, rank = comm.size, comm.rank
    send = put(labels(rank, 8 * WIDTH).reshape(-1, WIDTH))
    recv, got = Output((8 * size, WIDTH), "i8"), Output(size, "i8")
    bad = rank == 0
    numbers = np.array([*([0] * (size - 1)), *counts] if bad else [0] * size)
    places = None if displs is None else put(np.array([0] * (size - 1) + displs))
    comm.Alltoallv([send, (put(numbers), places)], [recv.array, got.array], layout="packed")
    synchronize()
    problem = ""
    try:
        comm.synchronize()
    except ValueError as error:
        problem = str(error)
    assert_everywhere(comm, bad == ("Alltoallv: send count" in problem and f"for rank {size - 1}" in problem), problem)
    assert get(got.array).tolist() == [0] * size
    assert not recv.damage()
    assert (recv.read().view("u1") == 0xA5).all()
    matrix = np.full((size, size), 2)
    again = Shuffle(comm, "packed", 2 * size)
    again.start(put(rows_to_send(matrix, rank)), put(matrix[rank]))
    with comparing() as compare:
        again.compare(compare, matrix, "afterwards")
