"""What kernels have refused when the communicator is freed: raised once it is, on the rank that it concerns."""

import numpy as np
import pytest

from pyncclx import CapacityExceeded
from support.arrays import Output, put
from support.everywhere import assert_everywhere
from support.reference import comparing

pytestmark = [pytest.mark.one_node, pytest.mark.parametrize("comm", ["reversed"], indirect=True)]


def overflow(comm, receiver):
    """Send two rows to each rank; the receiver has room for one in all."""
    size = comm.size
    recv = Output((1 if comm.rank == receiver else 2 * size, 3), "f4")
    comm.Alltoallv([put(np.ones((2 * size, 3), "f4")), put(np.full(size, 2))], recv.array, layout="packed")


@pytest.mark.parametrize("end", ["Free", "free", "Disconnect", "with"])
def test_rows_without_room(comm, end):
    other, last, raised = comm.Dup(), comm.size - 1, None
    try:
        if end == "with":
            with other:
                overflow(other, last)
        else:
            overflow(other, last)
            getattr(other, end)()
    except CapacityExceeded as error:
        raised = error.rank, error.capacity
    assert_everywhere(comm, raised == ((last, 1) if comm.rank == last else None), f"{raised}")
    with pytest.raises(Exception, match=r"(?i)comm"):
        other.Barrier()
    sums = Output(3, "f4")
    comm.Allreduce(put(np.ones(3, "f4")), sums.array)
    with comparing() as compare:
        compare(sums, np.full(3, comm.size, "f4"), "another communicator")


def test_rows_of_a_shuffle(comm):
    other = comm.Dup()
    shuffle = other.Create_token_shuffle(comm.size, 1, 16, "float32", k=1, max_tokens=4)
    shuffle.dispatch(put(np.ones((2, 16), "f4")), put(np.full((2, 1), comm.rank)))
    shuffle.Free()
    try:
        other.Free()
    except CapacityExceeded as error:
        found = error.rank
    else:
        found = None
    assert_everywhere(comm, found == comm.rank, f"{found}")
