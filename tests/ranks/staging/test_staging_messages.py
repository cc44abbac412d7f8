"""Messages that MPI does on host copies: blocking, nonblocking, persistent, partitioned, and matched by a probe."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import NotSupported
from pyncclx.messages.envelope import ENVELOPE_NBYTES
from pyncclx.requests.host_receive import ENVELOPE_MAGIC
from pyncclx.staging.requests import Prequest, Request
from support.arrays import host_only
from support.fake_gpu import Array, allowed, check, installed, ramp

pytestmark = host_only
gpu = pytest.fixture(installed, autouse=True)
comm = pytest.fixture(allowed)


@pytest.mark.parametrize("send", ["Send", "Bsend", "Ssend", "Rsend"])
def test_messages(comm, send):
    """Around a ring, in all three forms."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    MPI.Attach_buffer(MPI.Alloc_mem(1 << 16))
    for form in ("I", "", "_init"):
        x, y = Array(ramp(comm, 9)), Array(np.full(11, -1.0))
        if form == "_init":
            receive = comm.Recv_init([y, MPI.DOUBLE], left)
            Prequest.Startall([receive])
            comm.Barrier()
            sending = getattr(comm, f"{send}_init")(x, right)
            sending.Start()
            indices = []
            while len(indices) < 2:
                indices += Request.Waitsome([receive, sending])
        else:
            receive = comm.Irecv(y, left)
            comm.Barrier()
            requests = [receive, getattr(comm, f"I{send.lower()}")(x, right)] if form else [receive]
            if not form:
                getattr(comm, send)(x, right)
            MPI.Request.Waitall(requests)  # mpi4py's own
        check(y, [*ramp(comm, 9, rank=left), -1, -1])
    MPI.Detach_buffer()


