"""The status of a receive that raises says which message was too long, as mpi4py's does."""

import pytest
from mpi4py import MPI

from pyncclx import Request
from pyncclx.messages.envelope import ENVELOPE_NBYTES
from support.arrays import Output, put
from support.labelled_messages import EAGER, LARGE, data_of, map_peers
from support.reversed_ranks import ring

TAG = 5
LIKE_AN_ENVELOPE = ENVELOPE_NBYTES // 8  # a probe receives a message of this length and sends it again


def by_test(comm, buf, status):
    """Receive by Test."""
    request = comm.Irecv(buf)
    while not request.Test(status):
        pass


WAYS = {
    "Recv": lambda comm, buf, status: comm.Recv(buf, status=status),
    "Irecv": lambda comm, buf, status: comm.Irecv(buf).Wait(status),
    "Test": by_test,
    "Mprobe": lambda comm, buf, status: comm.Mprobe().Recv(buf, status),
    "Mprobe Irecv": lambda comm, buf, status: comm.Mprobe().Irecv(buf).Wait(status),
    "Probe": lambda comm, buf, status: (comm.Probe(), comm.Recv(buf, status=status)),
    "Sendrecv": lambda comm, buf, status: comm.Sendrecv(buf, MPI.PROC_NULL, 0, buf, status=status),
    "Sendrecv_replace": lambda comm, buf, status: comm.Sendrecv_replace(buf, MPI.PROC_NULL, 0, status=status),
    "Waitany": lambda comm, buf, status: Request.Waitany([comm.Irecv(buf)], status),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [9, LIKE_AN_ENVELOPE, EAGER, LARGE])
@pytest.mark.parametrize("places", ["device", "host", "host to device"])
def test_status_of_a_message_that_is_too_long(comm, way, count, places):
    map_peers(comm)
    right, left = ring(comm)
    memory = Output(count, "i8").array  # Open MPI may write more of a long message than there is room for
    recv = memory[: count // 2] if places != "host" else memoryview(bytearray(8 * count))[: 4 * count]
    data = data_of(comm.rank, TAG, 0, count)
    sending = comm.Isend(put(data) if places == "device" else bytearray(data.tobytes()), right, TAG)
    status = MPI.Status()
    with pytest.raises(MPI.Exception) as raised:
        WAYS[way](comm, recv, status)
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    assert (status.source, status.tag) == (left, TAG)
    sending.Wait()
