"""Messages and collectives of Python objects, with arrays in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..completing import Entry
from ..memory import pattern
from ..program import Act
from .messages import FIRST_TAG, may_be_to_itself

if TYPE_CHECKING:
    from ..execute import Run

KINDS = ("small", "int", "dict", "long", "list", "strided", "swapped", "record", "fortran", "alloc", "nan", "text")
SUMMABLE = ("small", "int", "long", "swapped")
LONG = 17000  # elements of an array that does not go inside of a pickle
ROOM = 1 << 19  # bytes for the pickle of a posted receive
SENDS = ("send", "ssend", "isend", "issend", "bsend", "ibsend")
RECEIVES = ("recv", "irecv", "mprobe", "improbe", "probe", "iprobe")
COLLECTIVES = ("bcast", "gather", "scatter", "allgather", "alltoall", "allreduce", "reduce")


def made(run: Run, kind: str, *keys: int) -> Any:
    """Return an object of a kind, with arrays on the device."""

    def array(dtype: str, count: int) -> Any:
        return run.place.on_device(pattern(dtype, count, *keys))

    def window() -> Any:
        memory = run.place.memory("alloc", 8 * LONG)
        run.place.store(memory, pattern("f8", LONG, *keys))
        return {"window": memory.view("f8")}

    makers: dict[str, Callable[[], Any]] = {
        "small": lambda: array("f8", 10),
        "int": lambda: sum(keys),
        "text": lambda: f"of {keys}",
        "dict": lambda: {"weights": array("f4", 500), "step": keys[0], "none": None},
        "list": lambda: [array("f8", LONG), "between", (array("i4", 3), array("u1", 140000))],
        "long": lambda: array("f8", LONG),
        "strided": lambda: array("f8", 2 * LONG)[::2],
        "fortran": lambda: array("f8", LONG).reshape(-1, 2).T,
        "alloc": window,
        "swapped": lambda: pattern("f8", 50, *keys).astype(">f8"),
        "record": lambda: np.array([(keys[0], 2.5), (1, keys[-1])], [("a", "i4"), ("b", "f8")]),
        "nan": lambda: [float("nan"), run.place.on_device(pattern("f8", 30, *keys, nan=True))],
    }
    return makers[kind]()


@dataclass(frozen=True, repr=False)
class ObjectMessage(Act):
    """An object from one rank to another."""

    source: int = 0
    dest: int = 1
    kind: str = "small"
    send: str = "send"
    receive: str = "recv"
    receive_first: bool = False
    gap: int = 0
    wild: bool = False
    sent: str = "wait"
    received: str = "wait"
    sent_after: int = 0
    received_after: int = 0

    def legal(self) -> ObjectMessage:
        """Choose modes that do not wait where the other end comes later."""
        send, receive = self.send, self.receive
        to_itself = may_be_to_itself(self)
        if send in ("send", "ssend") and (to_itself or (self.gap and not self.receive_first)):
            send = "isend"
        if self.receive_first:
            receive = "irecv"
        return dataclasses.replace(
            self,
            send=send,
            receive=receive,
            received_after=max(self.received_after, self.gap + 1 if self.receive_first else 0),
            sent_after=max(self.sent_after, 0 if self.receive_first or send[0] != "i" else self.gap + 1),
        )

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm = run.comms.of(self, index)
        source, dest = self.source % comm.size, self.dest % comm.size
        ends = [(source, self._send, dest), (dest, self._receive, source)]
        for rank, end, other in reversed(ends) if self.receive_first else ends:
            if comm.rank == rank:
                end(run, comm, index, other)
            if self.gap and end is (ends[1] if self.receive_first else ends[0])[1]:
                yield self.gap

    def _send(self, run: Run, comm: Any, index: int, dest: int) -> None:
        sent = made(run, self.kind, index, self.source)
        request = getattr(comm, self.send)(sent, dest, FIRST_TAG + index)
        if hasattr(sent, "fill") and sent.dtype.kind in "fi":  # what has been sent may be changed
            sent[...] = 99
        if self.sent == "drop" and request is not None:
            run.kept.append(request)
        elif request is not None:
            entry = Entry(f"{index} {self.send}", request, lambda *_: None, has_object=True)
            run.later(entry, self.sent, self.sent_after)

    def _receive(self, run: Run, comm: Any, index: int, source: int) -> None:
        MPI, tag, status = run.MPI, FIRST_TAG + index, run.MPI.Status()
        name = f"{index} {self.receive}"
        if self.wild:
            source = MPI.ANY_SOURCE

        def finish(status: Any, found: Any) -> None:
            run.note(f"{name} from", (status.source, status.tag))
            run.note(name, found)

        if self.receive == "irecv":
            request = comm.irecv(bytearray(ROOM), source, tag)
            run.later(Entry(name, request, finish, has_object=True), self.received, self.received_after)
            return
        if self.receive == "mprobe":
            found = comm.mprobe(source, tag, status).recv()
        elif self.receive == "improbe":
            found = run.loop(lambda: comm.improbe(source, tag, status)).recv()
        else:
            if self.receive == "probe":
                comm.probe(source, tag, status)
            elif self.receive == "iprobe":
                run.loop(lambda: comm.iprobe(source, tag, status))
            found = comm.recv(None, source, tag, status)
        finish(status, found)


@dataclass(frozen=True, repr=False)
class ObjectExchange(Act):
    """Each rank sends an object to one at a distance and receives one from the other side."""

    way: str = "sendrecv"
    distance: int = 1
    kind: str = "small"
    done: str = "wait"
    after: int = 0

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, name, tag = run.comms.of(self, index), f"{index} {self.way}", FIRST_TAG + index
        to, source = (comm.rank + self.distance) % comm.size, (comm.rank - self.distance) % comm.size
        sent = made(run, self.kind, index, comm.rank)

        def finish(status: Any, found: Any) -> None:
            run.note(name, found)

        entries = []
        if self.way == "sendrecv":
            finish(None, comm.sendrecv(sent, to, tag, None, source, tag))
        else:
            for each in self.way.split():
                if each == "recv":
                    finish(None, comm.recv(None, source, tag))
                elif each == "irecv":
                    request = comm.irecv(bytearray(ROOM), source, tag)
                    entries.append(Entry(name, request, finish, has_object=True))
                else:
                    request = getattr(comm, each)(sent, to, tag)
                    if request is not None:
                        entries.append(Entry(f"{name} {each}", request, lambda *_: None, has_object=True))
        run.complete(entries, self.done, self.after)
        yield from ()


@dataclass(frozen=True, repr=False)
class ObjectCollective(Act):
    """An object of each rank, or of root."""

    name: str = "bcast"
    root: int = 0
    kind: str = "small"
    op: str = "SUM"

    def legal(self) -> ObjectCollective:
        """Add numbers only."""
        if "reduce" in self.name and self.op not in ("SUM", "PROD"):  # an array has no greatest of two
            return dataclasses.replace(self, kind="int")
        if "reduce" in self.name and self.kind not in SUMMABLE:
            return dataclasses.replace(self, kind="small")
        return self

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm = run.comms.of(self, index)
        root = self.root % comm.size
        at_root = comm.rank == root
        name, op = f"{index} {self.name}", getattr(run.MPI, self.op)

        def own(which: int = 0) -> Any:
            return made(run, self.kind, index, comm.rank, which)

        match self.name:
            case "bcast":
                found = comm.bcast(own() if at_root else None, root)
            case "gather":
                found = comm.gather(own(), root)
            case "scatter":
                found = comm.scatter([own(which) for which in range(comm.size)] if at_root else None, root)
            case "allgather":
                found = comm.allgather(own())
            case "alltoall":
                found = comm.alltoall([own(which) for which in range(comm.size)])
            case "allreduce":
                found = comm.allreduce(own(), op)
            case _:
                found = comm.reduce(own(), op, root)
        run.note(name, found)
        yield from ()
