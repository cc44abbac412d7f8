"""Probes return the length of a device array, and any receive gets a probed message, in MPI's order."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.messages.envelope import ENVELOPE_NBYTES, inline_nbytes
from pyncclx.messages.matched import Message
from support.arrays import Output, get, put
from support.everywhere import assert_everywhere
from support.reference import comparing, labels
from support.reversed_ranks import reversed_ranks, ring

# Empty; with its envelope or copied on the way; offered.
LENGTHS = (("Probe", 0), ("Probe", 700), ("Iprobe", 9000), ("Mprobe", 3), ("Mprobe", 9000), ("Improbe", 700))
LENGTHS += (("probe", 3), ("iprobe", 700), ("mprobe", 700), ("mprobe", 9000), ("improbe", 3))
comm = pytest.fixture(reversed_ranks, scope="module")
ring = pytest.fixture(ring)


def probe(comm, kind, source, tag, status):
    """What is to be received from: a matched message, or None for the communicator."""
    if kind.lower() in ("probe", "mprobe"):
        found = getattr(comm, kind)(source, tag, status)
    else:
        while not (found := getattr(comm, kind)(source, tag, status)):
            pass
    return found if isinstance(found, MPI.Message) else None


@pytest.mark.parametrize(("kind", "count"), LENGTHS)
def test_length(comm, ring, kind, count):
    """An array of the probed length; three times: the first messages between two ranks go through MPI."""
    above, below = ring
    with comparing() as compare:
        for call in range(3):
            sending = comm.Isend(put(labels(comm.rank, count, call)), above, 5)
            status, again = MPI.Status(), MPI.Status()
            message = probe(comm, kind, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (below, 5, count)
            assert status.Get_elements(MPI.BYTE) == 8 * count
            y = Output(status.Get_count(MPI.INT64_T), "i8")
            if message is None:
                comm.Recv(y.array, status.source, status.tag, again)
            else:
                message.Recv(y.array, again)
            assert (again.source, again.tag, again.Get_count(MPI.INT64_T)) == (below, 5, count)
            compare(y, labels(below, count, call), f"{kind}, {call}")
            sending.Wait()


def copy_by_fortran_handle(message):
    return Message.f2py(message.py2f())


RECEIVES = {
    "Irecv": lambda comm, y, source, dest: comm.Irecv(y.array, source).Wait(),
    "Sendrecv": lambda comm, y, source, dest: comm.Sendrecv(put(np.zeros(2)), dest, 9, y.array, source, 5),
    "Isendrecv": lambda comm, y, source, dest: comm.Isendrecv(put(np.zeros(2)), dest, 9, y.array, source, 5).Wait(),
    "Mprobe": lambda comm, y, source, dest: comm.Mprobe(source).Recv(y.array),
    "Improbe": lambda comm, y, source, dest: comm.Improbe(source).Irecv(y.array).Wait(),
    "copy": lambda comm, y, source, dest: Message(comm.Mprobe(source)).Recv(y.array),
    "by its handle": lambda comm, y, source, dest: copy_by_fortran_handle(comm.Mprobe(source)).Irecv(y.array).Wait(),
}


@pytest.mark.parametrize("name", list(RECEIVES))
def test_received_by(comm, ring, name):
    """Found twice by probes, and then received in another way."""
    above, below = ring
    sending = comm.Isend(put(labels(comm.rank, 700)), above, 5)
    comm.Probe(below, 5)
    assert comm.Iprobe(MPI.ANY_SOURCE, 5)
    assert comm.probe(below)
    y = Output(700, "i8")
    RECEIVES[name](comm, y, below, above)
    with comparing() as compare:
        compare(y, labels(below, 700), name)
    sending.Wait()
    if name in ("Sendrecv", "Isendrecv"):
        comm.Recv(put(np.zeros(2)), below, 9)


def test_in_place(comm, ring):
    """`Sendrecv_replace` after a probe sends what was in the array."""
    above, below = ring
    sending = comm.Isend(put(labels(comm.rank, 40)), above, 5)
    comm.Probe(below, 5)
    x, y = put(labels(comm.rank, 40, 1)), Output(40, "i8")
    comm.Sendrecv_replace(x, above, 6, below, 5)
    comm.Recv(y.array, below, 6)
    with comparing() as compare:
        compare(x, labels(below, 40), "found")
        compare(y, labels(below, 40, 1), "sent")
    sending.Wait()


def test_order(comm, ring):
    """Of two messages the second is found by its tag; a receive of any tag gets the first."""
    above, below = ring
    requests = [comm.Isend(put(labels(comm.rank, 30, tag)), above, tag) for tag in (1, 2)]
    comm.Probe(below, 1)
    comm.Recv(put(np.zeros(30, "i8")), below, 1)
    requests.append(comm.Isend(put(labels(comm.rank, 30, 3)), above, 3))
    comm.Probe(below, 3)
    tags, status = [], MPI.Status()
    for _ in range(2):
        y = put(np.zeros(30, "i8"))
        comm.Recv(y, below, MPI.ANY_TAG, status)
        tags.append(status.tag)
        assert (get(y) == labels(below, 30, status.tag)).all()
    assert tags == [2, 3]
    pyncclx.Request.Waitall(requests)


@pytest.mark.parametrize("kind", ["Probe", "Iprobe", "Mprobe", "Improbe"])
@pytest.mark.parametrize("count", [3, 20_000])
def test_behind_others(comm, ring, kind, count):
    """The third of three messages is found by its tag, and as long as it is; the others still come in their order."""
    above, below = ring
    with comparing() as compare:
        for call in range(3):
            sent = put(labels(comm.rank, count, call)), put(labels(comm.rank, 2 * count, call + 1))
            requests = [comm.Isend(sent[0], above, 1), comm.isend({"of": comm.rank}, above, 2)]
            requests.append(comm.Isend(sent[1], above, 3))
            status = MPI.Status()
            message = probe(comm, kind, below, 3, status)
            assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (below, 3, 2 * count)
            assert probe(comm, "Probe", below, 1, status) is None
            assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (below, 1, count)
            first, last = Output(count, "i8"), Output(2 * count, "i8")
            comm.Recv(first.array, below, MPI.ANY_TAG, status)
            assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (below, 1, count)
            assert comm.recv(source=below, status=status) == {"of": below}
            assert (status.source, status.tag) == (below, 2)
            if message is None:
                comm.Irecv(last.array, MPI.ANY_SOURCE, MPI.ANY_TAG).Wait(status)
            else:
                message.Recv(last.array, status)
            assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (below, 3, 2 * count)
            compare(first, labels(below, count, call), f"first, {kind}, {call}")
            compare(last, labels(below, 2 * count, call + 1), f"last, {kind}, {call}")
            for request in requests:
                request.wait()


def test_called_on_the_class(ring, comm):
    """As mpi4py's pkl5 does, with communicators of its own, too."""
    above, below = ring
    for any_comm in (comm, MPI.Intracomm(comm)):
        sending = any_comm.isend("text", above)
        assert pyncclx.Comm.Probe(any_comm, below)
        assert pyncclx.Comm.iprobe(any_comm, below)
        message = pyncclx.Comm.Improbe(any_comm, below)
        data = bytearray(100)
        message.Recv([data, MPI.BYTE])
        assert MPI.pickle.loads(data) == "text"
        sending.wait()


