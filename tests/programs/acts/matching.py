"""Messages that wait for their receiver, receives that wait in vain, and probes beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..completing import Entry
from ..memory import Area, pattern
from ..program import PLAIN, Act, Buffer
from .messages import FIRST_TAG, is_mixed, room

if TYPE_CHECKING:
    from ..execute import Run

NEXT_TAG = 5000  # a second tag of the same act


@dataclass(frozen=True, repr=False)
class Burst(Act):
    """Many short messages of one tag, which are received after one of another tag that was sent last."""

    source: int = 0
    dest: int = 1
    messages: int = 3
    count: int = 1
    send: str = "Send"
    receive: str = "Recv"
    sendbuf: Buffer = PLAIN
    recvbuf: Buffer = PLAIN
    gap: int = 0
    spare: int = 0

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, tags = run.comms.of(self, index), (FIRST_TAG + index, NEXT_TAG + index)
        source, dest = self.source % comm.size, self.dest % comm.size
        if comm.rank == source:
            for number in range(self.messages):
                values = pattern("f8", self.count, index, number)
                sent = Area(run, self.sendbuf, self.count, values=values)
                getattr(comm, self.send)(sent.argument(), dest, tags[0])
            last = Area(run, self.sendbuf, self.count, values=pattern("f8", self.count, index, 99))
            getattr(comm, self.send)(last.argument(), dest, tags[1])
        if self.gap:
            yield self.gap
        if comm.rank == dest:
            for number, tag in enumerate((tags[1], *([tags[0]] * self.messages))):
                recv = Area(run, self.recvbuf, room(self))
                status = run.MPI.Status()
                if self.receive == "Probe":
                    comm.Probe(source, tag, status)
                    run.note(f"{index} probe {number}", status)
                comm.Recv(recv.argument(), source, tag, status)
                run.note(f"{index} message {number}", (status, recv.read(self.count)))


@dataclass(frozen=True, repr=False)
class Unsent(Act):
    """A receive whose message is sent only after it was looked for, or that is cancelled before."""

    source: int = 0
    dest: int = 1
    count: int = 3
    look: str = "Test"  # Iprobe, Improbe, Cancel, Testall, Get_status
    send: str = "Send"
    sendbuf: Buffer = PLAIN
    recvbuf: Buffer = PLAIN
    wild: bool = False
    done: str = "Wait"
    after: int = 0
    spare: int = 0

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, tag, name = run.comms.of(self, index), FIRST_TAG + index, f"{index} {self.look}"
        source, dest = self.source % comm.size, self.dest % comm.size
        if source == dest:
            return
        recv = Area(run, self.recvbuf, room(self))
        request = None
        if comm.rank == dest:
            request = self._look(run, comm, recv, run.MPI.ANY_SOURCE if self.wild else source, tag, name)
        run.side.beside.Barrier()
        if comm.rank == source:
            sent = Area(run, self.sendbuf, self.count, values=pattern(self.sendbuf.dtype, self.count, index))
            getattr(comm, self.send)(sent.argument(), dest, tag)
        if comm.rank != dest:
            return

        def finish(status: Any, found: Any) -> None:
            run.note(f"{name} message", (status, recv.read(self.count)))

        request = request or comm.Irecv(recv.argument(), source, tag)
        run.later(Entry(name, request, finish, is_mixed=is_mixed(self)), self.done, self.after)
        yield from ()

    def _look(self, run: Run, comm: Any, recv: Area, source: int, tag: int, name: str) -> Any:
        """Look for the message in vain; return the request of an open receive."""
        if "probe" in self.look:
            # no other message may be on its way with a probe of any tag
            run.note(name, bool(getattr(comm, self.look)(source, tag)))
            return None
        request = comm.Irecv(recv.argument(), source, tag)
        if self.look == "Cancel":
            status = run.MPI.Status()
            request.Cancel()
            request.Wait(status)
            run.note(name, status.Is_cancelled())
            return None
        ask = {"Testall": lambda: run.MPI.Request.Testall([request]), "Get_status": request.Get_status}
        run.note(name, ask.get(self.look, request.Test)())
        return request


@dataclass(frozen=True, repr=False)
class Endpoints(Act):
    """Messages of many communicators are open at once."""

    source: int = 0
    dest: int = 1
    communicators: int = 130
    count: int = 3
    sendbuf: Buffer = PLAIN
    recvbuf: Buffer = PLAIN
    spare: int = 0
    done: str = "Waitall"

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, entries = run.comms.of(self, index), []
        made = [comm.Dup() for _ in range(self.communicators)]
        for number, one in enumerate(made):
            if one.rank == self.dest % one.size:
                recv = Area(run, self.recvbuf, room(self))

                def finish(status: Any, found: Any, recv: Area = recv, number: int = number) -> None:
                    run.note(f"{index} communicator {number}", (status, recv.read(self.count)))

                request = one.Irecv(recv.argument(), self.source % one.size, FIRST_TAG)
                entries.append(Entry(f"{index} receive {number}", request, finish, is_mixed=is_mixed(self)))
        for number, one in enumerate(made):
            if one.rank == self.source % one.size:
                sent = Area(run, self.sendbuf, self.count, values=pattern("f8", self.count, index, number))
                request = one.Isend(sent.argument(), self.dest % one.size, FIRST_TAG)
                entries.append(Entry(f"{index} send {number}", request, lambda *_: None))
        run.complete(entries, self.done)
        for one in made:
            one.Free()
        yield from ()
