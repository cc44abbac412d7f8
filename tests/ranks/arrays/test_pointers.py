"""Device memory in the clothes of host objects, as programs for CUDA-aware MPIs make them: only kernels take it."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import events
from support.arrays import host_only
from support.device_memory import CLOTHES, installed
from support.forms import FORMS, NAMES, arguments, call, total
from support.reversed_ranks import ring

pytestmark = host_only
in_all_clothes = pytest.mark.parametrize("clothes", CLOTHES)
memory = pytest.fixture(installed)


@pytest.fixture
def comm(memory):
    """No call may be mpi4py's, and none stages: the first messages go with MPI's, and all others by kernels."""
    ways = []
    events.listeners.append(ways.append)
    try:
        with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as made:
            yield made
            made.synchronize()
    finally:
        events.listeners.remove(ways.append)
    assert events.HOST not in {event.how for event in ways}


def ramp(comm, count, dtype="f8", rank=None):
    return (np.arange(count) % 97 + 100 * (comm.rank if rank is None else rank)).astype(dtype)


def with_counts(array, length):
    return [array, length[1]] if isinstance(length, tuple) else array


@in_all_clothes
@pytest.mark.parametrize("form", FORMS)
def test_collectives(comm, memory, clothes, form):
    """All of them, against mpi4py's methods on host arrays."""
    for name in NAMES:
        sent, received, after, keywords = arguments(comm, name)
        x, y = ramp(comm, total(sent)), np.full(total(received), -1.0)
        here, there = memory.put(x), memory.put(y)
        getattr(MPI.Intracomm, name)(comm, with_counts(x, sent), with_counts(y, received), *after, **keywords)
        send, recv = (
            each.spec(clothes, *length[1:]) if isinstance(length, tuple) else each.spec(clothes)
            for each, length in ((here, sent), (there, received))
        )
        call(comm, form, name, send, recv, *after, starts=2, **keywords)
        comm.synchronize()
        if not (name == "Exscan" and comm.rank == 0):
            np.testing.assert_array_equal(there.host, y, err_msg=name)


@in_all_clothes
def test_messages(comm, memory, clothes):
    """Round a ring: every send to every receive; MPI has the first messages' data, so several of each."""
    right, left = ring(comm)
    for turn in range(3):
        for count in (7, 40_000):
            for name in ("Send", "Ssend", "Isend", "Issend"):
                x, y, z = memory.put(ramp(comm, count)), memory.put(np.zeros(count)), memory.put(np.zeros(count + 3))
                status, sent = MPI.Status(), []
                if name[0] == "I":
                    receives = [comm.Irecv(y.spec(clothes), left, 3), comm.Irecv(z.spec(clothes), MPI.ANY_SOURCE, 4)]
                    sent = [getattr(comm, name)(x.spec(clothes), right, tag) for tag in (3, 4)]
                    pyncclx.Request.Waitall([*receives, *sent])
                else:
                    receives = [comm.Irecv(y.spec(clothes), left, 3)]
                    getattr(comm, name)(x.spec(clothes), right, 3)
                    receives[0].Wait()
                    sent = [comm.Isend(x.spec(clothes), right, 4)]
                    comm.Probe(MPI.ANY_SOURCE, 4, status)
                    assert status.Get_count(MPI.DOUBLE) == count
                    comm.Recv(z.spec(clothes), left, 4, status)
                    assert status.Get_count(MPI.DOUBLE) == count
                    sent[0].Wait()
                comm.synchronize()
                np.testing.assert_array_equal(y.host, ramp(comm, count, rank=left), err_msg=f"{name} {turn}")
                np.testing.assert_array_equal(z.host[:count], y.host, err_msg=f"{name} {turn}")
                assert not z.host[count:].any()
        memory.clear()


@in_all_clothes
def test_exchanges_and_matched_probes(comm, memory, clothes):
    right, left = ring(comm)
    x, y, z = memory.put(ramp(comm, 50)), memory.put(np.zeros(50)), memory.put(np.zeros(50))
    expected = ramp(comm, 50, rank=left)
    comm.Sendrecv(x.spec(clothes), right, 1, y.spec(clothes), left, 1)
    comm.Isendrecv(x.spec(clothes), right, 1, z.spec(clothes), left, 1).Wait()
    comm.synchronize()
    for each in (y, z):
        np.testing.assert_array_equal(each.host, expected)
        each.host[:] = 0
    sending = [comm.Isend(x.spec(clothes), right, tag) for tag in (5, 6)]
    comm.Mprobe(left, 5).Recv(y.spec(clothes))
    comm.Mprobe(left, 6).Irecv(z.spec(clothes)).Wait()
    pyncclx.Request.Waitall(sending)
    comm.Sendrecv_replace(x.spec(clothes), right, 2, left, 2)
    comm.synchronize()
    for each in (x, y, z):
        np.testing.assert_array_equal(each.host, expected)
    comm.Isendrecv_replace(y.spec(clothes), right, 2, left, 2).Wait()
    comm.synchronize()
    of_left = MPI.Comm.sendrecv(comm, left, right, source=left)  # the rank whose numbers the left one had
    np.testing.assert_array_equal(y.host, ramp(comm, 50, rank=of_left))


