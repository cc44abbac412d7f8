"""Calls that MPI refuses, messages that are too long, objects that cannot be read; and going on after each."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..memory import Area, pattern
from ..program import PLAIN, Act, Buffer
from .messages import FIRST_TAG, room

if TYPE_CHECKING:
    from ..execute import Run

NOBODY, BAD_TAG = 99, -77


def refusals(run: Run, comm: Any, x: Any, y: Any, obj: Any) -> dict[str, Callable[[], Any]]:
    """Return calls with one wrong argument, by name."""
    tag = 9
    return {
        "Send": lambda: comm.Send(x, NOBODY, tag),
        "Ssend": lambda: comm.Ssend(x, NOBODY, tag),
        "Isend": lambda: comm.Isend(x, NOBODY, tag),
        "Recv": lambda: comm.Recv(y, NOBODY, tag),
        "Irecv": lambda: comm.Irecv(y, NOBODY, tag),
        "Sendrecv dest": lambda: comm.Sendrecv(x, NOBODY, tag, y, comm.rank, tag),
        "Sendrecv source": lambda: comm.Sendrecv(x, comm.rank, tag, y, NOBODY, tag),
        "Isendrecv dest": lambda: comm.Isendrecv(x, NOBODY, tag, y, comm.rank, tag),
        "Sendrecv_replace": lambda: comm.Sendrecv_replace(y, NOBODY, tag, comm.rank, tag),
        "Isendrecv_replace": lambda: comm.Isendrecv_replace(y, NOBODY, tag, comm.rank, tag),
        "send": lambda: comm.send(obj, NOBODY, tag),
        "isend": lambda: comm.isend(obj, NOBODY, tag),
        "ssend": lambda: comm.ssend(obj, NOBODY, tag),
        "recv": lambda: comm.recv(None, NOBODY, tag),
        "sendrecv dest": lambda: comm.sendrecv(obj, NOBODY, tag, None, comm.rank, tag),
        "Send_init": lambda: comm.Send_init(x, NOBODY, tag),
        "Recv_init": lambda: comm.Recv_init(y, NOBODY, tag),
        "Probe": lambda: comm.Probe(NOBODY, tag),
        "Iprobe": lambda: comm.Iprobe(NOBODY, tag),
        "Mprobe": lambda: comm.Mprobe(NOBODY, tag),
        "Send tag": lambda: comm.Send(x, comm.rank, BAD_TAG),
        "Isend tag": lambda: comm.Isend(x, comm.rank, BAD_TAG),
        "Recv tag": lambda: comm.Recv(y, comm.rank, BAD_TAG),
        "Irecv tag": lambda: comm.Irecv(y, comm.rank, BAD_TAG),
        "send tag": lambda: comm.send(obj, comm.rank, BAD_TAG),
        "Sendrecv tag": lambda: comm.Sendrecv(x, comm.rank, BAD_TAG, y, comm.rank, tag),
        "Isendrecv tag": lambda: comm.Isendrecv(x, comm.rank, BAD_TAG, y, comm.rank, tag),
        "Send type": lambda: comm.Send(object(), comm.rank, tag),
        "Send count": lambda: comm.Send([x, -3, run.MPI.DOUBLE], comm.rank, tag),
        "Bcast root": lambda: comm.Bcast(y, NOBODY),
        "Reduce root": lambda: comm.Reduce(x, y, run.MPI.SUM, NOBODY),
        "bcast root": lambda: comm.bcast(obj, NOBODY),
        "Bcast type": lambda: comm.Bcast(object(), 0),
    }


REFUSALS = tuple(refusals(None, None, None, None, None))  # type: ignore[arg-type]


@dataclass(frozen=True, repr=False)
class Refused(Act):
    """Each rank makes a call that is refused, then one that is right."""

    call: str = "Send"
    count: int = 3
    place: str = "device"

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, tag = run.comms.of(self, index), FIRST_TAG + index
        send = Area(run, Buffer(self.place), self.count, values=pattern("f8", self.count, index, comm.rank))
        recv = Area(run, Buffer(self.place), self.count)
        calls = refusals(run, comm, send.argument(), recv.argument(), {"array": send.argument()})
        run.attempt(f"{index} {self.call}", calls[self.call])
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        comm.Sendrecv(send.argument(), right, tag, recv.argument(), left, tag)
        run.note(f"{index} after it", recv.read())
        yield from ()


RECEIVES = ("Recv", "Irecv", "Sendrecv", "Sendrecv_replace", "Isendrecv", "Isendrecv_replace")
FAULTS = ("readonly", "type", "count", "source", "dest", "sendbuf")


@dataclass(frozen=True, repr=False)
class Kept(Act):
    """A message is on its way, perhaps probed, when a receive is refused; the next receive gets it."""

    source: int = 0
    dest: int = 1
    count: int = 3
    receive: str = "Recv"
    fault: str = "type"
    probe: bool = True
    sendbuf: Buffer = PLAIN
    recvbuf: Buffer = PLAIN
    spare: int = 0

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, tag, name = run.comms.of(self, index), FIRST_TAG + index, f"{index} {self.receive} {self.fault}"
        source, dest = self.source % comm.size, self.dest % comm.size
        request = None
        if comm.rank == source:
            sent = Area(run, self.sendbuf, self.count, values=pattern(self.sendbuf.dtype, self.count, index))
            request = comm.Isend(sent.argument(), dest, tag)
        if comm.rank == dest:
            recv = Area(run, self.recvbuf, room(self))
            status = run.MPI.Status()
            if self.probe:
                comm.Probe(source, tag, status)
            run.attempt(name, lambda: self._refused(run, comm, recv, source, tag))
            comm.Recv(recv.argument(), source, tag, status)
            run.note(f"{name}, then", (status, recv.read(self.count)))
        if request is not None:
            request.Wait()
        yield from ()

    def _refused(self, run: Run, comm: Any, recv: Area, source: int, tag: int) -> Any:
        """Receive with a wrong argument."""
        good = np.zeros(max(self.count, 1))
        bad: Any = {"readonly": bytes(8 * self.count), "type": object()}.get(self.fault, recv.argument())
        if self.fault == "count":
            bad = [good, -1, run.MPI.DOUBLE]
        to, origin = comm.rank, source
        if self.fault == "dest":
            to = NOBODY
        elif self.fault == "source":
            origin = NOBODY
        out: Any = object() if self.fault == "sendbuf" else good
        if "replace" in self.receive:
            return getattr(comm, self.receive)(bad, to, tag + 1, origin, tag)
        if "endrecv" in self.receive:
            return getattr(comm, self.receive)(out, to, tag + 1, bad, origin, tag)
        return getattr(comm, self.receive)(bad, origin, tag)

    def legal(self) -> Kept:
        """Let the fault be one that this receive has."""
        fault, receive = self.fault, self.receive
        if fault in ("dest", "sendbuf") and "endrecv" not in receive:
            fault = "source"
        if fault == "sendbuf" and "replace" in receive:
            fault = "type"
        recvbuf = dataclasses.replace(self.recvbuf, dtype=self.sendbuf.dtype)
        return dataclasses.replace(self, fault=fault, recvbuf=recvbuf)


@dataclass(frozen=True, repr=False)
class TooLong(Act):
    """A message that is longer than its receive, and one that is not, received together or one after the other."""

    source: int = 0
    dest: int = 1
    count: int = 10
    short: int = 4
    receive: str = "Recv"  # Irecv, Mprobe, Waitall: both together
    sendbuf: Buffer = PLAIN
    recvbuf: Buffer = PLAIN
    spare: int = 0

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, tag, name = run.comms.of(self, index), FIRST_TAG + index, f"{index} too long, {self.receive}"
        source, dest = self.source % comm.size, self.dest % comm.size
        requests = []
        if comm.rank == source != dest:
            for number in range(2):
                values = pattern("f8", self.count, index, number)
                sent = Area(run, self.sendbuf, self.count, values=values)
                requests.append(comm.Isend(sent.argument(), dest, tag + 4000 * number))
        if comm.rank == dest != source:
            first = Area(run, self.recvbuf, self.short)
            second = Area(run, self.recvbuf, room(self))
            if self.receive == "Waitall":
                both = [comm.Irecv(first.argument(), source, tag), comm.Irecv(second.argument(), source, tag + 4000)]
                with contextlib.suppress(run.mpi.Exception):  # MPI may leave requests pending, and say so later
                    run.MPI.Request.Waitall(both)
                with contextlib.suppress(run.mpi.Exception):
                    both[0].Wait()
                both[1].Wait()
            else:
                run.attempt(name, lambda: self._receive(comm, first, source, tag))
                comm.Recv(second.argument(), source, tag + 4000)
            run.note(f"{name}, second", second.read(self.count))
        run.side.beside.Barrier()
        for number, request in enumerate(requests):
            run.attempt(f"{name} send {number}", request.Wait)
        yield from ()

    def _receive(self, comm: Any, area: Area, source: int, tag: int) -> None:
        if self.receive == "Irecv":
            comm.Irecv(area.argument(), source, tag).Wait()
        elif self.receive == "Mprobe":
            comm.Mprobe(source, tag).Recv(area.argument())
        else:
            comm.Recv(area.argument(), source, tag)


class Spoiled:
    """An object that one rank cannot unpickle."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __reduce__(self) -> Any:
        return unspoiled, (self.rank,)


