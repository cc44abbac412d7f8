"""Calls that look at several requests complete none and wait for none."""

import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import Output, put
from support.labelled_messages import LARGE, data_of, map_peers
from support.reference import comparing
from support.reversed_ranks import ring


def has_queries():
    try:
        return MPI.Request.Get_status_all([])
    except NotImplementedError:
        return False


needs_queries = pytest.mark.skipif(not has_queries(), reason="the MPI library lacks calls of MPI 4.1")


@pytest.fixture(params=["pyncclx", "pyncclx.MPI"])
def kind(request):
    if request.param == "pyncclx":
        return pyncclx.Request
    from pyncclx import MPI as OURS  # noqa: PLC0415  its import changes defaults

    return OURS.Request


@needs_queries
@pytest.mark.parametrize("count", [9, LARGE])
def test_statuses_of_many(comm, kind, count):
    map_peers(comm)
    right, left = ring(comm)
    received, host = [Output(count, "i8") for _ in range(2)], bytearray(3)
    requests = [comm.Irecv(received[tag].array, left, tag) for tag in range(2)]
    requests += [MPI.REQUEST_NULL, comm.Irecv(host, left, 2)]
    assert not kind.Get_status_all(requests)
    assert not kind.get_status_all(requests)
    assert kind.Get_status_any(requests) == (MPI.UNDEFINED, False)
    assert kind.Get_status_some(requests) == []
    comm.Barrier()
    sending = [comm.Isend(put(data_of(comm.rank, 1, 0, count)), right, 1)]
    status, statuses = MPI.Status(), []
    while kind.Get_status_any(requests, status) == (MPI.UNDEFINED, False):
        pass
    assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (left, 1, count)
    assert kind.Get_status_any(requests) == (1, True)
    assert kind.get_status_some(requests, statuses) == [1]
    assert [each.tag for each in statuses] == [1]
    comm.Barrier()
    sending.append(comm.Isend(put(data_of(comm.rank, 0, 0, count)), right, 0))
    sending.append(comm.Isend(bytes([comm.rank] * 3), right, 2))
    statuses = []
    while not kind.Get_status_all(requests, statuses):
        assert not statuses
    assert [each.tag for each in statuses] == [0, 1, MPI.ANY_TAG, 2]
    assert [bool(each) for each in requests] == [True, True, False, True]
    pyncclx.Request.Waitall(requests + sending)
    with comparing() as compare:
        for tag in range(2):
            compare(received[tag], data_of(left, tag, 0, count), f"tag {tag}")
    assert host == bytes([left] * 3)


@needs_queries
def test_inactive_requests(comm, kind):
    status = MPI.Status()
    status.source = 5
    requests = [MPI.REQUEST_NULL, comm.Recv_init(Output(3, "i8").array, 0), comm.Recv_init(bytearray(3), 0)]
    for some in [], requests:
        assert kind.Get_status_all(some)
        assert kind.Get_status_any(some, status) == (MPI.UNDEFINED, True)
        assert status.source == MPI.ANY_SOURCE
        assert kind.Get_status_some(some) is None
    for each in requests[1:]:
        each.Free()


@pytest.mark.parametrize("form", ["Irecv", "Recv_init"])
@pytest.mark.parametrize("count", [9, LARGE])
def test_get_status_in_lower_case(comm, count, form):
    right, left = ring(comm)
    recv, status = Output(count, "i8"), MPI.Status()
    request = getattr(comm, form)(recv.array, left, 1)
    if form == "Recv_init":
        assert request.get_status()
        request.Start()
    assert not request.get_status()
    comm.Barrier()
    sending = comm.Isend(put(data_of(comm.rank, 1, 0, count)), right, 1)
    while not request.get_status(status):
        pass
    assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (left, 1, count)
    assert request
    pyncclx.Request.Waitall([request, sending])
    with comparing() as compare:
        compare(recv, data_of(left, 1, 0, count), form)
    if form == "Recv_init":
        request.Free()


@pytest.mark.parametrize("form", ["Irecv", "Recv_init"])
def test_cancel_in_lower_case(comm, form):
    recv, status = Output(9, "i8"), MPI.Status()
    request = getattr(comm, form)(recv.array, ring(comm)[1], 1)
    if form == "Recv_init":
        request.Start()
    request.cancel()
    request.Wait(status)
    assert status.Is_cancelled()
    if form == "Recv_init":
        request.Free()


def test_a_completed_request_cannot_be_freed(comm):
    request = comm.Irecv(Output(3, "i8").array, MPI.PROC_NULL)
    request.Wait()
    for _ in range(2):
        with pytest.raises(MPI.Exception) as raised:
            request.Free()
        assert raised.value.Get_error_class() == MPI.ERR_REQUEST
    request.free()
    other = comm.Isend(put(data_of(comm.rank, 1, 0, 3)), comm.rank)
    other.Free()  # the message is under way
    comm.Recv(Output(3, "i8").array, comm.rank)
