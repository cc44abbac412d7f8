"""Persistent collectives with one buffer on the device and the other on the host, of one rank or of all."""

import gc
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.launch.prepared import Prepared
from support.arrays import get, host_only, put, xp
from support.forms import NAMES, arguments, total
from support.staging_comm import by_kernels

STARTS, COUNT = 3, 11
AT_ROOT = {"Scatter": ["send"], "Scatterv": ["send"], "Gather": ["recv"], "Gatherv": ["recv"], "Reduce": ["recv"]}


comm = pytest.fixture(by_kernels)


def labels(comm, count, start=0):
    return np.arange(count) % 97 + 100.0 * comm.rank + 7 * start


def in_host_memory(values):
    """A bytearray is there on the host device, too."""
    return bytearray(np.ascontiguousarray(values).tobytes())


def spec(array, length):
    counts = [length[1]] if isinstance(length, tuple) else []
    return [array, *counts, MPI.DOUBLE]


def store(array, values):
    if isinstance(array, bytearray):
        np.frombuffer(array)[:] = values
    else:
        array[...] = xp.array(values)


def read(array):
    return np.frombuffer(array).copy() if isinstance(array, bytearray) else get(array)


class Sum:
    """A persistent `Allreduce` of numbers that change: with device arrays, or one of them on the host."""

    def __init__(self, comm, host=()):
        self.comm = comm
        self.x = (in_host_memory if "send" in host else put)(np.zeros(COUNT))
        self.y = (in_host_memory if "recv" in host else put)(np.zeros(COUNT))
        self.request = comm.Allreduce_init([self.x, MPI.DOUBLE], [self.y, MPI.DOUBLE])

    def fill(self, start):
        store(self.x, labels(self.comm, COUNT, start))
        store(self.y, np.full(COUNT, -1.0))
        self.start = start

    def check(self):
        every = [np.arange(COUNT) % 97 + 100.0 * rank + 7 * self.start for rank in range(self.comm.size)]
        np.testing.assert_array_equal(read(self.y), np.sum(every, 0))


@pytest.mark.parametrize("who", ["last", "all"])
@pytest.mark.parametrize("name", NAMES)
def test_each_start_reads_the_host_buffer(comm, name, who):
    """Against mpi4py's blocking method on host arrays."""
    sent, received, after, keywords = arguments(comm, name)
    for odd in AT_ROOT.get(name, ["send", "recv"]):
        me = who == "all" or comm.rank == comm.size - 1
        x, y = labels(comm, total(sent)), np.full(total(received), -1.0)
        here = in_host_memory(x) if me and odd == "send" else put(x)
        there = in_host_memory(y) if me and odd == "recv" else put(y)
        request = getattr(comm, f"{name}_init")(spec(here, sent), spec(there, received), *after, **keywords)
        for start in range(STARTS):
            x, y = labels(comm, total(sent), start), np.full(total(received), -2.0 - start)
            store(here, x)
            store(there, y)
            getattr(MPI.Intracomm, name)(comm, spec(x, sent), spec(y, received), *after, **keywords)
            request.Start()
            request.Wait()
            if not (name == "Exscan" and comm.rank == 0):
                np.testing.assert_array_equal(read(there), y, err_msg=f"{odd} {start}")
        request.Free()


def test_neighbours(comm):
    """Round a ring, with a block for each side: the last rank's are on the host."""
    with comm.Create_cart([comm.size], periods=[True]) as cart:
        cart.staging = True
        last = cart.rank == cart.size - 1
        for name, blocks in (("Neighbor_allgather", 1), ("Neighbor_alltoall", 2)):
            here, there = (in_host_memory if last else put)(np.zeros(5 * blocks)), put(np.zeros(10))
            request = getattr(cart, f"{name}_init")([here, MPI.DOUBLE], [there, MPI.DOUBLE])
            for start in range(STARTS):
                x, y = labels(cart, 5 * blocks, start), np.zeros(10)
                store(here, x)
                getattr(MPI.Cartcomm, name)(cart, x, y)
                request.Start()
                request.Wait()
                np.testing.assert_array_equal(read(there), y)
            request.Free()


def test_derived_datatypes(comm):
    """What lies between the elements of the host's array stays, though the program stores there meanwhile."""
    column = MPI.DOUBLE.Create_vector(3, 1, 2 * comm.size).Create_resized(0, 8).Commit()
    x, there = put(np.zeros(3)), in_host_memory(np.full((3, 2 * comm.size), -1.0))
    request = comm.Allgather_init([x, MPI.DOUBLE], [there, 1, column])
    for start in range(STARTS):
        store(x, labels(comm, 3, start))
        request.Start()
        np.frombuffer(there).reshape(3, -1)[:, comm.size] = 50 + start
        request.Wait()
        result = np.frombuffer(there).reshape(3, -1)
        every = [np.arange(3) + 100.0 * rank + 7 * start for rank in range(comm.size)]
        np.testing.assert_array_equal(result[:, : comm.size], np.stack(every, axis=1))
        np.testing.assert_array_equal(result[:, comm.size :], [[50 + start, *[-1] * (comm.size - 1)]] * 3)
    request.Free()
    column.Free()


def _all(kind, requests):
    kind.Waitall(requests)