def test_host_arrays_receive_what_was_found(comm, ring):
    above, below = ring
    sending = comm.Isend(put(labels(comm.rank, 30)), above)
    status, memory = MPI.Status(), bytearray(inline_nbytes(240))
    comm.Probe(below, status=status)
    MPI.Comm.Barrier(comm)
    comm.Recv([memory, MPI.BYTE], below, status=status)
    sending.Wait()
    found = np.frombuffer(memory[: status.Get_count(MPI.BYTE)], "i8")
    assert_everywhere(comm, status.source == below and (found == labels(below, 30)).all())


@pytest.mark.parametrize("nbytes", [ENVELOPE_NBYTES, ENVELOPE_NBYTES + 1])
def test_messages_that_are_no_envelopes(comm, ring, nbytes):
    """Bytes of such a length, and objects, in the receives that there are for them."""
    above, below = ring
    content = bytes(np.arange(nbytes, dtype="u1") + comm.rank)
    expected = bytes(np.arange(nbytes, dtype="u1") + below)
    data, status = bytearray(nbytes), MPI.Status()
    for receive in (
        lambda: comm.Recv([data, MPI.BYTE], below, status=status),
        lambda: comm.Irecv([data, MPI.BYTE], below).Wait(status),
        lambda: comm.Mprobe(below).Recv([data, MPI.BYTE], status),
    ):
        data[:] = bytes(nbytes)
        sending = MPI.Comm.Isend(comm, [content, MPI.BYTE], above, 4)
        comm.Probe(below, 4, status)
        assert (status.source, status.Get_count(MPI.BYTE)) == (below, nbytes)
        receive()
        sending.Wait()
        assert (bytes(data), status.source, status.tag) == (expected, below, 4)
    text = "x" * (nbytes - len(MPI.pickle.dumps("x" * 260)) + 260)
    assert len(MPI.pickle.dumps(text)) == nbytes
    beside = comm.irecv(source=below, tag=9)
    for receive in (
        lambda: comm.recv(source=below, status=status),
        lambda: comm.irecv(source=below).wait(),
        lambda: comm.mprobe(below).recv(),
        lambda: comm.improbe(below).irecv().wait(),
        lambda: comm.sendrecv(None, above, 9, source=below, recvtag=4),
    ):
        sending = comm.isend(text, above, 4)
        comm.Probe(below, 4)
        assert comm.iprobe(below, 4)
        assert receive() == text
        sending.wait()
    beside.wait()


