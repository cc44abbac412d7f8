"""Two groups, an intercommunicator between them, and the communicator that they merge it to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..completing import Entry
from ..memory import Area, pattern
from ..program import PLAIN, Act, Buffer

if TYPE_CHECKING:
    from ..execute import Run

TAG = 7
COLLECTIVES = ("Barrier", "Bcast", "Allgather", "Allreduce", "Alltoall")
HOST = Buffer(place="host", named=True)  # kernels do not work between two groups


@dataclass(frozen=True, repr=False)
class Inter(Act):
    """The first ranks and the others exchange messages, and data by a collective; then they merge."""

    edge: int = 0
    send: str = "Isend"  # or Issend
    name: str = "Allreduce"
    count: int = 3
    sendbuf: Buffer = PLAIN
    recvbuf: Buffer = PLAIN
    high: bool = True
    done: str = "Wait"
    after: int = 0

    def legal(self) -> Inter:
        """Let both ends of a message have one datatype; a host array has no room for a device array's envelope."""
        place = "host" if self.recvbuf.place == "host" else self.sendbuf.place
        sendbuf = dataclasses.replace(self.sendbuf, place=place)
        recvbuf = dataclasses.replace(self.recvbuf, dtype=self.sendbuf.dtype)
        return dataclasses.replace(self, sendbuf=sendbuf, recvbuf=recvbuf)

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm = run.comms.of(self, index)
        if comm.size == 1:
            return
        edge = 1 + self.edge % (comm.size - 1)
        is_low = comm.rank < edge
        local = comm.Split(int(is_low), comm.rank)
        inter = local.Create_intercomm(0, comm, edge if is_low else 0, TAG)
        requests = self._messages(run, inter, index, comm.rank)
        self._collective(run, inter, index, is_low=is_low)
        merged = inter.Merge(is_low != self.high)
        send = run.place.on_device(pattern("f8", self.count, index, merged.rank))
        recv = run.place.on_device(pattern("f8", self.count, 0))
        merged.Allreduce(send, recv)
        run.note(f"{index} merged {merged.rank}", recv)
        if self.after:
            yield self.after
        run.complete(requests, self.done)
        for one in (merged, inter, local):
            one.Free()

    def _messages(self, run: Run, inter: Any, index: int, rank: int) -> list[Entry]:
        """Begin a message to the rank with the same number in the other group, if any, and one from there."""
        peer = inter.rank
        if peer >= inter.remote_size:
            return []
        values = pattern(self.sendbuf.dtype, self.count, index, rank)
        send, recv = Area(run, self.sendbuf, self.count, values=values), Area(run, self.recvbuf, self.count)

        def finish(status: Any, found: Any) -> None:
            run.note(f"{index} over groups", recv.read())

        receiving = inter.Irecv(recv.argument(), peer, TAG)
        sending = getattr(inter, self.send)(send.argument(), peer, TAG)
        return [
            Entry(f"{index} over groups", receiving, finish),
            Entry(f"{index} send", sending, lambda *_: run.note(f"{index} send", send.all())),
        ]

    def _collective(self, run: Run, inter: Any, index: int, *, is_low: bool) -> None:
        """Call the collective; its arrays are on the host."""
        if self.name == "Barrier":
            inter.Barrier()
            return
        blocks = inter.remote_size if self.name in ("Allgather", "Alltoall") else 1
        values = pattern("i8", self.count * (blocks if self.name == "Alltoall" else 1), index, inter.rank, is_low)
        send = Area(run, dataclasses.replace(HOST, dtype="i8"), values.size, values=values)
        recv = Area(run, dataclasses.replace(HOST, dtype="i8"), self.count * blocks)
        if self.name == "Bcast":
            root = 0 if not is_low else run.MPI.ROOT if inter.rank == 0 else run.MPI.PROC_NULL
            inter.Bcast((send if is_low else recv).argument(), root)
        elif self.name == "Allreduce":
            inter.Allreduce(send.argument(), recv.argument())
        else:
            basic = run.MPI.INT64_T
            arguments = [[area.argument()[0], self.count, basic] for area in (send, recv)]
            getattr(inter, self.name)(*arguments)
        run.note(f"{index} {self.name} of groups", recv.read())
