"""Collectives in which one rank has a host array where the others have device arrays, as CUDA-aware MPIs take them."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from support.arrays import get, host_only, put
from support.columns import INT64
from support.forms import FORMS, NAMES, arguments, call, total
from support.staging_comm import by_kernels

pytestmark = [host_only, pytest.mark.ranks(2)]  # a bytearray is in host memory on the host device, too


comm = pytest.fixture(by_kernels)


def labels(comm, count):
    return np.arange(count) % 97 + 100.0 * comm.rank


def spec(array, length):
    """In host memory a bytearray, which has no element type."""
    counts = [length[1]] if isinstance(length, tuple) else []
    return [array, *counts, MPI.DOUBLE]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_one_buffer_of_one_rank_is_on_the_host(comm, name, form):
    """Of operations with a root, the one that matters at root only."""
    sent, received, after, keywords = arguments(comm, name)
    at_root = {"Scatter": ["send"], "Scatterv": ["send"], "Gather": ["recv"], "Gatherv": ["recv"], "Reduce": ["recv"]}
    for odd in at_root.get(name, ["send", "recv"]):
        me = comm.rank == comm.size - 1  # the root
        x, y = labels(comm, total(sent)), np.full(total(received), -1.0)
        here = bytearray(x.tobytes()) if me and odd == "send" else put(x)
        there = bytearray(y.tobytes()) if me and odd == "recv" else put(y)
        getattr(MPI.Intracomm, name)(comm, spec(x, sent), spec(y, received), *after, **keywords)
        call(comm, form, name, spec(here, sent), spec(there, received), *after, **keywords)
        if not (name == "Exscan" and comm.rank == 0):
            result = np.frombuffer(there) if isinstance(there, bytearray) else get(there)
            np.testing.assert_array_equal(result, y, err_msg=odd)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["Gather", "Gatherv", "Scatter", "Scatterv", "Reduce"])
def test_all_ranks_pass_what_matters_at_root(comm, name, form):
    """In host memory. Elsewhere than at root it is not used."""
    sent, received, after, keywords = arguments(comm, name)
    x, y = labels(comm, total(sent)), np.full(total(received), -1.0)
    scatters = name.startswith("Scatter")
    here = bytearray(x.tobytes()) if scatters else put(x)
    there = put(y) if scatters else bytearray(y.tobytes())
    getattr(MPI.Intracomm, name)(comm, spec(x, sent), spec(y, received), *after, **keywords)
    call(comm, form, name, spec(here, sent), spec(there, received), *after, **keywords)
    np.testing.assert_array_equal(get(there) if scatters else np.frombuffer(there), y)


def test_derived_datatypes(comm):
    """What lies between the elements of the host's array stays."""
    column = INT64.Create_vector(3, 1, 2 * comm.size).Create_resized(0, 8).Commit()
    x, y = np.arange(3) + 10 * comm.rank, np.full((3, 2 * comm.size), -1)
    there = bytearray(y.tobytes()) if comm.rank == 1 else put(y)
    comm.Allgather(put(x), [there, 1, column])
    result = np.frombuffer(there, "i8").reshape(y.shape) if comm.rank == 1 else get(there)
    y[:, : comm.size] = np.stack([np.arange(3) + 10 * rank for rank in range(comm.size)], axis=1)
    np.testing.assert_array_equal(result, y)
    column.Free()


@pytest.mark.parametrize("form", ["blocking", "nonblocking"])
def test_what_lies_beside_the_blocks_is_not_written(comm, form):
    """MPI lets a program store to the rest of an array while an operation writes to a part of it."""
    x, there = labels(comm, 5), bytearray(np.full(6 * comm.size + 3, -1.0).tobytes())
    begins = [6 * rank + 2 for rank in range(comm.size)]
    view, expected = np.frombuffer(there), np.full(6 * comm.size + 3, -1.0)
    arguments = put(x), [there, [5] * comm.size, begins, MPI.DOUBLE]
    if form == "blocking":
        comm.Allgatherv(*arguments)
    else:
        request = comm.Iallgatherv(*arguments)
        for array in (view, expected):
            array[[0, 1, 7, -1]] = 90, 91, 97, 99  # before, between and behind the blocks
        request.Wait()
    for rank, begin in enumerate(begins):
        expected[begin : begin + 5] = np.arange(5) + 100.0 * rank
    np.testing.assert_array_equal(view, expected)


