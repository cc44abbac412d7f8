"""Alltoallv of segments: lists on the device send parts of a buffer to any number of ranks."""

from dataclasses import dataclass

import numpy as np
import pytest

from pyncclx import CapacityExceeded
from support.arrays import Output, gpu_only, put, synchronize, xp
from support.everywhere import raises_everywhere
from support.reference import NODES, comparing, labels

WIDTH = 3  # int64 elements of a row: 24 bytes, no multiple of 16
POISON = np.frombuffer(b"\xa5" * 8, "i8")[0]
LAYOUTS = ("packed", "slots", "sender", "placed")
on_one = pytest.mark.parametrize("comm", ["dup"], indirect=True)


@dataclass
class Split:
    """One call: the same on all ranks."""

    call: int
    layout: str
    lengths: np.ndarray  # [source, segment]
    goes: np.ndarray  # [source, target, segment]: whether it does
    ids: list[np.ndarray]  # of each source, in any order for a target
    places: np.ndarray  # [target, source]: where rows are to begin, for "placed"
    capacity: int

    def rows(self, source):
        return labels(source, int(self.lengths[source].sum()) * WIDTH, self.call).reshape(-1, WIDTH)

    def received(self, me):
        """What must be in recvbuf, and of each source where its rows begin, how many are kept, how many are not."""
        size, slots = len(self.lengths), self.layout in ("slots", "sender")
        expected, found, used = np.full(((size if slots else 1) * self.capacity, WIDTH), POISON), [], 0
        for source in range(size):
            first = {"packed": used, "placed": int(self.places[me, source])}.get(self.layout, source * self.capacity)
            room = (source + 1) * self.capacity if slots else self.capacity
            begins, rows, kept, at = np.cumsum(self.lengths[source]) - self.lengths[source], self.rows(source), 0, first
            for segment in np.flatnonzero(self.goes[source, me]):
                begin, length = int(begins[segment]), int(self.lengths[source, segment])
                at = first + begin if self.layout == "sender" else at
                fits = max(0, min(length, room - at))
                expected[at : at + fits] = rows[begin : begin + fits]
                kept, at = kept + fits, at + length
            wanted = int((self.lengths[source] * self.goes[source, me]).sum())
            found.append((first, kept, wanted - kept))
            used += kept
        return expected, np.array(found).T


