"""NCCL through torch.distributed, on the same buffers."""

from __future__ import annotations

from functools import partial
from typing import Any

from mpi4py import MPI

from ..cases import Case, alternating
from ..timing import Queue, Work
from .base import Call, Peer, own_block

_OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}
_REDUCED = {"int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"}


class TorchQueue(Queue):
    """Queue on a PyTorch stream."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._stream = torch, torch.cuda.Stream()
        self._entered: list[Any] = []

    def __enter__(self) -> Any:
        self._entered.append(self._torch.cuda.stream(self._stream))
        return self._entered[-1].__enter__()

    def __exit__(self, *exception: object) -> None:
        self._entered.pop().__exit__(*exception)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def mark(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def between(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def capture(self, work: Work) -> Work:
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, stream=self._stream):
            work()
        replay: Work = graph.replay
        return replay


class Torch(Peer):
    """torch.distributed with NCCL."""

    in_place_only = frozenset({"allreduce", "reduce"})
    out_of_place_only = frozenset({"gather", "scatter", "alltoall"})

    def __init__(self, comm: Any) -> None:
        import torch  # noqa: PLC0415  an optional peer
        from torch import distributed  # noqa: PLC0415

        self.comm, self.torch, self.distributed = comm, torch, distributed
        device = torch.device("cuda", int(comm.select_device()))
        torch.cuda.set_device(device)
        ranks = {"rank": comm.rank, "world_size": comm.size}
        distributed.init_process_group("nccl", store=self._meet(), device_id=device, **ranks)
        self.queue = TorchQueue(torch)
        version = ".".join(map(str, torch.cuda.nccl.version()))
        self.about = f"PyTorch {torch.__version__} (NCCL {version})"

    def _meet(self) -> Any:
        """Return the store of all ranks, on rank 0 at a port that the system chose."""
        host, store = "127.0.0.1", self.distributed.TCPStore
        own = store(host, 0, is_master=True, wait_for_workers=False) if self.comm.rank == 0 else None
        port = MPI.Comm.bcast(self.comm, own and own.port)
        return own or store(host, port, is_master=False, wait_for_workers=False)

    def close(self) -> None:
        self.torch.cuda.synchronize()
        self.distributed.destroy_process_group()

    def target(self, case: Case, in_place: bool) -> Any:
        return own_block(case, in_place)

    def _bytes(self, array: Any) -> Any:
        return self.torch.as_tensor(array.view("u1"))

    def _blocks(self, case: Case, array: Any) -> list[Any] | None:
        """Return root's block for each rank, as tensors; None on the other ranks."""
        return list(self._bytes(array).chunk(case.size)) if case.is_root else None

    def _numbers(self, case: Case, array: Any) -> Any:
        return self._bytes(array).view(getattr(self.torch, case.elements.name))

    def _op(self, case: Case) -> Any:
        return getattr(self.distributed.ReduceOp, _OPS[case.options.op])

    def call(self, case: Case, in_place: bool) -> Call | None:
        if case.reduces and case.elements.name not in _REDUCED:
            return None
        return super().call(case, in_place)

    def allreduce(self, case: Case, in_place: bool) -> Call:
        return partial(self.distributed.all_reduce, self._numbers(case, case.recv), self._op(case))

    def reduce(self, case: Case, in_place: bool) -> Call:
        tensor = self._numbers(case, case.source(in_place))
        return partial(self.distributed.reduce, tensor, case.root, self._op(case))

    def reduce_scatter(self, case: Case, in_place: bool) -> Call:
        recv, send = self._numbers(case, self.target(case, in_place)), self._numbers(case, case.send)
        return partial(self.distributed.reduce_scatter_tensor, recv, send, self._op(case))

    def bcast(self, case: Case, in_place: bool) -> Call:
        return partial(self.distributed.broadcast, self._bytes(case.recv), case.root)

    def allgather(self, case: Case, in_place: bool) -> Call:
        recv, send = self._bytes(case.recv), self._bytes(case.source(in_place))
        return partial(self.distributed.all_gather_into_tensor, recv, send)

    def gather(self, case: Case, in_place: bool) -> Call:
        return partial(self.distributed.gather, self._bytes(case.send), self._blocks(case, case.recv), case.root)

    def scatter(self, case: Case, in_place: bool) -> Call:
        return partial(self.distributed.scatter, self._bytes(case.recv), self._blocks(case, case.send), case.root)

    def alltoall(self, case: Case, in_place: bool) -> Call:
        return partial(self.distributed.all_to_all_single, self._bytes(case.recv), self._bytes(case.send))

    def alltoallv(self, case: Case, in_place: bool) -> Call:
        recv, send, counts = self._bytes(case.recv), self._bytes(case.send), [case.nbytes // case.size] * case.size
        return partial(self.distributed.all_to_all_single, recv, send, counts, counts)

    def sendrecv(self, case: Any, in_place: bool) -> Call:
        """Return a call that sends and receives in one group, as nccl-tests does."""
        d = self.distributed
        pair = [
            d.P2POp(d.isend, self._bytes(case.send), case.next),
            d.P2POp(d.irecv, self._bytes(case.recv), case.previous),
        ]

        def exchange() -> None:
            for request in d.batch_isend_irecv(pair):
                request.wait()

        return exchange

    def send(self, case: Any, in_place: bool) -> Call:
        """Return a call that sends and then receives; every second rank receives first."""
        send = partial(self.distributed.send, self._bytes(case.send), case.next)
        recv = partial(self.distributed.recv, self._bytes(case.recv), case.previous)
        return alternating(case, send, recv)
