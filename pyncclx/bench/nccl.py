"""The peer: NCCL through PyTorch's process group, on the same buffers in the same run."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from .cases import (
    Allgather,
    Allreduce,
    Alltoall,
    Alltoallv,
    Bcast,
    Case,
    Gather,
    Reduce,
    ReduceScatterBlock,
    Scan,
    Scatter,
    Sendrecv,
)
from .timing import REPLAYS, repeat, slowest


class Nccl:
    """NCCL with the ranks of a communicator.

    For the dynamic all-to-all it is given the counts on the host, and no receive counts to deliver: the easier
    task. Its reductions are in place, as PyTorch has them, but for reduce-scatter.
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

    def time(self, case: Case, iters: int, warmup: int, *, graph: bool) -> float | None:
        """Microseconds of one operation, timed as ours; None if NCCL has none."""
        import cupy  # noqa: PLC0415

        torch = self.torch
        operation = self.operation(case)
        if operation is None:
            return None
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

    def operation(self, case: Case) -> Callable[[], None] | None:
        """NCCL's call for a case; None if it has none. Gather and Scatter are sends and receives in one group."""
        torch, distributed = self.torch, self.distributed
        send, recv = torch.as_tensor(case.send), torch.as_tensor(case.recv)
        size, is_root = self.comm.size, self.comm.rank == 0
        equal = [case.count // size] * size
        gathered, scattered = (list(recv.chunk(size)), list(send.chunk(size))) if is_root else (None, None)
        calls: tuple[tuple[type[Case], Callable[[], Any] | None], ...] = (  # the first that a case is one of
            (Scan, None),
            (Reduce, lambda: distributed.reduce(send, 0)),
            (Allreduce, lambda: distributed.all_reduce(send)),
            (Bcast, lambda: distributed.broadcast(recv, 0)),
            (Gather, lambda: distributed.gather(send, gathered, 0)),
            (Allgather, lambda: distributed.all_gather_into_tensor(recv, send)),
            (Scatter, lambda: distributed.scatter(recv, scattered, 0)),
            (ReduceScatterBlock, lambda: distributed.reduce_scatter_tensor(recv, send)),
            (Alltoallv, lambda: distributed.all_to_all_single(recv, send, equal, equal)),
            (Sendrecv, lambda: self.ring(case, send, recv)),
            (Alltoall, lambda: distributed.all_to_all_single(recv, send)),
        )
        return next(call for kind, call in calls if isinstance(case, kind))

    def ring(self, case: Any, send: Any, recv: Any) -> None:
        """Both ways of a ring's exchange in one group, as nccl-tests do."""
        d = self.distributed
        pair = [d.P2POp(d.isend, send, case.next), d.P2POp(d.irecv, recv, case.previous)]
        for request in d.batch_isend_irecv(pair):
            request.wait()

    def close(self) -> None:
        """Leave NCCL in order."""
        self.torch.cuda.synchronize()
        self.distributed.destroy_process_group()