def test_a_request_waits_for_its_own_operation_alone(comm):
    """The last rank begins the second operation only when it has heard that the first is over elsewhere."""
    x, total, there = put(labels(comm, 5)), put(np.zeros(5)), bytearray(40 * comm.size)
    last = comm.size - 1
    comm.Iallreduce(x, total).Wait()  # the first call of a kind is collective on the host
    comm.Iallgather(x, [there, 5, MPI.DOUBLE]).Wait()
    first = comm.Iallgather(x, [there, 5, MPI.DOUBLE])
    if comm.rank == last:
        first.Wait()
        for rank in range(last):
            MPI.Comm.recv(comm, source=rank)
    second = comm.Iallreduce(x, total)
    if comm.rank != last:
        first.Wait()
        MPI.Comm.send(comm, "over", last)
    second.Wait()
    gathered = np.concatenate([np.arange(5) + 100.0 * rank for rank in range(comm.size)])
    np.testing.assert_array_equal(np.frombuffer(there), gathered)
    np.testing.assert_array_equal(get(total), gathered.reshape(-1, 5).sum(0))


def test_a_call_waits_for_no_persistent_collective(comm):
    """The others start it only when they have heard that the call is over at root."""
    x, total, there = put(labels(comm, 5)), put(np.zeros(5)), bytearray(40 * comm.size)
    persistent, here = comm.Allreduce_init(x, total), there if comm.rank == 0 else None
    comm.Gather(x, [here, 5, MPI.DOUBLE] if comm.rank == 0 else None, 0)
    if comm.rank == 0:
        persistent.Start()
    comm.Gather(x, [here, 5, MPI.DOUBLE] if comm.rank == 0 else None, 0)
    MPI.Comm.bcast(comm, "over", 0)
    if comm.rank != 0:
        persistent.Start()
    persistent.Wait()
    gathered = np.concatenate([np.arange(5) + 100.0 * rank for rank in range(comm.size)])
    np.testing.assert_array_equal(get(total), gathered.reshape(-1, 5).sum(0))
    if comm.rank == 0:
        np.testing.assert_array_equal(np.frombuffer(there), gathered)
    persistent.Free()


def test_refused_without_staging(comm):
    comm.staging = False
    with pytest.raises(pyncclx.NotSupported, match=r"Allreduce: sendbuf is in host memory.*copy one of them"):
        comm.Allreduce([bytearray(32), MPI.DOUBLE], put(np.zeros(4)))


@pytest.mark.parametrize("form", FORMS)
def test_refused_in_a_graph(comm, monkeypatch, form):
    """Its replays would not copy the host array again."""
    x, there = put(labels(comm, 5)), bytearray(40)
    request = comm.Allreduce_init(x, [there, MPI.DOUBLE]) if form == "persistent" else None

    def perform():
        if request is None:
            call(comm, form, "Allreduce", x, [there, MPI.DOUBLE])
        else:
            request.Start()
            request.Wait()

    with monkeypatch.context() as patch:
        patch.setattr(backends.select(), "is_capturing", lambda stream: True)
        with pytest.raises(pyncclx.NotSupported, match=r"recvbuf is in host memory.*part of a graph"):
            perform()
    perform()
    expected = sum(np.arange(5) + 100.0 * rank for rank in range(comm.size))
    np.testing.assert_array_equal(np.frombuffer(there), expected)


def test_bad_arguments_of_one_rank(comm):
    """As mpi4py judges them, before anything is launched."""
    with pytest.raises(BufferError, match="read-only"):
        comm.Allreduce(put(np.zeros(4)), [b"12345678" * 4, MPI.DOUBLE])
    with pytest.raises(ValueError, match="mismatch in send count"):
        comm.Allreduce([bytearray(24), MPI.DOUBLE], put(np.zeros(4)))