def draw(call, size, layout):
    """Make a call; the same number gives the same on every rank."""
    random = np.random.default_rng([size, call])
    segments, longest = int(random.choice([1, 5, 40])), int(random.choice([1, 3, 60]))
    lengths = random.integers(0, longest + 1, (size, segments))
    goes = random.random((size, size, segments)) < random.choice([0, 0.2, 0.5, 1])
    ids = [np.concatenate([random.permutation(np.flatnonzero(to)) for to in source]) for source in goes]
    arriving = (lengths[:, None] * goes).sum(axis=2).T
    places = arriving.cumsum(axis=1) - arriving + 1
    most = int(max(arriving.sum(axis=1).max(), lengths.sum(axis=1).max())) + 1
    capacity = int(random.choice([most, most // 2]))
    return Split(call, layout, lengths, goes, ids, places, capacity)


class Arrays:
    """A call's arguments on one rank."""

    def __init__(self, split, me, allocate=None):
        size, segments = split.lengths.shape
        shape = (size, split.capacity, WIDTH) if split.layout in ("slots", "sender") else (split.capacity, WIDTH)
        memory = None if allocate is None else allocate(int(np.prod(shape)) * 8 + 512, "u1")
        self.split, self.me = split, me
        self.recv = Output(shape, "i8", memory=memory)
        self.counts, self.displs, self.total, self.status = (Output(n, "i8") for n in (size, size, 1, size))
        self.all_lengths = Output((size, segments), "i8")
        self.send, self.lengths, self.ids = put(split.rows(me)), put(split.lengths[me]), put(split.ids[me])
        self.sent = put(split.goes[me].sum(axis=1))
        for output in (self.recv, self.counts, self.displs, self.total, self.status, self.all_lengths):
            output.poison()
        if split.layout == "placed":
            self.displs.fill(split.places[me])

    def call(self, alltoallv):
        return alltoallv(
            [self.send, self.sent],
            [self.recv.array, (self.counts.array, self.displs.array)],
            layout=self.split.layout,
            total=self.total.array,
            status=self.status.array,
            segments=(self.lengths, self.ids, self.all_lengths.array),
        )

    def check(self, compare, what=""):
        expected, (displs, counts, status) = self.split.received(self.me)
        compare(self.recv, expected.reshape(self.recv.read().shape), f"{what}: rows")
        compare(self.counts, counts, f"{what}: counts")
        compare(self.displs, displs, f"{what}: displs")
        compare(self.status, status, f"{what}: status")
        compare(self.total, counts.sum().reshape(1), f"{what}: total")
        compare(self.all_lengths, self.split.lengths, f"{what}: lengths of all ranks")


@pytest.mark.parametrize("comm", ["dup", "halves"], indirect=True)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_segments(comm, layout):
    with comparing() as compare:
        for call in range(4):
            arrays = Arrays(draw(call, comm.size, layout), comm.rank)
            arrays.call(comm.Alltoallv)
            arrays.check(compare, f"call {call}")
    comm.synchronize()


@on_one
@pytest.mark.parametrize("layout", ["packed", "sender"])
def test_long_segments(comm, layout):
    """Many chunks of a ring in a stream, and segments longer than a chunk."""
    split = draw(0, comm.size, layout)
    split.lengths = np.random.default_rng(comm.size).integers(0, 1500, (comm.size, 4))
    split.goes = np.ones((comm.size, comm.size, 4), bool)
    split.ids = [np.tile(np.arange(4)[::-1], comm.size)] * comm.size
    split.capacity = int(split.lengths.sum())
    arrays = Arrays(split, comm.rank)
    arrays.call(comm.Alltoallv)
    with comparing() as compare:
        arrays.check(compare)


@on_one
def test_what_came_can_be_sent_on(comm):
    """As at the sender: a slot and the lengths that came are the arguments of the way back."""
    size, me = comm.size, comm.rank
    split = draw(7, size, "sender")
    split.capacity = int(split.lengths.sum(axis=1).max())
    arrays = Arrays(split, me)
    arrays.call(comm.Alltoallv)
    slots, lengths = arrays.recv.array.reshape(-1, WIDTH), arrays.all_lengths.array
    padding = split.capacity - split.lengths.sum(axis=1)  # a segment of its own behind those of each slot, for no one
    back_lengths = xp.concatenate([lengths, put(padding[:, None])], axis=1).reshape(-1)
    segments = split.lengths.shape[1]
    numbers = [source * (segments + 1) + np.flatnonzero(split.goes[source, me]) for source in range(size)]
    back = Output((size, split.capacity * size, WIDTH), "i8")
    got = Output(size, "i8")
    comm.Alltoallv(
        [slots, put(split.goes[:, me].sum(axis=1))],
        [back.array, got.array],
        layout="slots",
        segments=(back_lengths, put(np.concatenate(numbers))),
    )
    with comparing() as compare:
        compare(got, (split.lengths[me] * split.goes[me]).sum(axis=1), "counts")
        begins, rows = np.cumsum(split.lengths[me]) - split.lengths[me], split.rows(me)
        for target in range(size):
            mine = [rows[begins[i] : begins[i] + split.lengths[me, i]] for i in np.flatnonzero(split.goes[me, target])]
            expected = np.concatenate([np.empty((0, WIDTH), "i8"), *mine])
            compare(back.read()[target, : len(expected)], expected, f"from rank {target}")


@on_one
def test_persistent_segments(comm):
    """A request reads lengths, numbers and counts when it starts."""
    size, me = comm.size, comm.rank
    splits = [draw(call, size, "slots") for call in (11, 12, 13)]
    for split in splits:  # of one shape
        split.lengths, split.goes = np.resize(split.lengths, (size, 5)), np.resize(split.goes, (size, size, 5))
        split.ids = [np.concatenate([np.flatnonzero(to) for to in source]) for source in split.goes]
        split.capacity = 60 * 5
    arrays = Arrays(splits[0], me)
    arrays.send, arrays.ids = xp.zeros((300, WIDTH), "i8"), xp.zeros(5 * size, "i8")
    request = arrays.call(comm.Alltoallv_init)
    with comparing() as compare:
        for split in splits:
            rows = split.rows(me)
            arrays.split = split
            arrays.send[: len(rows)] = put(rows)
            arrays.lengths[...], arrays.sent[...] = put(split.lengths[me]), put(split.goes[me].sum(axis=1))
            arrays.ids[: len(split.ids[me])] = put(split.ids[me])
            arrays.recv.poison()
            synchronize()
            request.Start()
            request.Wait()
            arrays.check(compare, f"call {split.call}")
    request.Free()


@on_one
@gpu_only
@pytest.mark.skipif(bool(NODES), reason="over nodes the host reads the counts, which no graph can hold")
def test_segments_in_a_graph(comm):
    arrays = Arrays(draw(3, comm.size, "sender"), comm.rank)
    stream = xp.cuda.Stream(non_blocking=True)
    synchronize()
    with stream, comparing() as compare:
        arrays.call(comm.Alltoallv)
        stream.synchronize()
        stream.begin_capture()
        arrays.call(comm.Alltoallv)
        graph = stream.end_capture()
        for replay in range(3):
            arrays.recv.poison()
            synchronize()
            graph.launch(stream)
            stream.synchronize()
            arrays.check(compare, f"replay {replay}")


@on_one
@pytest.mark.parametrize(
    ("lengths", "ids", "count", "message"),
    [
        ([2, -1, 2], [0], 1, "entry 1 .* is -1"),
        ([2, 9, 2], [0], 1, "entry 1 .* is 9"),
        ([2, 2, 2], [3], 1, "entry 0 .* is 3; 0 to 2"),
        ([2, 2, 2], [-1], 1, "entry 0 .* is -1"),
        ([2, 2, 2], [0], 2, "entry 0 .* is 2; 0 to 1"),
    ],
)
def test_impossible_numbers_are_reported(comm, lengths, ids, count, message):
    """They count as none; the communicator goes on."""
    size = comm.size
    sent = np.zeros(size, "i8")
    sent[0] = count
    recv, counts = xp.zeros((size, 6), "i8"), xp.zeros(size, "i8")
    segments = (put(np.array(lengths)), put(np.array(ids)))
    comm.Alltoallv([put(np.arange(6)), put(sent)], [recv, counts], layout="slots", segments=segments)
    with raises_everywhere(comm, ValueError, match=message):
        comm.synchronize()
    arrays = Arrays(draw(1, size, "packed"), comm.rank)
    arrays.call(comm.Alltoallv)
    with comparing() as compare:
        arrays.check(compare)


@on_one
def test_too_many_rows_are_an_error(comm):
    size = comm.size
    recv = xp.zeros((size, 1), "i8")
    segments = (put(np.array([1, 1])), put(np.tile([0, 1], size)))
    arguments = [put(np.arange(2)), put(np.full(size, 2))], recv
    comm.Alltoallv(*arguments, layout="slots", segments=segments)
    with raises_everywhere(comm, CapacityExceeded):
        comm.synchronize()
    comm.Alltoallv(*arguments, layout="slots", segments=segments, overflow="drop")
    comm.synchronize()


@on_one
def test_bad_segments(comm):
    size = comm.size
    rows, counts, recv = xp.zeros((4, 2)), xp.zeros(size, "i8"), xp.zeros((8, 2))
    one = xp.zeros(1, "i8")
    for error, text, segments in (
        (TypeError, "pass .lengths, ids.", one),
        (TypeError, "lengths of segments is an array of int32", (one.astype("i4"), one)),
        (ValueError, "all_lengths of segments has 1 items", (xp.zeros(3, "i8"), one, one)),
        (
            ValueError,
            "all_lengths of segments is an array that gives",
            (xp.zeros(1, "i8"), out := xp.zeros(size, "i8"), out),
        ),
    ):
        with raises_everywhere(comm, error, match=text):
            comm.Alltoallv([rows, counts], recv, segments=segments)
    with raises_everywhere(comm, ValueError, match="leave displs out"):
        comm.Alltoallv([rows, (counts, xp.zeros(size, "i8"))], recv, segments=(one, one))
