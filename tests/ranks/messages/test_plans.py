"""Messages whose arguments came before: what a plan remembers must not outlive what it is about."""

import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.errors import SendTimeout
from pyncclx.failures import kernel_errors
from support.arrays import POISON, Output, host_only, put, xp
from support.labelled_messages import LARGE, data_of
from support.reference import comparing
from support.reversed_ranks import ring

TAG, COUNT, ROUNDS = 6, 11, 4
ONE_COMMUNICATOR = pytest.mark.parametrize("comm", ["reversed" if MPI.COMM_WORLD.size > 1 else "dup"], indirect=True)


def exchange(comm, array, output, tag=TAG):
    """Send to the next rank and receive from the one before."""
    right, left = ring(comm)
    request = comm.Isend(array, right, tag)
    comm.Recv(output, left, tag)
    request.Wait()


@ONE_COMMUNICATOR
def test_arrays_in_turn(comm):
    """Of one shape, and of one length in other types; each goes where it is to go, in each round."""
    _, left = ring(comm)
    kinds = ["i8", "i8", "u8", "f8"]
    arrays = [put(data_of(comm.rank, TAG, i, COUNT).astype(kind)) for i, kind in enumerate(kinds)]
    outputs = [Output(COUNT, kind) for kind in kinds]
    with comparing() as compare:
        for index in range(ROUNDS):
            for i, (array, output, kind) in enumerate(zip(arrays, outputs, kinds, strict=True)):
                exchange(comm, array, output.array)
                compare(output, data_of(left, TAG, i, COUNT).astype(kind), f"array {i}, round {index}")
                output.poison()


@ONE_COMMUNICATOR
def test_an_array_in_the_place_of_another(comm):
    """The memory is the same, the shape is not: a message is as long as the array of this call."""
    _, left = ring(comm)
    whole, output = put(data_of(comm.rank, TAG, 0, COUNT)), Output(COUNT, "i8")
    with comparing() as compare:
        for length in (COUNT, 3, COUNT, 1, 7):
            exchange(comm, whole[:length], output.array)
            expected = np.frombuffer(bytes([POISON]) * 8 * COUNT, "i8").copy()
            expected[:length] = data_of(left, TAG, 0, COUNT)[:length]
            compare(output, expected, f"{length} elements")
            output.poison()


@ONE_COMMUNICATOR
def test_plans_keep_no_array(comm):
    array, output = put(data_of(comm.rank, TAG, 0, COUNT)), Output(COUNT, "i8")
    for _ in range(2):
        exchange(comm, array, output.array)
    comm.synchronize()
    comm.Barrier()
    alive = weakref.ref(array)
    del array
    comm.endpoint.context.receives.pending_sends.sweep()
    assert alive() is None


@ONE_COMMUNICATOR
@pytest.mark.parametrize("send", ["Isend", "Issend", "Isendrecv"])
def test_a_list_whose_array_is_taken_out(comm, send):
    """As in mpi4py, a request keeps the array until it is over, whatever becomes of the list."""
    right, left = ring(comm)
    sent, received = [put(data_of(comm.rank, TAG, 0, LARGE)), LARGE], [put(np.zeros(LARGE, "i8")), LARGE]
    arrays = [weakref.ref(sent[0]), weakref.ref(received[0])]
    if send == "Isendrecv":
        requests = [comm.Isendrecv(sent, right, TAG, received, left, TAG)]
    else:
        requests = [comm.Irecv(received, left, TAG), getattr(comm, send)(sent, right, TAG)]
    sent[0] = received[0] = None
    kept = [each() for each in arrays]
    with comparing() as compare:
        compare(np.array([each is not None for each in kept]), np.ones(2, bool), "kept")
        pyncclx.Request.Waitall(requests)
        if kept[1] is not None:
            compare(kept[1], data_of(left, TAG, 0, LARGE), "received")


@ONE_COMMUNICATOR
def test_an_array_that_becomes_read_only(comm):
    if xp is not np:
        pytest.skip("only NumPy's arrays can")
    array, output = put(data_of(comm.rank, TAG, 0, COUNT)), Output(COUNT, "i8")
    exchange(comm, array, output.array)
    output.array.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        comm.Recv(output.array, comm.rank, TAG)
    output.array.flags.writeable = True
    exchange(comm, array, output.array)


@ONE_COMMUNICATOR
@pytest.mark.parametrize("tag", [np.int64(TAG), float(TAG), TAG + 0.5])
def test_numbers_of_other_types(comm, tag):
    """mpi4py takes them as integers; what is none it refuses."""
    right, left = ring(comm)
    array, output = put(data_of(comm.rank, TAG, 0, COUNT)), Output(COUNT, "i8")
    with comparing() as compare:
        for each in (TAG, tag, TAG):
            exchange(comm, array, output.array, each)
            compare(output, data_of(left, TAG, 0, COUNT), f"tag {each!r}")
            output.poison()
    for call in (lambda: comm.Isend(array, right, "6"), lambda: comm.Irecv(output.array, [left], TAG)):
        with pytest.raises(TypeError):
            call()


@ONE_COMMUNICATOR
def test_another_communicator_and_the_end_of_one(comm):
    """Plans are a communicator's own; a freed one raises, though it knows the call."""
    _, left = ring(comm)
    array, output = put(data_of(comm.rank, TAG, 0, COUNT)), Output(COUNT, "i8")
    other = comm.Dup()
    with comparing() as compare:
        for each in (comm, other, comm, other):
            exchange(each, array, output.array)
            compare(output, data_of(left, TAG, 0, COUNT), "a communicator")
            output.poison()
    other.Free()
    for call in (lambda: other.Send(array, 0, TAG), lambda: other.Irecv(output.array, 0, TAG)):
        with pytest.raises(MPI.Exception):
            call()
    exchange(comm, array, output.array)


