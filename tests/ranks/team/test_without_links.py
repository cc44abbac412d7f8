"""GPUs without NVLink: the same results without lines; operations that need links are refused."""

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from support.arrays import Output, get, put
from support.everywhere import raises_everywhere
from support.reference import comparing, counts, labels

pytestmark = pytest.mark.ranks(2)


@pytest.fixture
def apart(monkeypatch):
    """A communicator of ranks whose GPUs have no links."""
    device = backends.select()
    monkeypatch.setattr(device, "nvlinked", frozenset([device.identity]))
    with pyncclx.Communicator().Dup() as comm:
        if comm.team.nvlinked:
            pytest.skip("all ranks have one GPU")
        yield comm


@pytest.mark.parametrize("name", ["Allreduce", "Allgather", "Alltoall", "Reduce_scatter_block", "Bcast"])
def test_collectives(apart, name):
    """Of all lengths, against mpi4py's on host arrays."""
    comm, size = apart, apart.size
    assert comm.team.layout.slot_rows == 0
    with comparing() as compare:
        for call, count in enumerate(counts(comm.team.layout, 8)):
            long, short = labels(comm.rank, size * count, call), labels(comm.rank, count, call)
            sent = {"Alltoall": long, "Reduce_scatter_block": long}.get(name, short)
            recv = Output(size * count if name in ("Allgather", "Alltoall") else count, "i8")
            expected = recv.fill(sent).read() if name == "Bcast" else recv.read()
            arguments = [] if name == "Bcast" else [sent]
            getattr(MPI.Intracomm, name)(comm, *arguments, expected)
            getattr(comm, name)(*map(put, arguments), recv.array)
            compare(recv, expected, f"{count} elements")


def shuffled(comm):
    """What a shuffle of a few tokens gives."""
    tokens = np.random.default_rng(comm.rank).normal(size=(3, 64)).astype(ml_dtypes.bfloat16)
    chosen = (np.arange(6).reshape(3, 2) * 5 + comm.rank) % (2 * comm.size)
    shuffle = comm.Create_token_shuffle(2 * comm.size, 12 * comm.size, 64, "bfloat16", k=2, max_tokens=4)
    rows, handle = shuffle.dispatch(put(tokens), put(chosen), put(np.full((3, 2), 0.5, "f4")))
    out = shuffle.combine(rows.data, handle)
    found = get(rows.offsets), get(rows.total), get(out)
    comm.synchronize()
    shuffle.Free()
    return [array.tobytes() for array in found]


@pytest.mark.usefixtures("heap")
def test_token_shuffle(apart, monkeypatch):
    """Few tokens, which go as lines where there are any: the same bits."""
    without = shuffled(apart)
    monkeypatch.undo()
    with pyncclx.Communicator().Dup() as comm:
        assert shuffled(comm) == without
        assert comm.team.layout.slot_rows > 0


def test_what_takes_links(apart):
    """Before anything is launched; copies go on."""
    array = apart.Alloc(4, "i8")
    array[...] = 5
    win, one, was = pyncclx.Win.Create(array, 8, comm=apart), put(np.ones(1, "i8")), put(np.zeros(1, "i8"))
    win.Fence()
    refused = (
        lambda: win.Accumulate(one, 0),
        lambda: win.Get_accumulate(one, was, 0),
        lambda: win.Fetch_and_op(one, was, 0),
        lambda: win.Compare_and_swap(one, one, was, 0),
        lambda: win.Put_signal(one, 0),
    )
    for call in refused:
        with raises_everywhere(apart, pyncclx.NotSupported, match="NVLink between all GPUs"):
            call()
    win.Put(one, (apart.rank + 1) % apart.size, 2)
    win.Fence()
    assert get(array).tolist() == [5, 5, 1, 5]
    win.Free()
