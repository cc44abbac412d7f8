"""Perform a program on one rank, and note what came out of it."""

from __future__ import annotations

import functools
import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .communicators import Alone, Communicators
from .completing import ALONE, Entry, complete
from .memory import MPI_NAMES, Place, positions
from .program import Act, Buffer, OneOf, Program

PAUSE_S = 0.003  # of a rank that is late
# Seconds that a loop of tests may take: longer than the job's TIMEOUT_S, and shorter than its HANG_S.
PATIENCE_S = 25.0


@dataclass
class Side:
    """What a rank has for all programs: the library under test, and mpi4py beside it."""

    MPI: Any  # mpi4py.MPI, or pyncclx.MPI
    mpi: Any  # mpi4py.MPI
    world: Any  # a communicator of the library
    beside: Any  # a duplicate of mpi4py's, for what the programs themselves do not do
    place: Place
    has_partitions: bool
    aborts: bool = False  # whether an exception that nothing catches ends the job
    lasting: dict[Any, Any] = field(default_factory=dict)  # communicators that programs share


class Run:
    """One program on one rank; or what one of its threads does, on a communicator of its own."""

    def __init__(self, side: Side, program: Program, comms: Communicators | None = None, first: int = 0) -> None:
        self.side, self.program, self.first = side, program, first
        self.MPI, self.mpi, self.place = side.MPI, side.mpi, side.place
        self.comms = comms or Communicators(side, program)
        self.notes: list[tuple[str, Any]] = []
        self.at = ""  # what it does, for reports of hangs
        self.now = 0
        self.inactive: list[Any] = []  # persistent requests, not started
        self.kept: list[Any] = []  # until the program's end
        self._pending: list[tuple[int, str, Entry]] = []
        self._datatypes: dict[tuple[Any, ...], Any] = {}

    def perform(self) -> None:
        """Perform all acts, then what is left of each."""
        waiting: list[tuple[int, int, Iterator[int]]] = []
        acts = self.program.acts
        for self.now in itertools.count():
            self._complete_due()
            while waiting and waiting[0][0] <= self.now:
                _, number, generator = heapq.heappop(waiting)
                self._go_on(waiting, number, generator)
            if self.now < len(acts):
                number = self.first + self.now
                self._go_on(waiting, number, self._begin(acts[self.now], number))
            elif not waiting and not self._pending:
                break
        self.at = "the end"
        for request in self.inactive:
            request.Free()
        if not isinstance(self.comms, Alone):
            self.side.beside.Barrier()  # MPI goes on with what was dropped only in its calls
            self.kept.clear()
        if self.MPI is not self.mpi:
            for comm in self.comms.all():
                comm.synchronize()  # raises what kernels have recorded, which a later program would raise otherwise
        self.comms.close()
        for datatype in self._datatypes.values():
            datatype.Free()

    def _begin(self, act: Act, number: int) -> Iterator[int]:
        if act.late == self.comms.rank:
            time.sleep(PAUSE_S)
        return act.perform(self, number)

    def _go_on(self, waiting: list[tuple[int, int, Iterator[int]]], number: int, generator: Iterator[int]) -> None:
        self.at = f"act {number}"
        delay = next(generator, None)
        if delay is not None:
            heapq.heappush(waiting, (self.now + max(delay, 1), number, generator))

    def _complete_due(self) -> None:
        due = [each for each in self._pending if each[0] <= self.now]
        self._pending = [each for each in self._pending if each[0] > self.now]
        alone = [each for each in due if each[1] in ALONE]
        groups = [each for each in due if each[1] not in ALONE]
        for _, way, entry in alone:
            self.complete([entry], way)
        if groups:
            self.complete([each[2] for each in groups], groups[0][1])

    def later(self, entry: Entry, way: str, delay: int) -> None:
        """Complete a request: now, or `delay` acts later, with others that are then due."""
        if delay == 0:
            self.complete([entry], way)
        else:
            self._pending.append((self.now + delay, way, entry))

    def complete(self, entries: list[Entry], way: str, delay: int = 0) -> None:
        """Complete requests together: now, or `delay` acts later, with others that are then due."""
        for entry in entries if delay else ():
            self.later(entry, way, delay)
        if entries and not delay:
            self.at = f"{way} of {', '.join(entry.name for entry in entries)}"
            complete(self, entries, way)

    def note(self, label: str, value: Any) -> None:
        """Note a result, to be compared."""
        self.notes.append((label, plain(self, value)))

    def attempt(self, label: str, call: Callable[[], Any]) -> Any:
        """Note the class of the exception that a call raises, or that it raises none."""
        try:
            result = call()
        except Exception as error:
            self.note(label, described(self, error))
            return None
        self.note(label, "no exception")
        return result

    def loop(self, ask: Callable[[], Any]) -> Any:
        """Ask until the answer is true; return it."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            answer = ask()
            if answer:
                return answer
            time.sleep(0.0003)
        raise TimeoutError(f"{self.at}: not true for {PATIENCE_S:g} s")

    def datatype(self, buffer: Buffer, count: int) -> Any:
        """Return a derived datatype, which is freed at the program's end."""
        key = (buffer.dtype, buffer.layout, count)
        if key not in self._datatypes:
            basic = getattr(self.MPI, MPI_NAMES[buffer.dtype])
            if buffer.layout == "strided":
                made = basic.Create_vector(count, 1, 2)
            elif buffer.layout == "before":
                made = basic.Create_vector(count, 1, -2)
            elif buffer.layout == "pairs" and count % 2 == 0:
                made = basic.Create_vector(count // 2, 2, 5)
            else:
                made = basic.Create_indexed_block(1, positions(buffer.layout, count).tolist())
            self._datatypes[key] = made.Commit()
        return self._datatypes[key]

    def churn(self, nbytes: int) -> None:
        """Take and overwrite memory as long as what the program has just dropped."""
        for _ in range(3):
            self.place.store(self.place.device(nbytes), np.full(nbytes, 0x5C, "u1"))

    def token(self, source: int, dest: int) -> None:
        """Let rank `dest` go on only after rank `source` has come here."""
        rank = self.side.beside.rank
        if rank == source:
            self.side.beside.Send(b"", dest, 1)
        if rank == dest:
            self.side.beside.Recv(bytearray(0), source, 1)


def plain(run: Run, value: Any) -> Any:
    """Return a value whose arrays are NumPy's."""
    if isinstance(value, dict):
        return {key: plain(run, each) for key, each in value.items()}
    if isinstance(value, OneOf):
        return OneOf(plain(run, value.values))
    if isinstance(value, (list, tuple)):
        return type(value)(plain(run, each) for each in value)
    if isinstance(value, run.MPI.Status):
        return value.source, value.tag, value.Get_count(run.MPI.BYTE), value.Is_cancelled()
    if hasattr(value, "__cuda_array_interface__"):
        return run.place.on_host(value)
    return value.copy() if isinstance(value, np.ndarray) else value


def described(run: Run, error: BaseException) -> str:
    """Return the class of an exception, of MPI's its error class."""
    if isinstance(error, run.mpi.Exception):
        return f"MPI {error_names(run.mpi).get(error.Get_error_class(), 'of another class')}"
    return type(error).__name__


@functools.cache
def error_names(mpi: Any) -> dict[int, str]:
    """Return the names of MPI's error classes."""
    names = [name for name in dir(mpi) if name.startswith("ERR_")]
    codes = {getattr(mpi, name) for name in names}
    return {code: "/".join(name for name in names if getattr(mpi, name) == code) for code in codes}
