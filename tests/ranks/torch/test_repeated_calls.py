"""Repeated calls on PyTorch's tensors: what changes about a tensor between two equal calls must be seen."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.launch import run
from support.arrays import HOST, xp
from support.everywhere import assert_everywhere, raises_everywhere

torch = pytest.importorskip("torch")

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
DEVICE = "cpu" if HOST else "cuda"
COUNT = 6 * SIZE


@pytest.fixture(scope="module")
def comm(world):
    with pyncclx.Communicator(WORLD.Dup()) as comm:
        yield comm


def numbers(rank, count=COUNT):
    """Return elements that differ from rank to rank."""
    return 100.0 * (rank + 1) + np.arange(count, dtype="f4")


TOTAL = sum(numbers(rank) for rank in range(SIZE))


def own():
    return torch.from_numpy(numbers(RANK)).to(DEVICE)


def check(found, expected):
    found = found.detach().cpu().numpy()
    assert_everywhere(WORLD, np.array_equal(found, expected), found)


def summed(comm, tensor):
    comm.Allreduce(MPI.IN_PLACE, tensor)
    return tensor


def test_an_equal_call_is_a_look_up(comm, monkeypatch):
    tensor, sent, received = own(), own(), own()
    counts = [COUNT // SIZE] * SIZE
    blocks = np.concatenate([numbers(rank).reshape(SIZE, -1)[RANK] for rank in range(SIZE)])
    for turn in range(3):
        tensor.copy_(own())
        check(summed(comm, tensor), TOTAL)
        received.fill_(-1)
        comm.Alltoallv([sent, counts], [received, counts])
        check(received, blocks)
        if turn == 1:
            monkeypatch.setattr(run, "enqueue", None)


def test_a_tensor_that_gets_other_memory(comm):
    tensor = own()
    check(summed(comm, tensor), TOTAL)
    kept = tensor.clone()
    tensor.set_(own())
    check(summed(comm, tensor), TOTAL)
    check(kept, TOTAL)


def test_other_elements_in_the_same_memory(comm):
    tensor = own()
    check(summed(comm, tensor), TOTAL)
    bits = tensor.view(torch.int32)
    bits.copy_(own().to(torch.int32))
    check(summed(comm, bits), TOTAL.astype("i4"))


def test_a_tensor_that_comes_to_need_a_gradient(comm):
    tensor = own()
    check(summed(comm, tensor), TOTAL)
    tensor.requires_grad_()
    with raises_everywhere(WORLD, BufferError):
        comm.Allreduce(MPI.IN_PLACE, tensor)
    tensor = tensor.detach().copy_(own())
    check(summed(comm, tensor), TOTAL)


def test_a_negated_view_of_the_same_memory(comm):
    pairs = torch.zeros(1, dtype=torch.complex64, device=DEVICE)
    pairs.fill_(complex(RANK, 1))
    plain, negated = pairs.imag, pairs.conj().imag
    assert negated.is_neg()
    assert plain.data_ptr() == negated.data_ptr()
    check(summed(comm, plain), [SIZE])
    with raises_everywhere(WORLD, BufferError):
        comm.Allreduce(MPI.IN_PLACE, negated)


def test_counts_that_reach_out_of_a_tensor(comm):
    """Counts may use the rest of a view's storage; an equal tensor at the same address may have no more."""
    array = xp.zeros(COUNT, "f4")
    whole, alone = torch.as_tensor(array, device=DEVICE), torch.as_tensor(array[:2], device=DEVICE)
    assert whole.data_ptr() == alone.data_ptr()
    for _ in range(2):
        whole.copy_(own())
        comm.Bcast([whole[:2], COUNT, MPI.FLOAT], SIZE - 1)
        check(whole, numbers(SIZE - 1))
    with raises_everywhere(WORLD, ValueError):
        comm.Bcast([alone, COUNT, MPI.FLOAT], SIZE - 1)


@pytest.mark.skipif(SIZE == 1, reason="messages between two ranks")
@pytest.mark.parametrize("count", [3, 70_000])
def test_repeated_messages(comm, count):
    sent, received = torch.zeros(count, device=DEVICE), torch.zeros(count, device=DEVICE)
    left, right = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    for turn in range(4):
        sent.copy_(torch.from_numpy(numbers(RANK, count)) + turn)
        received.fill_(-1)
        if turn == 3:  # a tensor at another address
            received = received.clone()
        pyncclx.Request.Waitall([comm.Irecv(received, left, 1), comm.Isend(sent, right, 1)])
        check(received, numbers(left, count) + turn)
