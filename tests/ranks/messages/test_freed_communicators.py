"""Receives that are under way, or messages that are matched, when their communicator is freed: MPI completes them."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from support.arrays import get, host_only, put, synchronize
from support.everywhere import assert_everywhere
from support.labelled_messages import EAGER, LARGE, assert_all_read, data_of, map_peers
from support.reversed_ranks import ring

ROOM, TAG = 1000, 5  # of the room: bytes for an envelope


def matched(comm, source):
    message = comm.Mprobe(source, TAG)
    return message.Recv


def matched_later(comm, source):
    message = None
    while message is None:
        message = comm.Improbe(source, TAG)
    return lambda spec: message.Irecv(spec).Wait()


def begun(comm, source):
    """Receives begin before the communicator is freed, so they know their arrays."""
    return lambda request: request.Wait()


def waited_by_mpi(comm, source):
    return lambda request: MPI.Request.Waitall([request])


def received(comm, receive, source, spec, begin):
    """Free the communicator, then end a receive into an array."""
    request = begin(comm, spec, source) if begin is not None else spec
    end = receive(comm, source)
    comm.Free()
    end(request)


def started(request):
    request.Start()
    return request


BEGIN = {
    "Irecv": lambda comm, spec, source: comm.Irecv(spec, source, TAG),
    "Recv_init": lambda comm, spec, source: started(comm.Recv_init(spec, source, TAG)),
}
RECEIVES = {
    "Mprobe": (matched, None),
    "Improbe": (matched_later, None),
    "Irecv": (begun, BEGIN["Irecv"]),
    "Irecv, Waitall": (waited_by_mpi, BEGIN["Irecv"]),
    "Recv_init": (begun, BEGIN["Recv_init"]),
}


@pytest.mark.parametrize("count", [9, EAGER, LARGE])
@pytest.mark.parametrize(("sender", "receiver"), [("host", "device"), ("device", "host"), ("device", "device")])
@pytest.mark.parametrize("is_used", [True, False])
@pytest.mark.parametrize("name", RECEIVES)
def test_the_data_arrives(comm, name, is_used, sender, receiver, count):
    own, (right, left) = comm.Dup(), ring(comm)
    if is_used:
        map_peers(own)
    sent, found = data_of(comm.rank, TAG, 0, count), bytearray(8 * count + ROOM)
    sending = own.Isend([bytearray(sent.tobytes()), MPI.BYTE] if sender == "host" else put(sent), right, TAG)
    array = put(np.full(count, -1, "i8"))
    receive, begin = RECEIVES[name]
    received(own, receive, left, [found, MPI.BYTE] if receiver == "host" else array, begin)
    sending.Wait()
    values = np.frombuffer(found, "i8", count) if receiver == "host" else get(array)
    assert_everywhere(comm, np.array_equal(values, data_of(left, TAG, 0, count)), values)
    assert_all_read(comm)


def test_objects(comm):
    """Also objects with device arrays in them."""
    own, (right, left) = comm.Dup(), ring(comm)
    sending = own.isend([put(data_of(comm.rank, TAG, 0, EAGER)), "text"], right, TAG)
    message = own.mprobe(left, TAG)
    own.Free()
    array, text = message.recv()
    sending.wait()
    assert_everywhere(comm, text == "text" and np.array_equal(get(array), data_of(left, TAG, 0, EAGER)))
    assert_all_read(comm)


def test_hooks_get_the_calls(comm):
    own, (right, left), seen = comm.Dup(), ring(comm), []
    sending = own.Isend(put(data_of(comm.rank, TAG, 0, EAGER)), right, TAG)
    message, array = own.Mprobe(left, TAG), put(np.zeros(EAGER, "i8"))
    own.Free()
    remove = pyncclx.on_event(lambda event: seen.append((event.operation, event.kind)))
    message.Recv(array)
    remove()
    sending.Wait()
    assert_everywhere(comm, seen == [("Recv", "start"), ("Recv", "end")], seen)
    assert_everywhere(comm, np.array_equal(get(array), data_of(left, TAG, 0, EAGER)))


@pytest.mark.one_node
def test_a_request_that_is_freed_last(comm):
    """Its sender does not wait for ever."""
    own, (right, left), found = comm.Dup(), ring(comm), bytearray(8 * LARGE + ROOM)
    map_peers(own)
    receiving = own.Irecv([found, MPI.BYTE], left, TAG)
    MPI.Comm.Barrier(comm)
    sending = own.Issend(put(data_of(comm.rank, TAG, 0, LARGE)), right, TAG)
    own.Free()
    receiving.Free()
    sending.Wait()
    assert_all_read(comm)


@pytest.mark.ranks(2, 2)
@pytest.mark.parametrize("is_busy", [False, pytest.param(True, marks=host_only)], ids=["open", "on a busy stream"])
def test_a_message_out_of_a_window(is_busy):
    """The receive reads the window while its communicator is being freed, or afterwards."""
    comm, found = pyncclx.Communicator().Dup(), put(np.full(LARGE, -1))
    map_peers(comm)
    array, stream, request = comm.Alloc(LARGE, "i8"), None, None
    if comm.rank == 0:
        array[...] = put(data_of(0, TAG, 0, LARGE))
        request = comm.Isend(array, 1, TAG)
    elif is_busy:
        stream = comm.stream = backends.select().new_stream()
        stream.enqueue(lambda: time.sleep(0.5))
        comm.Recv(found, 0, TAG)
    else:
        request = comm.Irecv(found, 0, TAG)
    del array
    is_receiver = comm.rank == 1
    comm.Free()
    if request is not None:
        request.Wait()
    backends.select().synchronize(stream)
    synchronize()
    assert_everywhere(MPI.COMM_WORLD, not is_receiver or (get(found) == data_of(0, TAG, 0, LARGE)).all())
