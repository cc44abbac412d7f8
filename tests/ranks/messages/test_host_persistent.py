"""Persistent receives of host arrays that mpi4py's own calls complete, which leave a device array's envelope there."""

import gc
import threading

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import Request
from pyncclx.errors import NotSupported
from pyncclx.messages.host.memory import HostMemory
from support.arrays import put
from support.labelled_messages import EAGER, LARGE, assert_all_read, data_of, map_peers
from support.reversed_ranks import ring

ROOM = 1000  # bytes for an envelope

pytestmark = [
    pytest.mark.parametrize("comm", ["reversed" if MPI.COMM_WORLD.size > 1 else "dup"], indirect=True),
    pytest.mark.one_node,  # between nodes messages have no envelopes
]


def received(comm, memory, count, start):
    """Return a persistent receive whose message mpi4py's own calls have received into memory."""
    map_peers(comm)
    right, left = ring(comm)
    request = comm.Recv_init(memory, left, 3)
    start(request)
    sending = comm.Isend(put(data_of(comm.rank, 3, 0, count)), right, 3)
    MPI.Request.Waitall([request])
    sending.Wait()
    return request


STARTS = {
    "Start": lambda request: request.Start(),
    "Startall": lambda request: pyncclx.Prequest.Startall([request]),
    "mpi4py's Startall": lambda request: MPI.Prequest.Startall([request]),
}
NEXT = {
    "Start": lambda request: request.Start(),
    "Startall": lambda request: pyncclx.Prequest.Startall([request]),
    "Wait": lambda request: request.Wait(),
    "Test": lambda request: request.Test(),
    "Get_status": lambda request: request.Get_status(),
    "Waitall": lambda request: Request.Waitall([request]),
    "Testall": lambda request: Request.Testall([request]),
    "Waitany": lambda request: Request.Waitany([request]),
    "Testsome": lambda request: Request.Testsome([request]),
}


@pytest.mark.parametrize(
    ("start", "count"),
    [*((start, count) for start in STARTS for count in (63, EAGER)), ("Start", LARGE), ("Startall", LARGE)],
)
@pytest.mark.parametrize("name", NEXT)
def test_the_next_call_brings_the_data_and_says_so(comm, name, start, count):
    memory = bytearray(8 * count + ROOM)
    request = received(comm, [memory, MPI.BYTE], count, STARTS[start])
    with pytest.raises(NotSupported, match=r"MPI\.Request\.Waitall"):
        NEXT[name](request)
    np.testing.assert_array_equal(np.frombuffer(memory, "i8", count), data_of(ring(comm)[1], 3, 0, count))
    request.Start()
    sending = comm.Isend(put(data_of(comm.rank, 3, 1, count)), ring(comm)[0], 3)
    request.Wait()
    sending.Wait()
    np.testing.assert_array_equal(np.frombuffer(memory, "i8", count), data_of(ring(comm)[1], 3, 1, count))
    request.Free()


def test_free_brings_the_data_and_says_so(comm):
    memory = bytearray(ROOM)
    request = received(comm, [memory, MPI.BYTE], 63, STARTS["Start"])
    with pytest.raises(NotSupported, match=r"MPI\.Request\.Waitall"):
        request.Free()
    assert not request
    np.testing.assert_array_equal(np.frombuffer(memory, "i8", 63), data_of(ring(comm)[1], 3, 0, 63))


def test_memory_with_gaps(comm):
    column, memory = MPI.INT64_T.Create_vector(100, 1, 2).Commit(), bytearray(1600)
    request = received(comm, [memory, 1, column], 100, STARTS["Start"])
    with pytest.raises(NotSupported):
        request.Start()
    np.testing.assert_array_equal(np.frombuffer(memory, "i8")[::2], data_of(ring(comm)[1], 3, 0, 100))
    request.Free()
    column.Free()


def started(comm):
    """Return a persistent receive that is under way, its memory, and the request of its message."""
    right, left = ring(comm)
    memory = bytearray(ROOM)
    request = comm.Recv_init([memory, MPI.BYTE], left, 3)
    request.Start()
    return request, memory, comm.Isend(put(data_of(comm.rank, 3, 0, 63)), right, 3)