def test_sendrecv(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    y, z = Array(np.zeros(4)), Array(ramp(comm, 4))
    status = MPI.Status()
    comm.Sendrecv(Array(ramp(comm, 4)), right, recvbuf=y, source=left, status=status)
    comm.Sendrecv_replace(z, right, source=left)
    check(y, ramp(comm, 4, rank=left))
    check(z, ramp(comm, 4, rank=left))
    assert status.Get_count(MPI.DOUBLE) == 4


@pytest.mark.parametrize("nonblocking", [False, True])
def test_matched_probe(comm, nonblocking):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sending = comm.Isend(Array(ramp(comm, 6)), right)
    y, message = Array(np.zeros(6)), comm.Mprobe(left)
    if nonblocking:
        message.Irecv(y).Wait()
    else:
        message.Recv(y)
    sending.Wait()
    check(y, ramp(comm, 6, rank=left))


def test_partitions(comm):
    """Each partition is sent as it is when it is declared ready, and is there when it has arrived."""
    x, y = Array(np.zeros((4, 3))), Array(np.full((4, 3), -1.0))
    send, receive = comm.Psend_init(x, 4, comm.rank, 6), comm.Precv_init(y, 4, comm.rank, 6)
    for turn in range(2):
        Prequest.Startall([send, receive])
        for partition in (2, 0):
            x.host[partition] = 10 * turn + partition
            send.Pready(partition)
        x.host[1] = x.host[3] = 10 * turn + 7
        send.Pready_list([1, 3])
        while not all(receive.Parrived(partition) for partition in range(4)):
            pass
        check(y, x.host)
        Request.Waitall([send, receive])
        check(y, x.host)
    send.Free()
    receive.Free()


@pytest.mark.parametrize("end", ["dropped", "freed"])
@pytest.mark.parametrize("persistent", [False, True])
def test_no_call_waits(comm, persistent, end):
    """MPI may still write to the copy of a receive for which no call waits: later calls take it back."""
    y = Array(np.zeros(3000))
    request = comm.Recv_init(y, comm.rank, 5) if persistent else comm.Irecv(y, comm.rank, 5)
    if persistent:
        request.Start()
    if end == "freed":
        request.Free()
        assert not request
        with pytest.raises(MPI.Exception):
            request.Free()
    del request
    comm.Send(Array(ramp(comm, 3000)), comm.rank, 5)
    for _ in range(1000):
        comm.Irecv(Array(np.zeros(1)), MPI.PROC_NULL).Wait()
        if y.host[-1]:
            break
    check(y, ramp(comm, 3000))


@pytest.mark.parametrize("whole", [True, False], ids=["array", "every other element"])
def test_a_receive_that_is_over_in_a_capture(comm, gpu, whole):
    """MPI has written its data by then, which is no part of the graph: it is on the device when Wait returns."""
    column = MPI.DOUBLE.Create_vector(4, 1, 2).Commit()
    y = Array(np.full(8, -1.0))
    request = comm.Irecv(y if whole else [y, 1, column], comm.rank, 6)
    comm.Send(Array(ramp(comm, 8 if whole else 4)), comm.rank, 6)
    gpu.captured = "a stream"
    request.Wait()
    gpu.captured = None
    check(y, ramp(comm, 8) if whole else np.stack([ramp(comm, 4), np.full(4, -1.0)], 1).reshape(-1))
    column.Free()


def test_a_message_for_kernels(comm):
    """A persistent receive cannot get a device array's data that stays on the device, and raises."""
    y = Array(np.zeros(100))
    receive = comm.Recv_init(y, comm.rank, 3)
    receive.Start()
    MPI.Comm.Send(comm, [ENVELOPE_MAGIC + bytes(ENVELOPE_NBYTES - len(ENVELOPE_MAGIC)), MPI.BYTE], comm.rank, 3)
    with pytest.raises(NotSupported, match="Send_init"):
        receive.Wait()
    check(y, np.zeros(100))
    receive.Free()


def test_a_persistent_receive_that_is_started_twice(comm):
    """It is refused, before and after the message has come, which is not lost."""
    x, y = Array(ramp(comm, 5)), Array(np.zeros(5))
    receive = comm.Recv_init(y, comm.rank, 6)
    for early in (True, False):
        y.host[:] = 0
        receive.Start()
        if early:
            with pytest.raises(MPI.Exception) as raised:
                receive.Start()
            assert raised.value.Get_error_class() == MPI.ERR_REQUEST
        comm.Send(x, comm.rank, 6)
        if not early:
            with pytest.raises(MPI.Exception, match="Wait for it first"):
                Prequest.Startall([receive])
        receive.Wait()
        check(y, ramp(comm, 5))
    receive.Start()
    comm.Send(x, comm.rank, 6)
    y.host[:] = 0
    MPI.Request.Waitall([receive])  # mpi4py's own
    check(y, ramp(comm, 5))
    receive.Start()
    comm.Send(x, comm.rank, 6)
    receive.Wait()
    check(y, ramp(comm, 5))
    receive.Free()


@pytest.mark.parametrize("kind", ["pyncclx", "pyncclx.MPI"])
@pytest.mark.parametrize("name", ["Waitall", "waitall", "Testall", "testall"])
@pytest.mark.parametrize("beside", [False, True])
def test_persistent_requests_by_either_class(comm, kind, name, beside):
    """The classes of `pyncclx` and of `pyncclx.MPI` start and complete staged requests, with others or alone."""
    starting, completing = (pyncclx.Prequest, pyncclx.Request) if kind == "pyncclx" else (Prequest, Request)
    x, y = Array(ramp(comm, 5)), Array(np.zeros(5))
    requests = [comm.Recv_init(y, comm.rank, 6), comm.Send_init(x, comm.rank, 6)]
    for _ in range(2):
        x.host += 1
        statuses, others = [], [comm.Irecv(bytearray(8), comm.rank, 9)] if beside else []
        starting.Startall(requests)
        if beside:
            MPI.Comm.Send(comm, bytes(8), comm.rank, 9)
        while getattr(completing, name)(requests + others, statuses) in (False, (False, None)):
            pass
        check(y, x.host)
        assert (statuses[0].source, statuses[0].tag, statuses[0].Get_count(MPI.DOUBLE)) == (comm.rank, 6, 5)


@pytest.mark.parametrize("name", ["Waitall", "Wait", "Testall", "Waitany", "Waitsome"])
def test_persistent_requests_that_calls_of_mpi4py_complete(comm, name):
    """The data is on the device when the call returns, and the status is the message's."""
    x, y = Array(ramp(comm, 5)), Array(np.zeros(5))
    receive, send = comm.Recv_init(y, comm.rank, 6), comm.Send_init(x, comm.rank, 6)
    for _ in range(2):
        x.host += 1
        send.Start()
        receive.Start()
        if name == "Wait":
            status = MPI.Status()
            MPI.Request.Wait(receive, status)
            assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (comm.rank, 6, 5)
        else:
            while getattr(MPI.Request, name)([receive]) in (False, None):
                pass
        check(y, x.host)
        MPI.Request.Wait(send)
    receive.Free()
    send.Free()


@pytest.mark.parametrize("started", [False, True])
def test_a_persistent_request_by_its_handle(comm, started):
    """As programs free requests of which they have kept the handles."""
    x, y = Array(ramp(comm, 300)), Array(np.zeros(300))
    requests = [comm.Recv_init(y, comm.rank, 7), comm.Send_init(x, comm.rank, 7)]
    if started:
        for request in requests:
            request.Start()
        for request in requests:
            request.Wait()
        check(y, ramp(comm, 300))
    for request in requests:
        assert Prequest.fromhandle(request.handle) is request
        Prequest.fromhandle(request.handle).free()
        assert not request
