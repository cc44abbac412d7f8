"""Host receives whose requests the program frees or drops before a device array's message comes: it arrives."""

import gc
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.messages.envelope import ENVELOPE_NBYTES, SHORT_NBYTES
from pyncclx.messages.host.fetch import HostFetch
from support.arrays import put
from support.everywhere import assert_everywhere
from support.labelled_messages import EAGER, LARGE, assert_all_read, data_of, map_peers_if
from support.reversed_ranks import ring

ROOM, TAG, SECONDS = 1000, 5, 10.0  # ROOM: bytes for an envelope
pytestmark = pytest.mark.one_node  # between nodes messages have no envelopes


BEGIN = {
    "Irecv": lambda comm, spec, source: comm.Irecv(spec, source, TAG),
    "Recv_init": lambda comm, spec, source: started(comm.Recv_init(spec, source, TAG)),
}


def started(request):
    request.Start()
    return request


def free(requests):
    """Free the request in a list."""
    request = requests.pop()
    request.Free()
    assert request == MPI.REQUEST_NULL
    assert request.Test()


def drop(requests):
    """Keep no reference."""
    requests.pop()
    gc.collect()


def is_released(comm, memory):
    """Whether nothing refers to a bytearray's memory any more, some time later."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            memory.clear()
        except BufferError:
            comm.endpoint.context.receives.pending_sends.sweep()
        else:
            return True
    return False


@pytest.mark.parametrize("let_go", [free, drop])
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("count", [9, EAGER, LARGE])
@pytest.mark.parametrize("begin", BEGIN)
def test_the_data_arrives(comm, monkeypatch, begin, count, mapped, let_go):
    map_peers_if(comm, mapped, monkeypatch)
    (right, left), found = ring(comm), bytearray(8 * count + ROOM)
    let_go([BEGIN[begin](comm, [found, MPI.BYTE], left)])  # a request refers to the memory, as mpi4py's would
    MPI.Comm.Barrier(comm)
    sending = comm.Issend(put(data_of(comm.rank, TAG, 0, count)), right, TAG)
    end, expected = time.monotonic() + SECONDS, data_of(left, TAG, 0, count)
    while not np.array_equal(np.frombuffer(bytes(found), "i8", count), expected) and time.monotonic() < end:
        comm.Iprobe(left, TAG + 1)
    is_right = np.array_equal(np.frombuffer(bytes(found), "i8", count), expected)
    if is_right:
        sending.Wait()
    assert_everywhere(comm, is_right)
    assert_all_read(comm)
    assert_everywhere(comm, is_released(comm, found))


COPY = {
    "by object": MPI.Request,
    "by handle": lambda request: MPI.Request.fromhandle(request.handle),
}


@pytest.mark.parametrize(("copy", "of_device"), [("by object", True), ("by object", False), ("by handle", False)])
def test_a_copy_waits_for_a_dropped_request(comm, monkeypatch, copy, of_device):
    """The library does not complete the request in MPI: later requests with the same handle get their own messages."""
    map_peers_if(comm, True, monkeypatch)
    (right, left), count, status = ring(comm), EAGER, MPI.Status()
    for call in range(5):
        found = bytearray(8 * count + ROOM)
        requests = [comm.Irecv([found, MPI.BYTE], left, TAG)]
        copied = COPY[copy](requests[0])
        drop(requests)
        data = data_of(comm.rank, TAG, call, count)
        sending = comm.Isend(put(data) if of_device else [bytes(data), MPI.BYTE], right, TAG)
        copied.Wait(status)
        sending.Wait()
        others = [bytearray(8) for _ in range(3)]
        waits = [comm.Irecv([other, MPI.BYTE], left, TAG + 1) for other in others]
        for index in range(3):
            comm.Send([bytes([call, index] * 4), MPI.BYTE], right, TAG + 1)
        MPI.Request.Waitall(waits)
        expected, end = data_of(left, TAG, call, count), time.monotonic() + SECONDS
        while not np.array_equal(np.frombuffer(bytes(found), "i8", count), expected) and time.monotonic() < end:
            comm.Iprobe(left, TAG + 2)
        is_right = np.array_equal(np.frombuffer(bytes(found), "i8", count), expected)
        is_right = is_right and [bytes(other) for other in others] == [bytes([call, index] * 4) for index in range(3)]
        assert_everywhere(comm, is_right and (status.source, status.tag) == (left, TAG), f"call {call}")
    assert_all_read(comm)


@pytest.mark.parametrize("let_go", [free, drop])
def test_messages_of_host_arrays(comm, let_go):
    """Short, or as long as an envelope: what is there is what MPI has received."""
    (right, left), expected = ring(comm), {}
    for nbytes in (0, 1, ENVELOPE_NBYTES, SHORT_NBYTES, 1000):
        found = bytearray(1000)
        let_go([comm.Irecv([found, MPI.BYTE], left, TAG)])
        comm.Send([bytes([comm.rank + 1]) * nbytes, MPI.BYTE], right, TAG)
        expected[nbytes] = found
    comm.Barrier()
    for nbytes, found in expected.items():
        end, data = time.monotonic() + SECONDS, bytes([left + 1]) * nbytes + bytes(1000 - nbytes)
        while found != data and time.monotonic() < end:
            comm.Iprobe(left, TAG + 1)
        is_right = found == data
        assert_everywhere(comm, is_right and is_released(comm, found), f"{nbytes} bytes")


def test_an_abandoned_message_is_fetched_once(comm, monkeypatch):
    """Though a thread looks for envelopes meanwhile: a second fetch would signal the sender again."""
    map_peers_if(comm, True, monkeypatch)
    (right, left), found, made = ring(comm), bytearray(8 * LARGE + ROOM), []
    request = comm.Irecv([found, MPI.BYTE], left, TAG)
    sending = comm.Isend(put(data_of(comm.rank, TAG, 0, LARGE)), right, TAG)
    while not request.landing.has_envelope():
        comm.Iprobe(left, TAG + 1)
    begin, abandon = HostFetch.__init__, HostFetch.abandon

    def noted(fetch, *arguments):
        made.append(fetch)
        begin(fetch, *arguments)

    def while_a_thread_looks(fetch):
        looks = threading.Thread(target=request.landing.go_on)
        looks.start()
        looks.join(0.2)
        abandon(fetch)
        ended.append(looks)

    ended = []
    monkeypatch.setattr(HostFetch, "__init__", noted)
    monkeypatch.setattr(HostFetch, "abandon", while_a_thread_looks)
    request.landing.abandon()
    ended[0].join()
    request.Wait()
    sending.Wait()
    assert_everywhere(comm, not made and not any(found), f"{len(made)} more")
    assert_all_read(comm)