def until(is_over):
    """Ask until it is over."""
    while not is_over():
        pass


COMPLETE = {
    "wait": lambda request, status: request.wait(status),
    "test": lambda request, status: until(lambda: request.test(status)[0]),
    "Wait": lambda request, status: request.Wait(status),
    "Test": lambda request, status: until(lambda: request.Test(status)),
    "Get_status": lambda request, status: until(lambda: request.Get_status(status)),
    "waitall": lambda request, status: pyncclx.Request.waitall([request], [status]),
    "Testsome": lambda request, status: until(lambda: pyncclx.Request.Testsome([request], [status])),
    "waitany": lambda request, status: pyncclx.Request.waitany([request], status),
    "the drop-in's Waitall": lambda request, status: completed_by_drop_in("Waitall", request, [status]),
    "the drop-in's waitany": lambda request, status: completed_by_drop_in("waitany", request, status),
}


def completed_by_drop_in(name, request, status):
    from pyncclx.staging.requests import Request  # noqa: PLC0415  only here

    getattr(Request, name)([request], status)


@pytest.mark.parametrize("name", COMPLETE)
def test_status_of_an_object_that_came_before_what_was_probed(comm, ring, name):
    above, below = ring
    data, status = bytearray(8), MPI.Status()
    sending = [comm.isend("text", above, 4), comm.Isend(put(labels(comm.rank, 1)), above, 5)]
    comm.Probe(below, 5)
    request = comm.irecv(source=MPI.ANY_SOURCE, tag=4)
    COMPLETE[name](request, status)
    assert_everywhere(comm, (status.source, status.tag) == (below, 4))
    request.wait()
    comm.Recv(put(np.frombuffer(data, "i8")), below, 5)
    pyncclx.Request.waitall(sending)
