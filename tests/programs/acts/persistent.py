"""Persistent messages and collectives, and messages in partitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..completing import ALONE, Entry
from ..memory import Area, pattern
from ..program import PLAIN, Act, Buffer
from .collectives import Arguments, Collective
from .messages import FIRST_TAG

if TYPE_CHECKING:
    from ..execute import Run


def started(run: Run, requests: list[Any], *, together: bool) -> None:
    """Start persistent requests, which are then no longer inactive."""
    run.inactive = [each for each in run.inactive if not any(each is request for request in requests)]
    if together:
        run.MPI.Prequest.Startall(requests)
    else:
        for request in requests:
            request.Start()


@dataclass(frozen=True, repr=False)
class PersistentMessages(Act):
    """Each rank sends to one at a distance and receives from the other side, several times by the same requests."""

    distance: int = 1
    count: int = 3
    rounds: int = 2
    send: str = "Send_init"
    receive: str = "Recv_init"  # or Irecv
    sendbuf: Buffer = PLAIN
    recvbuf: Buffer = PLAIN
    receive_first: bool = True
    together: bool = False
    wild: bool = False
    gap: int = 1  # acts from one round to the next
    done: str = "Wait"
    after: int = 0

    def legal(self) -> PersistentMessages:
        """Let host arrays receive what host arrays send: persistent receives take no others."""
        recvbuf = dataclasses.replace(self.recvbuf, dtype=self.sendbuf.dtype)
        sendbuf = dataclasses.replace(self.sendbuf, place="host") if recvbuf.place == "host" else self.sendbuf
        return dataclasses.replace(self, sendbuf=sendbuf, recvbuf=recvbuf)

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, name, tag = run.comms.of(self, index), f"{index} {self.send}", FIRST_TAG + index
        to, source = (comm.rank + self.distance) % comm.size, (comm.rank - self.distance) % comm.size
        send, recv = Area(run, self.sendbuf, self.count), Area(run, self.recvbuf, self.count)
        origin = run.MPI.ANY_SOURCE if self.wild else source
        sending = getattr(comm, self.send)(send.argument(), to, tag)
        receiving = comm.Recv_init(recv.argument(), origin, tag) if self.receive == "Recv_init" else None
        run.inactive += [each for each in (receiving, sending) if each is not None]

        def received(status: Any, found: Any) -> None:
            run.note(f"{name} status", status)
            run.note(f"{name} data", recv.read())

        for turn in range(self.rounds):
            yield self.gap
            send.initial[send.where] = pattern(self.sendbuf.dtype, self.count, index, comm.rank, turn)
            send.put(send.initial)
            recv.put(recv.initial)
            entries = [Entry(f"{name} receive", receiving, received, is_persistent=True)]
            if receiving is None:
                entries = [Entry(f"{name} receive", comm.Irecv(recv.argument(), origin, tag), received)]
            elif self.together:
                started(run, [receiving, sending], together=True)
            elif self.receive_first:
                started(run, [receiving, sending], together=False)
            else:
                started(run, [sending, receiving], together=False)
            if receiving is None:
                started(run, [sending], together=False)
            entries.append(Entry(f"{name} send", sending, lambda *_: None, is_persistent=True))
            run.complete(entries, self.done, self.after)
            if self.after:
                yield self.after


@dataclass(frozen=True, repr=False)
class PersistentCollectives(Act):
    """Several collectives, prepared in one order, and started by each rank in an order of its own."""

    calls: tuple[Collective, ...] = (Collective(), Collective())
    rounds: int = 2
    order: int = 0  # what the ranks' orders are drawn from; 0: all in the order of the preparation
    together: bool = False
    done: str = "Waitall"
    after: int = 0

    def legal(self) -> PersistentCollectives:
        """Complete all by one call, or each by its own."""
        calls = tuple(dataclasses.replace(call, mode="persistent", temporary=False).legal() for call in self.calls)
        return dataclasses.replace(self, calls=calls)

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm = run.comms.of(self, index)
        made = [Arguments(call, run, comm, index + 3 * number) for number, call in enumerate(self.calls)]
        requests = [getattr(comm, f"{each.act.name}_init")(*each.arguments) for each in made]
        run.inactive += requests
        for turn in range(self.rounds):
            order = np.random.default_rng([self.order, comm.rank, turn]).permutation(len(made)).tolist()
            for each in made:
                if each.recv is not None:
                    each.recv.put(each.recv.initial)
            chosen = order if self.order else range(len(made))
            started(run, [requests[number] for number in chosen], together=self.together)
            for number, each in enumerate(made):
                name = f"{index} {each.act.name}_init {number} in round {turn}"

                def finish(status: Any, found: Any, each: Arguments = each, name: str = name) -> None:
                    run.note(name, each.read())

                entry = Entry(name, requests[number], finish, is_persistent=True)
                run.later(entry, self.done, self.after)
            yield self.after + 1


def made_partitioned(run: Run, comm: Any, area: Area, parts: int, other: int, tag: int, *, sends: bool) -> Any:
    """Prepare one end of a message in partitions; where there are none, of a message as a whole.

    Open MPI's hang beside communicators that are made, so that they are no oracle; pyncclx has none between nodes.
    """
    if not run.side.has_partitions:
        return (comm.Send_init if sends else comm.Recv_init)(area.argument(), other, tag)
    make = comm.Psend_init if sends else comm.Precv_init
    return make([area.argument(), area.count // parts, run.MPI.DOUBLE], parts, other, tag)


@dataclass(frozen=True, repr=False)
class Partitioned(Act):
    """A message in partitions from one rank to another, several times; the ends may begin at different times."""

    source: int = 0
    dest: int = 1
    count: int = 12
    parts: tuple[int, int] = (2, 3)
    rounds: int = 2
    backwards: bool = False  # the order in which partitions are ready
    receive_first: bool = False
    gap: int = 0
    after: int = 0
    done: str = "Wait"

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, name = run.comms.of(self, index), f"{index} partitioned"
        source, dest = self.source % comm.size, self.dest % comm.size
        if source == dest:
            return
        sender, receiver = (comm.rank == end for end in (source, dest))
        area = Area(run, Buffer(), self.count)
        request: Any = None

        def finish(status: Any, found: Any) -> None:
            if receiver:
                run.note(name, area.read())

        for turn in range(self.rounds):
            for first in (True, False):
                if first == (receiver if self.receive_first else sender) and (sender or receiver):
                    other, parts = (dest, self.parts[0]) if sender else (source, self.parts[1])
                    request = request or made_partitioned(run, comm, area, parts, other, index, sends=sender)
                    self._start(run, area, request, sender, (index, turn))
                if first and self.gap:
                    yield self.gap
            if request is not None:
                run.later(Entry(name, request, finish), self.done if self.done in ALONE else "Wait", self.after)
            yield self.after + 1
        if request is not None:
            request.Free()

    def _start(self, run: Run, area: Area, request: Any, sender: bool, keys: tuple[int, int]) -> None:
        """Begin a round; the sender says that all partitions are ready."""
        if sender:
            area.initial[area.where] = pattern("f8", self.count, *keys)
        area.put(area.initial)
        request.Start()
        if sender and run.side.has_partitions:
            parts = range(self.parts[0])
            for part in reversed(parts) if self.backwards else parts:
                request.Pready(part)