def test_memory_with_gaps_in_which_a_thread_looks_for_envelopes(comm, monkeypatch):
    """The library's thread does so at any time, for example while a call replaces an envelope by the data."""
    map_peers(comm)
    right, left = ring(comm)
    datatype = MPI.INT64_T.Create_vector(EAGER + ROOM // 8, 1, 2).Commit()
    memory, replace, threads = bytearray(16 * EAGER + 2 * ROOM), HostMemory.replace, []

    def replace_while_a_thread_looks(itself, nbytes, data):
        replace(itself, nbytes, data)
        threads.append(threading.Thread(target=request.landing.go_on))
        threads[-1].start()
        threads[-1].join(0.2)  # it may have to wait for this call

    monkeypatch.setattr(HostMemory, "replace", replace_while_a_thread_looks)
    request = comm.Recv_init([memory, 1, datatype], left, 3)
    for number in range(2):
        request.Start()
        comm.Send(put(data_of(comm.rank, 3, number, EAGER)), right, 3)
        request.Wait()
        threads[-1].join()
        found = np.frombuffer(memory, "i8")
        np.testing.assert_array_equal(found[: 2 * EAGER : 2], data_of(left, 3, number, EAGER))
        assert not found[1::2].any()
    request.Free()
    datatype.Free()


def test_start_of_a_receive_whose_message_has_come(comm):
    """It is active, so it cannot be started."""
    right, left = ring(comm)
    request, memory, sending = started(comm)
    sending.Wait()
    behind = comm.Isend([b"", MPI.BYTE], right, 4)
    MPI.Comm.Probe(comm, left, 4)
    with pytest.raises(MPI.Exception) as raised:
        request.Start()
    assert raised.value.Get_error_class() == MPI.ERR_REQUEST
    request.Wait()
    np.testing.assert_array_equal(np.frombuffer(memory, "i8", 63), data_of(left, 3, 0, 63))
    comm.Recv([bytearray(8), MPI.BYTE], left, 4)
    behind.Wait()
    request.Free()


def test_free_of_a_receive_whose_message_has_come_brings_the_data(comm):
    request, memory, sending = started(comm)
    while not request.Get_status():
        pass
    request.Free()
    sending.Wait()
    np.testing.assert_array_equal(np.frombuffer(memory, "i8", 63), data_of(ring(comm)[1], 3, 0, 63))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_dropped_receive_says_so(comm, monkeypatch):
    found = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: found.append(unraisable.exc_value))
    request = received(comm, [bytearray(ROOM), MPI.BYTE], 63, STARTS["Start"])
    del request
    gc.collect()
    assert [type(error) for error in found] == [NotSupported]
    assert_all_read(comm)


def test_host_arrays_messages_are_mpi4pys(comm):
    """Nothing is said of messages that mpi4py's own calls have received right."""
    right, left = ring(comm)
    memory = bytearray(ROOM)
    request = comm.Recv_init([memory, MPI.BYTE], left, 3)
    for start, step in zip(STARTS.values(), range(1, 4), strict=True):
        start(request)
        sending = MPI.Comm.Isend(comm, [bytes([step]) * 576, MPI.BYTE], right, 3)
        MPI.Request.Waitall([request, sending])
        assert memory[:576] == bytes([step]) * 576
        for name in NEXT.keys() - STARTS.keys():
            NEXT[name](request)
    request.Free()


def test_from_nobody_into_nothing(comm):
    """As mpi4py's own tests do. What the status says differs between MPI libraries, so theirs is the measure."""
    seen = []
    for request in (MPI.COMM_WORLD.Recv_init(None, MPI.PROC_NULL), comm.Recv_init(None, MPI.PROC_NULL)):
        for _ in range(2):
            status = MPI.Status()
            request.Start()
            request.Wait(status)
            seen.append((status.source, status.tag, status.Get_count(MPI.BYTE)))
        request.Free()
    assert seen[:2] == seen[2:]
