"""Alltoallv with counts on the device: random routings in all layouts, with and without room enough.

There are few of them by default. For more, on a communicator whose part of the heap is small:

    PYNCCLX_TEST_ROUTINGS=100000 python tests/run.py ranks -n 3 -k "routings_of_alltoallv and dup"
"""

import os

import pytest

from support.arrays import Output, put, xp
from support.in_python import also_in_python  # noqa: F401
from support.reference import labels
from support.row_routing import LONGEST, WIDTH, draw, expected

pytestmark = pytest.mark.usefixtures("also_in_python")

ROUTINGS = int(os.environ.get("PYNCCLX_TEST_ROUTINGS", "50"))


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
        outputs = {"rows": recv, "counts": counts, "displs": displs, "total": total, "status": status}
        right = expected(routing, me)
        return [
            f"{what} of {routing}: {output.damage()} {output.read().tolist()}"
            for what, output in outputs.items()
            if output.damage() or not (output.read().reshape(right[what].shape) == right[what]).all()
        ]


def try_all(rank, numbers):
    """Make the calls; return what was wrong with the first few that failed."""
    wrong = []
    for number in numbers:
        found = rank.problems(draw(number, rank.comm.size))
        wrong += found[: max(0, 3 - len(wrong))]
    rank.comm.synchronize()
    return "\n".join(wrong)


@pytest.mark.timeout(300 + ROUTINGS / 10)
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