def unspoiled(rank: int) -> str:
    """Return what is unpickled; raises on one rank."""
    from mpi4py import MPI  # noqa: PLC0415

    if rank == MPI.COMM_WORLD.rank:
        raise LookupError("this rank cannot unpickle it")
    return "unpickled"


@dataclass(frozen=True, repr=False)
class Unreadable(Act):
    """Objects beside long arrays, of which one rank cannot unpickle some; all go on."""

    name: str = "gather"
    rank: int = 0
    place: int = 1  # where among the ranks' objects the spoiled one is
    long: bool = True

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, name = run.comms.of(self, index), f"{index} {self.name} of an unreadable object"
        rank, place = self.rank % comm.size, self.place % comm.size
        array = run.place.on_device(pattern("f8", 17000 if self.long else 10, index, comm.rank))
        own = [Spoiled(rank), array] if comm.rank == place else [array, "good"]
        calls: dict[str, Callable[[], Any]] = {
            "gather": lambda: comm.gather(own, rank),
            "allgather": lambda: comm.allgather(own),
            "alltoall": lambda: comm.alltoall([own] * comm.size),
            "bcast": lambda: comm.bcast(own if comm.rank == place else None, place),
            "scatter": lambda: comm.scatter([own] * comm.size if comm.rank == place else None, place),
        }
        found = run.attempt(name, calls[self.name])
        if found is not None:
            run.note(f"{name}, found", found)
        run.note(f"{name}, after it", comm.allgather((comm.rank, array[:5])))
        yield from ()
