"""Arrays of every library: CuPy or NumPy, PyTorch, and objects that have only DLPack or the CUDA array interface."""

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from pyncclx import AVG
from pyncclx.operators import ops
from support.arrays import HOST, Dlpack, Interface, Output, get, host_only, put, synchronize
from support.reference import comparing, contributions, fold, labels

pytestmark = pytest.mark.parametrize("comm", ["reversed"], indirect=True)


@pytest.mark.parametrize("wrap", [Dlpack, Interface])
def test_arrays_by_protocol(comm, wrap):
    vectors = contributions(comm.size, 1001)
    send, recv = put(vectors[comm.rank]), Output(1001, "f4")
    gathered = Output((comm.size, 1001), "f4")
    comm.Allreduce(wrap(send), wrap(recv.array))
    comm.Allgather([wrap(send), MPI.FLOAT], wrap(gathered.array))
    with comparing() as compare:
        compare(recv, fold(ops.SUM, vectors), "Allreduce")
        compare(gathered, np.stack(vectors), "Allgather")


@pytest.mark.parametrize("wrap", [Dlpack, Interface])
def test_dynamic_counts_by_protocol(comm, wrap):
    rows, counts = labels(comm.rank, 2 * comm.size), np.full(comm.size, 2)
    recv, got = Output(2 * comm.size, "i8"), Output(comm.size, "i8")
    send, sent = put(rows), put(counts)
    comm.Alltoallv([wrap(send), wrap(sent)], [wrap(recv.array), wrap(got.array)], layout="packed")
    mine = slice(2 * comm.rank, 2 * comm.rank + 2)
    with comparing() as compare:
        compare(recv, np.concatenate([labels(rank, 2 * comm.size)[mine] for rank in range(comm.size)]), "rows")
        compare(got, counts, "counts")


@host_only
def test_numpy_bfloat16(comm):
    vectors = contributions(comm.size, 77, "bfloat16")
    recv = Output(77, ml_dtypes.bfloat16)
    comm.Allreduce(put(vectors[comm.rank]), recv.array, AVG)
    with comparing() as compare:
        compare(recv, fold(AVG, vectors), "AVG of bfloat16")


def test_fortran_order_and_no_dimension(comm):
    """Elements move in the order in which they lie in memory."""
    vectors = contributions(comm.size, 24)
    send = put(vectors[comm.rank]).reshape(6, 4).T
    recv, number = Output((6, 4), "f4"), Output((), "f4")
    comm.Allreduce(send, recv.array.T)
    comm.Allreduce(put(vectors[comm.rank])[7:8].reshape(()), number.array)
    with comparing() as compare:
        compare(recv, fold(ops.SUM, vectors).reshape(6, 4), "Fortran order")
        compare(number, fold(ops.SUM, [vector[7:8] for vector in vectors]).reshape(()), "no dimension")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "bool"])
def test_torch(comm, name):
    torch = pytest.importorskip("torch")
    device, dtype = "cpu" if HOST else "cuda", getattr(torch, name)
    values = [torch.arange(100).add(rank).remainder(7).to(dtype) for rank in range(comm.size)]
    send, recv = values[comm.rank].to(device), torch.empty(100, dtype=dtype, device=device)
    gathered = torch.empty(comm.size * 100, dtype=dtype, device=device)
    comm.Allreduce(send, recv, MPI.LOR if name == "bool" else MPI.SUM)
    comm.Allgather(send, gathered)
    after = gathered.clone()
    synchronize()
    folded = values[0].to(torch.float32 if name == "bfloat16" else dtype)
    for value in values[1:]:
        folded = folded | value if name == "bool" else folded + value.to(folded.dtype)
    assert torch.equal(recv.cpu(), folded.to(dtype))
    assert torch.equal(after.cpu(), torch.cat(values))


def test_torch_refuses_gradients(comm):
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(3, device="cpu" if HOST else "cuda", requires_grad=True)
    with pytest.raises(BufferError, match=r"sendbuf.*\.detach\(\)"):
        comm.Allreduce(tensor, torch.zeros_like(tensor))


def test_host_arrays_go_to_mpi(comm):
    """On GPUs NumPy arrays are MPI's; on the host device, what is no array of it: lower-case methods and memory."""
    assert comm.allreduce(comm.rank) == sum(range(comm.size))
    numbers = bytearray(8 * comm.size)
    comm.Allgather([bytearray(np.int64(comm.rank).tobytes()), MPI.INT64_T], [numbers, MPI.INT64_T])
    assert np.frombuffer(numbers, "i8").tolist() == list(range(comm.size))
    if not HOST:
        total = np.empty(3, "f8")
        comm.Allreduce(np.arange(3.0), total)
        assert total.tolist() == [0, comm.size, 2 * comm.size]


def test_empty_arrays_everywhere(comm):
    nothing, counts = put(np.empty(0, "f4")), put(np.zeros(comm.size, "i8"))
    comm.Bcast(nothing)
    comm.Allreduce(nothing, nothing)
    comm.Reduce(nothing, nothing)
    comm.Allgather(nothing, nothing)
    comm.Alltoall(nothing, nothing)
    comm.Reduce_scatter_block(nothing, nothing)
    comm.Alltoallv([nothing, [0] * comm.size], [nothing, [0] * comm.size])
    comm.Alltoallv([nothing, counts], nothing, layout="packed")
    comm.synchronize()
    assert get(counts).tolist() == [0] * comm.size