def _until_all(kind, requests):
    while not kind.Testall(requests):
        pass


def _one_by_one(kind, requests):
    assert sorted(kind.Waitany(requests) for _ in requests) == list(range(len(requests)))


def _some(kind, requests):
    done = []
    while len(done) < len(requests):
        done += kind.Waitsome(requests)
    assert sorted(done) == list(range(len(requests)))


def _test_each(kind, requests):
    for request in requests:
        while not request.Test():
            pass


@pytest.mark.parametrize("kind", [pyncclx.Request, MPI.Request])
@pytest.mark.parametrize("complete", [_all, _until_all, _one_by_one, _some, _test_each])
@pytest.mark.parametrize("ordered", [False, True])
def test_starts_and_completions_with_others(comm, kind, complete, ordered):
    """Of each rank another request is on the host, and one is no collective but mpi4py's message."""
    comm.ordered_starts = ordered
    hosts = [("recv",), (), ("send",), ("recv",), ()]
    sums = [Sum(comm, hosts[(each + comm.rank) % len(hosts)]) for each in range(len(hosts))]
    sent, received = np.zeros(3), np.zeros(3)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    messages = [MPI.Comm.Recv_init(comm, received, left, 9), MPI.Comm.Send_init(comm, sent, right, 9)]
    requests = [sums[0].request, sums[1].request, messages[0], *(each.request for each in sums[2:]), messages[1]]
    for start in range(STARTS):
        for each in sums:
            each.fill(start)
        sent[:] = 10 * comm.rank + start
        pyncclx.Prequest.Startall(requests)
        assert all(each.request.is_active for each in sums)
        complete(kind, requests)
        assert not any(each.request.is_active for each in sums)
        for each in sums:
            each.check()
        np.testing.assert_array_equal(received, 10 * left + start)
    for request in requests:
        request.Free()


def test_free(comm):
    """Its track and the copy go to others."""
    for turn in range(20):
        one = Sum(comm, ("recv",) if comm.rank == 0 else ())
        for start in range(turn % 3):
            one.fill(start)
            one.request.Start()
            one.request.Wait()
            one.check()
        one.request.Free()
        assert not one.request
        with pytest.raises(MPI.Exception, match="has been freed") as raised:
            one.request.Start()
        assert raised.value.Get_error_class() == MPI.ERR_REQUEST


def test_requests_that_are_dropped(comm):
    """An inactive one leaves nothing; an active one completes, by a copy of its handle, too."""
    for started in (False, True):
        one = Sum(comm, ("recv",))
        copy = weakref.ref(one.request._work.copy)
        if started:
            one.fill(0)
            if comm.rank > 0:
                MPI.Comm.recv(comm, source=0)
            one.request.Start()
            handle = MPI.Request(one.request)
        del one.request
        gc.collect()
        if started:
            if comm.rank == 0:
                for rank in range(1, comm.size):
                    MPI.Comm.send(comm, "the first has dropped its own", rank)
            handle.Wait()
            one.check()
        gc.collect()
        assert copy() is None
    again = Sum(comm, ("recv",))
    again.fill(1)
    again.request.Start()
    again.request.Wait()
    again.check()


def test_errors_at_start(comm, monkeypatch):
    """The request is then inactive, and the host's array as it was; or it has been started already."""
    one = Sum(comm, ("recv",))
    one.fill(0)
    with monkeypatch.context() as patch:

        def refuse(works):
            raise RuntimeError("no launch")

        patch.setattr(one.request._work.work, "starter", refuse, raising=False)
        for start in (one.request.Start, lambda: pyncclx.Prequest.Startall([one.request])):
            with pytest.raises(RuntimeError, match="no launch"):
                start()
            assert not one.request.is_active
            np.testing.assert_array_equal(read(one.y), -1.0)
    one.request.Start()
    with pytest.raises(MPI.Exception, match="Allreduce_init: the request has been started") as raised:
        one.request.Start()
    assert raised.value.Get_error_class() == MPI.ERR_REQUEST
    one.request.Wait()
    one.check()


def test_starts_after_the_communicator(comm):
    with comm.Dup() as short:
        short.staging = True
        one = Sum(short, ("send",))
    with pytest.raises(MPI.Exception, match="communicator has been freed") as raised:
        one.request.Start()
    assert raised.value.Get_error_class() == MPI.ERR_REQUEST
    one.request.Free()


def test_ranks_start_in_different_orders(comm):
    """The host array of each request is on another rank."""
    sums = [Sum(comm, (("recv",) if number % comm.size == comm.rank else ())) for number in range(6)]
    for one in sums[comm.rank :] + sums[: comm.rank]:
        one.fill(0)
        one.request.Start()
    for one in reversed(sums):
        one.request.Wait()
        one.check()


@host_only
def test_read_only(comm):
    with pytest.raises(BufferError, match="read-only"):
        comm.Allreduce_init(put(np.zeros(4)), [b"12345678" * 4, MPI.DOUBLE])


def test_the_work_is_a_kernels(comm):
    """Not MPI's, on whichever rank the host array is."""
    work = Sum(comm, ("send",) if comm.rank == 0 else ()).request._work
    assert isinstance(work.work if comm.rank == 0 else work, Prepared) or comm.node_topology.node_count > 1
