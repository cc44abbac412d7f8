"""PyTorch's tensors on GPUs, new ones in each step, whose values the current stream is still computing."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.launch import run
from pyncclx.messages import plan
from support.arrays import HOST

if HOST:
    pytest.skip("needs GPUs", allow_module_level=True)
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.ranks(2)
WORLD = MPI.COMM_WORLD
SIZE, LEFT, RIGHT = WORLD.size, (WORLD.rank - 1) % WORLD.size, (WORLD.rank + 1) % WORLD.size
TURNS = 6


def late(value, count):
    """Return a tensor that gets its value after some milliseconds of work on the current stream."""
    torch.cuda._sleep(5_000_000)
    return torch.full((count,), float(value), device="cuda")


def check(tensor, value, name):
    """Assert a tensor's values, as the current stream finds them."""
    np.testing.assert_array_equal(tensor.cpu().numpy(), np.full(tensor.numel(), value, "f4"), name)


CALLS = {
    "Allreduce": lambda comm, send, recv: comm.Allreduce(send, recv),
    "Iallreduce": lambda comm, send, recv: comm.Iallreduce(send, recv).Wait(),
    "Sendrecv": lambda comm, send, recv: comm.Sendrecv(send, RIGHT, 1, recv, LEFT, 1),
    "Isend, Irecv": lambda comm, send, recv: pyncclx.Request.Waitall(
        [comm.Irecv(recv, LEFT, 2), comm.Isend(send, RIGHT, 2)]
    ),
    "Send, Recv": lambda comm, send, recv: (
        (comm.Send(send, RIGHT, 3), comm.Recv(recv, LEFT, 3))
        if comm.rank == 0
        else (comm.Recv(recv, LEFT, 3), comm.Send(send, RIGHT, 3))
    ),
    "a part": lambda comm, send, recv: comm.Sendrecv([send, send.numel()], RIGHT, 4, [recv, recv.numel()], LEFT, 4),
}


def refuse(*args, **kwargs):
    raise AssertionError("the arguments were looked at")


@pytest.mark.parametrize("blocking", ["stream", "host"])
@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize("count", [5, 3000, 100_000])
@pytest.mark.parametrize("name", CALLS)
def test_values_that_come_late(name, count, aside, blocking, monkeypatch):
    with pyncclx.Communicator(WORLD.Dup()) as comm:
        comm.blocking = blocking
        stream = torch.cuda.Stream() if aside else torch.cuda.current_stream()
        kept = []
        with torch.cuda.stream(stream):
            for turn in range(TURNS):
                if turn == 3:
                    monkeypatch.setattr(run, "enqueue", refuse)
                    monkeypatch.setattr(plan, "_new_plan", refuse)
                recv = torch.full((count,), -1.0, device="cuda")
                send = late(10 * turn + comm.rank, count)
                kept.append((send, recv))
                CALLS[name](comm, send, recv)
                is_sum = "reduce" in name
                wanted = SIZE * 10 * turn + SIZE * (SIZE - 1) // 2 if is_sum else 10 * turn + LEFT
                check(recv, wanted, f"{name}, turn {turn}")
        comm.synchronize()
