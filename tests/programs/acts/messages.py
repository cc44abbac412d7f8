"""Messages between two ranks, and exchanges in a ring."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..completing import Entry
from ..memory import ENVELOPE, Area, pattern
from ..program import PLAIN, Act, Buffer

if TYPE_CHECKING:
    from ..execute import Run

BLOCKING = ("Send", "Ssend", "Bsend", "Rsend")
NONBLOCKING = ("Isend", "Issend", "Ibsend", "Irsend")
LOCAL = ("Bsend", *NONBLOCKING)  # these do not wait for the receiver
RECEIVES = ("Recv", "Irecv", "Probe", "Iprobe", "Mprobe", "Improbe", "Mprobe Irecv", "Probe Irecv")
FIRST_TAG = 100  # of those that belong to one act


def may_be_to_itself(act: Any) -> bool:
    """Return whether a message is to the rank that sends it, on some number of ranks from 2 to 4."""
    return act.comm == "halves" or (act.source - act.dest) % 12 not in (1, 5, 7, 11)


def is_mixed(act: Any) -> bool:
    """Return whether a host array receives a device array."""
    return bool(act.recvbuf.place == "host" and act.sendbuf.place != "host")


def room(act: Any) -> int:
    """Return the elements of a receive buffer: a host array that receives a device array needs more."""
    extra = -(-ENVELOPE // int(act.recvbuf.dtype[1:])) if is_mixed(act) else 0
    return int(act.count + extra + act.spare)


@dataclass(frozen=True, repr=False)
class Message(Act):
    """One message; its receive may be posted first, and either end later than the other."""

    source: int = 0
    dest: int = 1
    count: int = 3
    tag: int = -1  # one of its own
    send: str = "Send"
    receive: str = "Recv"
    sendbuf: Buffer = PLAIN
    recvbuf: Buffer = PLAIN
    receive_first: bool = False
    gap: int = 0  # acts between the two ends
    wild: str = ""  # ANY_SOURCE, ANY_TAG, or both
    temporary: bool = False  # the send buffer is dropped after the call
    beside: bool = False  # the receiver stores beside its buffer while the receive is open
    spare: int = 0
    sent: str = "Wait"
    received: str = "Wait"
    sent_after: int = 0
    received_after: int = 0

    def legal(self) -> Message:
        """Choose modes that do not wait where the other end comes later, and what MPI asks of them."""
        send, receive = self.send, self.receive
        to_itself = may_be_to_itself(self)
        if send in ("Rsend", "Irsend") and not (self.receive_first and self.comm in ("base", "dup")):
            send = "Isend"
        if send not in LOCAL and (to_itself or (self.gap and not self.receive_first)):
            send = "Isend"
        if self.receive_first:
            receive = "Irecv"
        changes = {
            "send": send,
            "receive": receive,
            "received_after": max(self.received_after, self.gap + 1 if self.receive_first else 0),
            "sent_after": max(self.sent_after, 0 if self.receive_first or send not in NONBLOCKING else self.gap + 1),
            "temporary": self.temporary and self.sent not in ("drop", "free"),  # the program has to keep these
            "recvbuf": dataclasses.replace(self.recvbuf, dtype=self.sendbuf.dtype),
        }
        return dataclasses.replace(self, **changes)

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm = run.comms.of(self, index)
        source, dest = self.source % comm.size, self.dest % comm.size
        tag = FIRST_TAG + index if self.tag < 0 else self.tag
        if self.receive_first:
            if comm.rank == dest:
                self._receive(run, comm, index, source, tag)
            if self.gap:
                yield self.gap
            if self.send in ("Rsend", "Irsend"):
                run.token(dest, source)
            if comm.rank == source:
                self._send(run, comm, index, dest, tag)
            return
        if comm.rank == source:
            self._send(run, comm, index, dest, tag)
        if self.gap:
            yield self.gap
        if comm.rank == dest:
            self._receive(run, comm, index, source, tag)

    def _send(self, run: Run, comm: Any, index: int, dest: int, tag: int) -> None:
        dtype, name = self.sendbuf.dtype, f"{index} {self.send}"
        area = Area(run, self.sendbuf, self.count, values=pattern(dtype, self.count, index, self.source))
        request = getattr(comm, self.send)(area.argument(), dest, tag)
        if self.temporary:
            nbytes = len(area.memory)
            area = None
            run.churn(nbytes)
        elif self.sent == "drop":
            run.kept.append(area)

        def finish(status: Any, found: Any) -> None:
            if area is not None:
                run.note(f"{name} buffer", area.all())

        if request is None:
            finish(None, None)
        elif self.sent == "free":
            run.kept.append(area)
            request.Free()
        elif self.sent != "drop":
            run.later(Entry(name, request, finish), self.sent, self.sent_after)

    def _receive(self, run: Run, comm: Any, index: int, source: int, tag: int) -> None:
        MPI, name = run.MPI, f"{index} {self.receive}"
        area = Area(run, self.recvbuf, room(self))
        if "source" in self.wild:
            source = MPI.ANY_SOURCE
        if "tag" in self.wild:
            tag = MPI.ANY_TAG
        status = MPI.Status()
        request = self._start(run, comm, area, source, tag, status)
        if request is not None and self.beside:
            area.beside()

        def finish(status: Any, found: Any) -> None:
            run.note(f"{name} status", status)
            run.note(f"{name} data", area.read(self.count))

        if request is None:
            finish(status, None)
        else:
            run.later(Entry(name, request, finish, is_mixed=is_mixed(self)), self.received, self.received_after)

    def _start(self, run: Run, comm: Any, area: Area, source: int, tag: int, status: Any) -> Any:
        """Receive; return the request of a receive that is nonblocking."""
        argument, way = area.argument(), self.receive
        if "probe" in way.lower():
            found = run.MPI.Status()
            if way == "Improbe":
                message = run.loop(lambda: comm.Improbe(source, tag, found))
            elif way.startswith("M"):
                message = comm.Mprobe(source, tag, found)
            elif way == "Iprobe":
                run.loop(lambda: comm.Iprobe(source, tag, found))
            else:
                comm.Probe(source, tag, found)
            run.note(f"{way}", found)
            if way.startswith(("M", "Im")):
                if way.endswith("Irecv"):
                    return message.Irecv(argument)
                message.Recv(argument, status)
                return None
            source, tag = found.source, found.tag
        if way.endswith("Irecv"):
            return comm.Irecv(argument, source, tag)
        comm.Recv(argument, source, tag, status)
        return None


@dataclass(frozen=True, repr=False)
class Exchange(Act):
    """Each rank sends to one at a distance and receives from the other side, all in one act."""

    way: str = "Sendrecv"
    distance: int = 1
    count: int = 3
    sendbuf: Buffer = PLAIN
    recvbuf: Buffer = PLAIN
    temporary: bool = False
    spare: int = 0
    done: str = "Wait"
    after: int = 0

    def legal(self) -> Exchange:
        """Use one datatype, and one buffer where there is only one."""
        recvbuf = dataclasses.replace(self.recvbuf, dtype=self.sendbuf.dtype)
        return dataclasses.replace(self, recvbuf=self.sendbuf if "replace" in self.way else recvbuf)

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, name = run.comms.of(self, index), f"{index} {self.way}"
        to, source = (comm.rank + self.distance) % comm.size, (comm.rank - self.distance) % comm.size
        tag, status = FIRST_TAG + index, run.MPI.Status()
        values = pattern(self.sendbuf.dtype, self.count, index, comm.rank)
        send = Area(run, self.sendbuf, self.count, values=values)
        recv = Area(run, self.recvbuf, room(self))
        if "replace" in self.way:
            recv = send

        def finish(status: Any, found: Any) -> None:
            run.note(f"{name} status", status)
            run.note(f"{name} data", recv.read(self.count))

        def sent(status: Any, found: Any) -> None:
            """Note nothing."""

        entries = []
        if "replace" in self.way:
            request = getattr(comm, self.way)(recv.argument(), to, tag, source, tag, *self._status(status))
            entries = [Entry(name, request, finish, is_mixed=is_mixed(self))] if request else []
        elif self.way in ("Sendrecv", "Isendrecv"):
            out = send.argument()
            request = getattr(comm, self.way)(out, to, tag, recv.argument(), source, tag, *self._status(status))
            entries = [Entry(name, request, finish, is_mixed=is_mixed(self))] if request else []
        else:
            first, second = self.way.split()
            requests: dict[str, Any] = {}
            for each in (first, second):
                if each.lower().endswith("send"):
                    requests["send"] = getattr(comm, each)(send.argument(), to, tag)
                elif each == "Recv":
                    comm.Recv(recv.argument(), source, tag, status)
                else:
                    requests["recv"] = comm.Irecv(recv.argument(), source, tag)
            entries = [
                Entry(f"{name} {end}", request, finish if end == "recv" else sent, is_mixed=is_mixed(self))
                for end, request in requests.items()
                if request is not None
            ]
        if not any(entry.finish is finish for entry in entries):
            finish(status, None)
        if self.temporary and send is not recv:
            nbytes = len(send.memory)
            send = out = None
            run.churn(nbytes)
        run.complete(entries, self.done, self.after)
        yield from ()

    def _status(self, status: Any) -> list[Any]:
        return [] if self.way.startswith("I") else [status]
