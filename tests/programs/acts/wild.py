"""Receives and probes of any tag beside messages in partitions, which match none of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..completing import Entry
from ..memory import Area, pattern
from ..program import PLAIN, Act, Buffer
from .matching import NEXT_TAG
from .messages import is_mixed, room
from .persistent import made_partitioned, started

if TYPE_CHECKING:
    from ..execute import Run

PROBES = ("Probe", "Mprobe", "Iprobe", "Improbe")
BEGINNINGS = ("Irecv", "Recv_init", "Isendrecv", "Isendrecv_replace", "irecv")


@dataclass(frozen=True, repr=False)
class AnyTag(Act):
    """A message that is found by any tag, beside a message in partitions between the same two ranks, each way."""

    comm: str = "own"  # where no other message is
    source: int = 0
    dest: int = 1
    count: int = 12
    parts: tuple[int, int] = (2, 3)
    probe: str = "Probe"

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm, name = run.comms.of(self, index), f"{index} beside partitions"
        source, dest = self.source % comm.size, self.dest % comm.size
        if source == dest or comm.rank not in (source, dest):
            return
        area, sends = Area(run, Buffer(), self.count), comm.rank == source
        request = None if sends else made_partitioned(run, comm, area, self.parts[1], source, index, sends=False)
        if request is not None:
            area.put(area.initial)
            request.Start()
        run.token(dest, source)
        if sends:
            run.note(f"{name} nothing", bool(comm.Iprobe(run.MPI.ANY_SOURCE, run.MPI.ANY_TAG)))
        run.token(source, dest)
        self._message(run, comm, dest, source, index)
        if sends:
            request = made_partitioned(run, comm, area, self.parts[0], dest, index, sends=True)
            area.initial[area.where] = pattern("f8", self.count, index)
            area.put(area.initial)
            request.Start()
            if run.side.has_partitions:
                request.Pready_range(0, self.parts[0] - 1)
        self._message(run, comm, source, dest, index)
        request.Wait()
        run.note(name, area.read())
        request.Free()
        yield from ()

    def _message(self, run: Run, comm: Any, source: int, dest: int, index: int) -> None:
        """Send a message, and find it by any tag."""
        if comm.rank == source:
            sent = Area(run, PLAIN, 3, values=pattern("f8", 3, index, source))
            comm.Send(sent.argument(), dest, NEXT_TAG)
            return
        recv, status, wild = Area(run, PLAIN, 3), run.MPI.Status(), (run.MPI.ANY_SOURCE, run.MPI.ANY_TAG)
        probe = getattr(comm, self.probe)
        found = run.loop(lambda: probe(*wild, status)) if self.probe.startswith("I") else probe(*wild, status)
        if "mprobe" in self.probe.lower():
            found.Recv(recv.argument(), status)
        else:
            comm.Recv(recv.argument(), *wild, status)
        run.note(f"{index} {self.probe} of any tag", (status, recv.read()))


@dataclass(frozen=True, repr=False)
class OpenOfAnyTag(Act):
    """Two ranks receive by any tag while messages in partitions go from one to the other.

    The messages that they receive are sent afterwards. Where there are no partitions, messages on another communicator
    take their place.
    """

    comm: str = "own"
    source: int = 0
    dest: int = 1
    count: int = 12
    parts: tuple[int, int] = (2, 3)
    requests: int = 1  # in partitions
    begin: str = "Irecv"
    wild: bool = False  # of any source, too
    second: bool = False  # whether a receive of the messages' tag is posted behind
    length: int = 3  # of each message
    sendbuf: Buffer = PLAIN
    recvbuf: Buffer = PLAIN
    spare: int = 0
    done: str = "Wait"

    def legal(self) -> OpenOfAnyTag:
        """Let persistent receives of host arrays take no device arrays, and objects no buffers."""
        recvbuf = dataclasses.replace(self.recvbuf, dtype=self.sendbuf.dtype)
        hosts = recvbuf.place == "host" and self.begin == "Recv_init"
        sendbuf = dataclasses.replace(self.sendbuf, place="host") if hosts else self.sendbuf
        second = self.second and self.begin != "irecv"
        return dataclasses.replace(self, recvbuf=recvbuf, sendbuf=sendbuf, second=second)

    def duplicates(self) -> int:
        return 2

    def perform(self, run: Run, index: int) -> Iterator[int]:
        comm = run.comms.of(self, index)
        source, dest = self.source % comm.size, self.dest % comm.size
        if source == dest or comm.rank not in (source, dest):
            return
        other = dest if comm.rank == source else source
        entries = [self._begin(run, comm, other, index)]
        if self.second:
            recv = Area(run, self.recvbuf, self._room())
            request = comm.Irecv(recv.argument(), other, NEXT_TAG)
            entries.append(self._entry(run, f"{index} second", request, recv))
        run.token(source, dest)
        run.token(dest, source)
        self._partitions(run, comm if run.side.has_partitions else run.comms.of(self, index, 1), other, index)
        sends = [self._send(run, comm, other, index, number) for number in range(len(entries))]
        run.complete(entries, self.done)
        run.complete(sends, "Waitall")
        if self.begin == "Recv_init":
            run.inactive.remove(entries[0].request)
            entries[0].request.Free()
        yield from ()

    def _room(self) -> int:
        return room(dataclasses.replace(self, count=self.length))

    def _begin(self, run: Run, comm: Any, other: int, index: int) -> Entry:
        """Begin the receive of any tag."""
        MPI, name = run.MPI, f"{index} {self.begin} of any tag"
        source = MPI.ANY_SOURCE if self.wild else other
        if self.begin == "irecv":
            request = comm.irecv(bytearray(4096), source, MPI.ANY_TAG)
            return Entry(name, request, lambda status, found: run.note(name, found), has_object=True)
        recv = Area(run, self.recvbuf, self._room())
        argument = recv.argument()
        if self.begin == "Isendrecv":
            request = comm.Isendrecv([bytearray(0), MPI.BYTE], MPI.PROC_NULL, 0, argument, source, MPI.ANY_TAG)
        elif self.begin == "Isendrecv_replace":
            request = comm.Isendrecv_replace(argument, MPI.PROC_NULL, 0, source, MPI.ANY_TAG)
        else:
            request = getattr(comm, self.begin)(argument, source, MPI.ANY_TAG)
        if self.begin == "Recv_init":
            started(run, [request], together=False)
        return self._entry(run, name, request, recv, is_persistent=self.begin == "Recv_init")

    def _entry(self, run: Run, name: str, request: Any, recv: Area, *, is_persistent: bool = False) -> Entry:
        def finish(status: Any, found: Any) -> None:
            run.note(name, (status, recv.read(self.length)))

        return Entry(name, request, finish, is_persistent=is_persistent, is_mixed=is_mixed(self))

    def _send(self, run: Run, comm: Any, other: int, index: int, number: int) -> Entry:
        if self.begin == "irecv":
            request = comm.isend({"of": comm.rank, "in": index}, other, NEXT_TAG)
        else:
            values = pattern(self.sendbuf.dtype, self.length, index, comm.rank, number)
            request = comm.Isend(Area(run, self.sendbuf, self.length, values=values).argument(), other, NEXT_TAG)
        return Entry(f"{index} send {number}", request, lambda *_: None, has_object=self.begin == "irecv")

    def _partitions(self, run: Run, comm: Any, other: int, index: int) -> None:
        """Send the messages in partitions, and wait for them."""
        sends = comm.rank == self.source % comm.size
        areas = [Area(run, Buffer(), self.count) for _ in range(self.requests)]
        parts, requests = self.parts[not sends], []
        for number, area in enumerate(areas):
            if sends:
                area.initial[area.where] = pattern("f8", self.count, index, number)
            area.put(area.initial)
            request = made_partitioned(run, comm, area, parts, other, number, sends=sends)
            request.Start()
            if sends and run.side.has_partitions:
                request.Pready_range(0, parts - 1)
            requests.append(request)
        for number, (area, request) in enumerate(zip(areas, requests, strict=True)):
            request.Wait()
            run.note(f"{index} partitions {number}", area.read())
            request.Free()
