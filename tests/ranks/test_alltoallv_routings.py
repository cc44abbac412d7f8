"""Alltoallv with counts on the device: random routings in all layouts, with and without room enough.

There are few of them by default. For more, on a communicator whose part of the heap is small:

    PYNCCLX_ROUTINGS=100000 python tests/run.py ranks -n 3 -k "routings_of_alltoallv and dup"
"""

import os
from dataclasses import dataclass

import numpy as np
import pytest

from arrays import Output, put, xp
from in_python import also_in_python  # noqa: F401
from reference import labels

pytestmark = pytest.mark.usefixtures("also_in_python")

ROUTINGS = int(os.environ.get("PYNCCLX_ROUTINGS", "50"))
WIDTH = 3  # int64 elements of a row: 24 bytes, no multiple of 16
LONGEST = 400  # rows from one rank to another
POISON = np.frombuffer(b"\xa5" * 8, "i8")[0]
LAYOUTS = ("packed", "slots", "sender", "placed")


@dataclass
class Routing:
    """One call, as all ranks know it."""

    number: int
    layout: str
    counts: np.ndarray  # [source, target]
    displs: np.ndarray | None  # the same; None: rows for rank 0, 1, … follow each other
    places: np.ndarray  # [target, source]: where rows are to begin, for "placed"
    capacity: int

    def sent(self, source, target):
        """Where the rows begin in sendbuf."""
        return int(self.counts[source, :target].sum() if self.displs is None else self.displs[source, target])

    def received(self, me):
        """Of each source: where its rows begin, and how many are kept."""
        found, used = [], 0
        for source, count in enumerate(self.counts[:, me].tolist()):
            begin = {"packed": used, "placed": int(self.places[me, source])}.get(self.layout, 0)
            if self.layout == "sender" and count:
                begin = self.sent(source, me)
            kept = max(0, min(count, self.capacity - begin))
            used += kept
            found.append((begin + (source * self.capacity if self.layout in ("slots", "sender") else 0), kept))
        return found


def draw(number, size):
    """Make a routing; the same number gives the same on every rank."""
    random = np.random.default_rng([size, number])
    most = int(random.choice([1, 3, 20, LONGEST], p=[0.2, 0.3, 0.4, 0.1]))
    counts = random.integers(0, most + 1, (size, size))
    kind = random.integers(5)
    if kind == 1:  # the further, the fewer
        counts = counts // (1 + (np.arange(size) + random.integers(size)) % size) ** 2
    elif kind == 2:  # all to one
        counts[:, np.arange(size) != random.integers(size)] = 0
    elif kind == 3:  # some ranks have nothing
        counts[random.random(size) < 0.5] = 0
    elif kind == 4:
        counts *= random.random((size, size)) < 0.3
    order = random.permuted(np.tile(np.arange(size), (size, 1)), axis=1)
    displs = following(counts, order) + random.integers(0, 3, (size, 1)) if random.random() < 0.5 else None
    places = following(counts.T, random.permuted(order, axis=1)) + random.integers(0, 3)
    capacity = int(random.choice([0, most // 2, most, size * most, size * most + 3], p=[0.05, 0.15, 0.2, 0.3, 0.3]))
    return Routing(number, LAYOUTS[random.integers(4)], counts, displs, places, capacity)


def following(counts, order):
    """Displacements of blocks that follow each other in a random order, each row for itself."""
    displs = np.zeros_like(counts)
    for row, places in enumerate(order):
        displs[row, places] = np.concatenate([[0], np.cumsum(counts[row, places])[:-1]])
    return displs


class Rank:
    """Buffers of one rank, used again in all calls."""

    def __init__(self, comm, allocate=xp.empty):
        self.comm, size = comm, comm.size
        self.most = size * LONGEST + 3
        self.send = xp.empty((self.most, WIDTH), "i8")
        self.counts, self.displs = xp.empty(size, "i8"), xp.empty(size, "i8")
        self.memory = allocate((size * self.most * WIDTH + 64) * 8, "u1")  # for slots of the largest capacity

    def problems(self, routing):
        """Make the call; what is wrong with the result."""
        comm, me, layout, capacity = self.comm, self.comm.rank, routing.layout, routing.capacity
        rows = labels(me, self.most * WIDTH, routing.number % 2**15).reshape(-1, WIDTH)
        self.send[...] = put(rows)
        self.counts[...] = put(routing.counts[me])
        if routing.displs is not None:
            self.displs[...] = put(routing.displs[me])
        shape = (comm.size, capacity, WIDTH) if layout in ("slots", "sender") else (capacity, WIDTH)
        recv = Output(shape, "i8", memory=self.memory)
        recv.poison()
        counts, displs, total, status = (Output(n, "i8") for n in (comm.size, comm.size, 1, comm.size))
        if layout == "placed":
            displs.fill(routing.places[me])
        comm.Alltoallv(
            [self.send, (self.counts, None if routing.displs is None else self.displs)],
            [recv.array, (counts.array, displs.array)],
            layout=layout,
            total=total.array,
            status=status.array,
        )
        expected = np.full((int(np.prod(shape[:-1])), WIDTH), POISON)
        found = routing.received(me)
        for source, (begin, kept) in enumerate(found):
            first = routing.sent(source, me) * WIDTH
            block = np.arange(first, first + kept * WIDTH) + labels(source, 1, routing.number % 2**15)
            expected[begin : begin + kept] = block.reshape(-1, WIDTH)
        begins, kept = np.array(found).T
        outputs = {"rows": (recv, expected.reshape(shape)), "counts": (counts, kept), "displs": (displs, begins)}
        outputs.update({"total": (total, kept.sum()), "status": (status, routing.counts[:, me] - kept)})
        return [
            f"{what} of {routing}: {output.damage()} {output.read().tolist()}"
            for what, (output, right) in outputs.items()
            if output.damage() or not (output.read() == right).all()
        ]


def try_all(rank, numbers):
    """Make the calls; say what was wrong with the first few that were."""
    wrong = []
    for number in numbers:
        found = rank.problems(draw(number, rank.comm.size))
        wrong += found[: max(0, 3 - len(wrong))]
    rank.comm.synchronize()
    return "\n".join(wrong)


@pytest.mark.timeout(120 + ROUTINGS / 10)
def test_random_routings_of_alltoallv(comm):
    wrong = try_all(Rank(comm), range(ROUTINGS))
    assert not wrong, wrong


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
def test_random_routings_into_windows(comm):
    """Long spans go straight to their places."""
    other = comm.Dup()
    wrong = try_all(Rank(other, other.Alloc), range(1000, 1050))
    other.Free()
    assert not wrong, wrong
