"""Messages of new arrays in each step: the plan of an earlier equal message is used, for the new array."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.messages import plan
from support.arrays import get, host_only, put, xp

WORLD = MPI.COMM_WORLD
LEFT, RIGHT = (WORLD.rank - 1) % WORLD.size, (WORLD.rank + 1) % WORLD.size
TURNS = 5
pytestmark = pytest.mark.skipif(WORLD.size == 1, reason="sends to itself wait for their receives")


def sent_and_received(comm, send, recv):
    if comm.rank % 2 == 0:
        comm.Send(send, RIGHT, 3)
        comm.Recv(recv, LEFT, 3)
    else:
        comm.Recv(recv, LEFT, 3)
        comm.Send(send, RIGHT, 3)


CALLS = {
    "Send, Recv": sent_and_received,
    "Isend, Irecv": lambda comm, send, recv: pyncclx.Request.Waitall(
        [comm.Irecv(recv, LEFT, 4), comm.Isend(send, RIGHT, 4)]
    ),
    "Sendrecv": lambda comm, send, recv: comm.Sendrecv(send, RIGHT, 5, recv, LEFT, 5),
    "any source": lambda comm, send, recv: pyncclx.Request.Waitall(
        [comm.Irecv(recv, MPI.ANY_SOURCE, 6), comm.Isend(send, RIGHT, 6)]
    ),
    "parts": lambda comm, send, recv: comm.Sendrecv(
        [send, (send.size - 2, 2), MPI.INT], RIGHT, 7, [recv, (recv.size - 2, 1), MPI.INT], LEFT, 7
    ),
}


@pytest.fixture(scope="module", params=["stream", "host"])
def comm(request):
    with pyncclx.Communicator(WORLD.Dup()) as comm:
        comm.blocking = request.param
        comm.Barrier()
        yield comm


def refuse(*args, **kwargs):
    raise AssertionError("the arguments were looked at")


@pytest.mark.parametrize("count", [7, 3000, 100_000])
@pytest.mark.parametrize("name", CALLS)
def test_data_is_that_of_mpi4py(comm, name, count, monkeypatch):
    kept = []
    for turn in range(TURNS):
        wholes = [np.arange(count + 8, dtype="i4") + 1000 * comm.rank + 1_000_000 * turn + 17 * n for n in range(2)]
        ours = [xp.empty(count + 8, "i4") for _ in wholes]
        kept.append(ours)  # or the next arrays may have the addresses of these
        for our, whole in zip(ours, wholes, strict=True):
            our[...] = put(whole)
        if turn == 2:
            monkeypatch.setattr(plan, "_new_plan", refuse)
        begin = turn % 3
        CALLS[name](comm, *[our[begin : begin + count] for our in ours])
        CALLS[name](WORLD, *[whole[begin : begin + count] for whole in wholes])
        for our, whole in zip(ours, wholes, strict=True):
            np.testing.assert_array_equal(get(our), whole, f"{name}, turn {turn}")
        comm.Barrier()


def test_an_array_of_another_length_or_type_is_another_message(comm):
    for turn in range(3):
        for dtype in ("i4", "f8"):
            for count in (5, 6):
                recv = xp.zeros(count, dtype)
                comm.Sendrecv(xp.full(count, comm.rank + turn, dtype), RIGHT, 0, recv, LEFT, 0)
                np.testing.assert_array_equal(get(recv), np.full(count, LEFT + turn, dtype))


@host_only
def test_an_array_that_cannot_be_written_is_refused_as_before(comm):
    for _ in range(3):
        comm.Sendrecv(xp.ones(7, "i4"), RIGHT, 0, xp.ones(7, "i4"), LEFT, 0)
    readonly = xp.ones(7, "i4")
    readonly.flags.writeable = False
    with pytest.raises(BufferError):
        comm.Sendrecv(xp.ones(7, "i4"), RIGHT, 0, readonly, LEFT, 0)
    recv = xp.ones(7, "i4")
    comm.Sendrecv(xp.full(7, comm.rank + 5, "i4"), RIGHT, 0, recv, LEFT, 0)
    np.testing.assert_array_equal(get(recv), np.full(7, LEFT + 5))


def test_none_has_no_address(comm):
    for turn in range(2):
        nothing, empty = ended(), ended()
        comm.Send([None, 0, MPI.INT], MPI.PROC_NULL)
        comm.Recv([None, 0, MPI.INT], MPI.PROC_NULL, status=nothing)
        comm.Send(xp.empty(0, "i4"), RIGHT, 1 + turn)
        comm.Recv(xp.empty(0, "i4"), LEFT, MPI.ANY_TAG, status=empty)
        assert [nothing.source, nothing.tag, nothing.Get_count(MPI.INT)] == [MPI.PROC_NULL, MPI.ANY_TAG, 0]
        assert [empty.source, empty.tag, empty.Get_count(MPI.INT)] == [LEFT, 1 + turn, 0]
    # No message is left that this one could be taken for.
    recv = xp.zeros(3, "i4")
    comm.Sendrecv(xp.full(3, comm.rank + 1, "i4"), RIGHT, 1, recv, LEFT, MPI.ANY_TAG)
    np.testing.assert_array_equal(get(recv), np.full(3, LEFT + 1))


def ended():
    """A status that no call has written."""
    status = MPI.Status()
    status.source, status.tag = 99, 99
    status.Set_elements(MPI.INT, 99)
    return status
