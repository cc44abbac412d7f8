"""Messages between pretend nodes: ranks in which PYNCCLX_NODE differs share no memory, so the data goes through MPI."""

import numpy as np
import pytest

import pyncclx
from pyncclx.messages import postbox
from support.arrays import Output, put

pytestmark = pytest.mark.ranks(2)


def test_a_message_between_nodes_goes_through_mpi(monkeypatch):
    monkeypatch.setenv("PYNCCLX_NODE", str(pyncclx.Communicator().rank))
    postbox.POSTBOX.reset()  # a process finds its node out once
    comm = pyncclx.Communicator().Dup()
    peer, data = (comm.rank + 1) % comm.size, np.arange(5000, dtype="f4")
    for call in range(3):  # from the second one on, ranks of one node would copy
        got = Output(data.size, "f4")
        receive = comm.Irecv(got.array, (comm.rank - 1) % comm.size)
        comm.Send(put(data + comm.rank + call), peer)
        receive.Wait()
        comm.synchronize()
        assert np.array_equal(got.read(), data + (comm.rank - 1) % comm.size + call)
        assert not comm.endpoint.is_read_by(peer)
    comm.Free()
    postbox.POSTBOX.reset()