def heat_columns(place, split):
    """A matrix whose columns are sent one after the other, as heat has it: `place` has shape (rows, columns)."""
    rows, columns = place.host.shape
    column = MPI.DOUBLE.Create_vector(rows, 1, columns).Create_resized(0, 8).Commit()
    return MPI.buffer.fromaddress(place.address, place.host.nbytes), columns // split, column


@pytest.mark.parametrize("nbytes", ["all", "none"])
def test_derived_datatypes_beyond_the_own_length(comm, memory, nbytes):
    """The length of a buffer by address is what the program has guessed; datatypes may reach further."""
    size, rank = comm.size, comm.rank
    whole = memory.put(ramp(comm, 6 * 4 * size).reshape(6, 4 * size))
    part = memory.put(ramp(comm, 24).reshape(6, 4))
    there = memory.put(np.full((6, 4 * size), -1.0))
    _, _, column = heat_columns(there, size)
    _, _, short = heat_columns(part, 1)

    def of(place):
        return MPI.buffer.fromaddress(place.address, place.host.nbytes if nbytes == "all" else 0)

    comm.Allgather([of(part), 4, short], [of(there), 4, column])
    comm.synchronize()
    every = [ramp(comm, 24, rank=each).reshape(6, 4) for each in range(size)]
    np.testing.assert_array_equal(there.host, np.hstack(every))
    comm.Alltoall([of(whole), 4, column], [of(there), 4, column])
    comm.synchronize()
    blocks = [ramp(comm, 24 * size, rank=each).reshape(6, -1)[:, 4 * rank : 4 * rank + 4] for each in range(size)]
    np.testing.assert_array_equal(there.host, np.hstack(blocks))
    there.host[...] = -1
    counts, displs = [2 + each % 2 for each in range(size)], [4 * each for each in range(size)]
    comm.Allgatherv([of(part), counts[rank], short], [of(there), (counts, displs), column])
    comm.synchronize()
    expected = np.full((6, 4 * size), -1.0)
    for each, count in enumerate(counts):
        expected[:, 4 * each : 4 * each + count] = every[each][:, :count]
    np.testing.assert_array_equal(there.host, expected)
    there.host[...] = -1
    offsets = [8 * displ for displ in displs]
    w = [[4] * size, offsets]
    comm.Alltoallw([of(whole), w, [column] * size], [of(there), w, [column] * size])
    comm.synchronize()
    np.testing.assert_array_equal(there.host, np.hstack(blocks))
    there.host[...] = -1
    right, left = ring(comm)
    comm.Sendrecv([of(whole), 4, column], right, 0, [of(there), 4, column], left, 0)
    comm.Bcast([of(whole), 4 * size, column], size - 1)
    comm.synchronize()
    np.testing.assert_array_equal(there.host[:, :4], ramp(comm, 24 * size, rank=left).reshape(6, -1)[:, :4])
    np.testing.assert_array_equal(whole.host, ramp(comm, 24 * size, rank=size - 1).reshape(6, -1))
    column.Free()
    short.Free()


def test_lengths_that_the_allocation_does_not_have(comm, memory):
    """Refused before anything is launched; what the object itself says is no limit, the memory is."""
    x, y = memory.put(ramp(comm, 8)), memory.put(np.zeros(8))
    short = MPI.buffer.fromaddress(x.address, 16)
    comm.Allreduce([short, 8, MPI.DOUBLE], y.spec("array"))
    for count in (1 << 30, 1 << 40):
        with pytest.raises(ValueError, match="pass a larger array"):
            comm.Allreduce([short, count, MPI.DOUBLE], [y.untyped("buffer"), count, MPI.DOUBLE])
    with pytest.raises(ValueError, match="pass a larger array"):
        comm.Allgatherv(x.spec("array"), [short, [8] * comm.size, [1 << 30] * comm.size, MPI.DOUBLE])
    with pytest.raises(ValueError, match="8 elements"):
        comm.Allreduce([x.typed("array"), 9, MPI.DOUBLE], y.spec("array"))
    comm.synchronize()
    np.testing.assert_array_equal(y.host, sum(ramp(comm, 8, rank=rank) for rank in range(comm.size)))
