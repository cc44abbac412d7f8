"""The peer: NCCL through PyTorch's process group, on the same buffers in the same run."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from .cases import Allgather, Allreduce, Alltoallv, Case, Sendrecv
from .timing import REPLAYS, repeat, slowest


class Nccl:
    """NCCL with the ranks of a communicator.

    For the dynamic all-to-all it is given the counts on the host, and no receive counts to deliver: the easier
    task.
    """

    def __init__(self, comm: Any) -> None:
        import torch  # noqa: PLC0415  an optional peer
        from torch import distributed  # noqa: PLC0415

        self.comm, self.torch, self.distributed = comm, torch, distributed
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = comm.bcast(probe.getsockname()[1])
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        ordinal = int(comm.select_device())
        torch.cuda.set_device(ordinal)
        device = torch.device("cuda", ordinal)
        distributed.init_process_group("nccl", rank=comm.rank, world_size=comm.size, device_id=device)

    def time(self, case: Case, iters: int, warmup: int, *, graph: bool) -> float:
        """Microseconds of one operation, timed as ours."""
        import cupy  # noqa: PLC0415

        torch = self.torch
        operation = self.operation(case)
        stream = torch.cuda.Stream()
        ours = cupy.cuda.Stream.from_external(stream)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            repeat(operation, warmup)
            stream.synchronize()
            if not graph:
                return slowest(self.comm, ours, lambda: repeat(operation, iters), 1) / iters
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured, stream=stream):
                repeat(operation, iters)
            return slowest(self.comm, ours, captured.replay, REPLAYS) / (iters * REPLAYS)

    def operation(self, case: Case) -> Callable[[], None]:
        """NCCL's call for a case."""
        torch, distributed = self.torch, self.distributed
        send, recv = torch.as_tensor(case.send), torch.as_tensor(case.recv)
        if isinstance(case, Allreduce):
            return lambda: distributed.all_reduce(send)
        if isinstance(case, Allgather):
            return lambda: distributed.all_gather_into_tensor(recv, send)
        if isinstance(case, Alltoallv):
            counts = [case.count // self.comm.size] * self.comm.size
            return lambda: distributed.all_to_all_single(recv, send, counts, counts)
        if isinstance(case, Sendrecv):
            return lambda: self.ring(case, send, recv)
        return lambda: distributed.all_to_all_single(recv, send)

    def ring(self, case: Sendrecv, send: Any, recv: Any) -> None:
        """Both ways of a ring's exchange in one group, as nccl-tests do."""
        d = self.distributed
        pair = [d.P2POp(d.isend, send, case.next), d.P2POp(d.irecv, recv, case.previous)]
        for request in d.batch_isend_irecv(pair):
            request.wait()

    def close(self) -> None:
        """Leave NCCL in order."""
        self.torch.cuda.synchronize()
        self.distributed.destroy_process_group()