@ONE_COMMUNICATOR
@pytest.mark.parametrize("operation", ["Send", "Ssend", "Isend", "Sendrecv"])
def test_a_rank_that_has_failed_since(comm, operation, monkeypatch):
    """A call that came before asks again whether the rank that it sends to lives."""
    right, left = ring(comm)
    array, output = put(data_of(comm.rank, TAG, 0, COUNT)), Output(COUNT, "i8")
    rest = (TAG, output.array, left, TAG) if operation == "Sendrecv" else (TAG,)

    def call():
        receive = None if operation == "Sendrecv" else comm.Irecv(output.array, left, TAG)
        request = getattr(comm, operation)(array, right, *rest)
        pyncclx.Request.Waitall([each for each in (receive, request) if each is not None])

    for _ in range(2):
        call()
    comm.Barrier()
    dead = SimpleNamespace(
        ranks=(right,), note=None, exception=lambda _: pyncclx.RankFailed((right,), (right,), "it ended")
    )
    with monkeypatch.context() as patch:
        patch.setattr(comm.endpoint, "comm_failure", dead)
        with pytest.raises(pyncclx.RankFailed):
            getattr(comm, operation)(array, right, *rest)
    comm.Barrier()
    call()
    with comparing() as compare:
        compare(output, data_of(left, TAG, 0, COUNT), "after it")


@ONE_COMMUNICATOR
@pytest.mark.parametrize("operation", ["Send", "Isend", "Recv", "Irecv", "Sendrecv"])
@pytest.mark.parametrize("what", ["a wait in MPI", "the thread", "a kernel"])
def test_a_failure_since(comm, operation, what, monkeypatch):
    """A call that came before raises what has failed meanwhile, and begins nothing."""
    right, left = ring(comm)
    array, output = put(data_of(comm.rank, TAG, 0, COUNT)), Output(COUNT, "i8")
    arguments = {
        "Recv": (output.array, left, TAG),
        "Irecv": (output.array, left, TAG),
        "Sendrecv": (array, right, TAG, output.array, left, TAG),
    }.get(operation, (array, right, TAG))
    endpoint = comm.endpoint
    exchange(comm, array, output.array)
    pyncclx.Request.Waitall([comm.Irecv(output.array, left, TAG), comm.Isend(array, right, TAG)])
    comm.Sendrecv(array, right, TAG, output.array, left, TAG)
    request = comm.Irecv(output.array, left, TAG)
    comm.Send(array, right, TAG)
    request.Wait()
    comm.Barrier()
    expected = {"a wait in MPI": SendTimeout, "the thread": OSError, "a kernel": pyncclx.Aborted}[what]

    def refuse():
        raise OSError("no device")

    with monkeypatch.context() as patch:
        if what == "a wait in MPI":
            patch.setattr(endpoint, "failure", SendTimeout("Send with tag 1", comm.rank, right))
        elif what == "the thread":
            patch.setattr(endpoint, "monitor", SimpleNamespace(failure=OSError()))
            patch.setattr(endpoint.context.receives, "check", refuse)
        else:
            endpoint.watch.array[kernel_errors.FAILURE] = kernel_errors.ABORTED
        try:
            with pytest.raises(expected):
                getattr(comm, operation)(*arguments)
        finally:
            endpoint.watch.array[kernel_errors.FAILURE] = 0
    comm.Barrier()
    output.poison()
    exchange(comm, array, output.array)
    with comparing() as compare:
        compare(output, data_of(left, TAG, 0, COUNT), "after it")


@ONE_COMMUNICATOR
@host_only
@pytest.mark.one_node  # between nodes a send waits on the host for its copy
@pytest.mark.parametrize("operation", ["Send", "Recv", "Sendrecv"])
def test_options_that_change(comm, operation, monkeypatch):
    """A call that came before goes by what the program has set since: whether it blocks, and on which stream."""
    right, left = ring(comm)
    array, output = put(data_of(comm.rank, TAG, 0, COUNT)), Output(COUNT, "i8")
    device, waited, used = comm.endpoint.device, [], []
    own = device.new_stream()
    synchronize, launch = device.synchronize, comm.endpoint.launch
    monkeypatch.setattr(device, "synchronize", lambda *stream: (waited.append(stream), synchronize(*stream)))
    monkeypatch.setattr(comm.endpoint, "launch", lambda *rest: (used.append(rest[-1]), launch(*rest)))

    def call():
        if operation == "Sendrecv":
            comm.Sendrecv(array, right, TAG, output.array, left, TAG)
        elif operation == "Send":
            comm.Send(array, right, TAG)
        else:
            comm.Recv(output.array, left, TAG)

    def other():
        if operation == "Send":
            comm.Recv(output.array, left, TAG)
        elif operation == "Recv":
            comm.Send(array, right, TAG)

    with comparing() as compare:
        for blocking, stream in (("stream", None), ("host", None), ("stream", own), ("host", own), ("stream", None)):
            comm.blocking, comm.stream = blocking, stream
            if operation == "Recv":
                other()
            waited.clear(), used.clear()
            call()
            waits = 2 if operation == "Sendrecv" else 1  # for each copy that MPI sends or has received
            expected = [[(stream,)] * waits if blocking == "host" else []], True
            compare_of = [waited[:]], all(each is stream for each in used)
            comm.blocking, comm.stream = "stream", None
            if operation == "Send":
                other()
            comm.synchronize()
            device.synchronize(own)
            compare(np.array([compare_of == expected]), np.array([True]), f"{blocking}, {stream}: {waited} {used}")
            compare(output, data_of(left, TAG, 0, COUNT), f"{blocking}, {stream}")
            output.poison()
