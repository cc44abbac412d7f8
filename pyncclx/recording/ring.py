"""The ring that a process writes its calls into."""

from __future__ import annotations

import atexit
import itertools
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mpi4py import MPI

from ..system.process import PerProcess, in_children
from . import folders, layout
from .facts import facts_of_process, is_on, place
from .layout import CAPACITY, ENTRY, FACTS, Facts, Header, Live

now = time.monotonic_ns
_ROUND = 64
_ENDED_NBYTES = 8  # of `Facts.ended_ns`, the last
# Of entries, by sequence numbers from 1 on
_OFFSETS = [layout.HEADER_NBYTES + (sequence % CAPACITY) * ENTRY.size for sequence in range(1, CAPACITY + 1)]


#: Called with the ring of the process once it is made.
when_made: list[Callable[[Ring], object]] = []


class _Released(NamedTuple):
    """The place of a text to which entries up to a sequence number refer."""

    place: int
    length: int
    sequence: int


class Ring:
    """The last calls of this process.

    Parameters
    ----------
    memory : mmap
        Of `layout.NBYTES` zeroed bytes.
    path : Path or None
        Of the file that is mapped; None: the memory is this process's alone.

    Attributes
    ----------
    facts : dict
        What the process is.
    failures : list of dict
        What has been raised, for the others.
    """

    def __init__(self, memory: mmap.mmap, path: Path | None = None) -> None:
        self.memory, self.path = memory, path
        # Advanced together, in one call of C: two threads never get each other's.
        self._offsets, self._sequences = itertools.cycle(_OFFSETS), itertools.count(1)
        self._next = zip(self._offsets, self._sequences, strict=False).__next__
        self._texts: dict[str, int] = {"": 0}
        self._released: list[_Released] = []
        self._lock = threading.RLock()
        pid = os.getpid()
        self._header = Header(
            entry_nbytes=ENTRY.size,
            texts_offset=layout.TEXTS_OFFSET,
            pid=pid,
            realtime_ns=time.time_ns() - now(),
            started=folders.started(pid),
        )
        self.facts, self.failures = facts_of_process(), list[dict[str, Any]]()
        self._change(facts=self.text(json.dumps(self.facts)))

    # The header

    def _change(self, **fields: Any) -> None:
        with self._lock:
            self._header = self._header._replace(**fields)
            layout.HEADER.pack_into(self.memory, 0, *self._header)

    @property
    def state(self) -> int:
        """RUNNING, ENDED or FAILED."""
        return self._header.state

    def is_now(self, state: int) -> None:
        """Change the state of this process, unless it has failed; a process that was forked off changes nothing."""
        if self._header.state == layout.RUNNING and os.getpid() == self._header.pid:
            self._change(state=state)

    def live(self, live: Live) -> None:
        """Show what the process waits for."""
        layout.LIVE.pack_into(self.memory, layout.LIVE_OFFSET, *live)

    def shown(self) -> Live:
        """Return what it shows."""
        return Live(*layout.LIVE.unpack_from(self.memory, layout.LIVE_OFFSET))

    # Texts

    def text(self, text: str) -> int:
        """Return the reference of a text, which is written at its first use; that of none if there is no room."""
        found = self._texts.get(text)
        return self._write(text) if found is None else found

    def passing_text(self, text: str) -> int:
        """Return the reference of a text of its own, for what ends before the process, as communicators do."""
        data = text.encode(errors="replace")
        data = data.ljust(-(-len(data) // _ROUND) * _ROUND)  # so that it fits the place of another
        with self._lock:
            _, sequence = self._next()  # a number that no entry gets
            for released in self._released:  # in their order
                if sequence - released.sequence <= CAPACITY:
                    break
                if released.length >= len(data):
                    self._released.remove(released)
                    return self._put(released.place, data)
            return self._append(data)

    def release(self, place: int) -> None:
        """Note that no more entries will refer to a passing text."""
        if place:
            offset = layout.TEXTS_OFFSET + place
            length = int.from_bytes(self.memory[offset : offset + 4], "little")
            self._released.append(_Released(place, length, self._next()[1]))

    def _write(self, text: str) -> int:
        with self._lock:
            return self._texts.setdefault(text, self._append(text.encode(errors="replace")))

    def _append(self, data: bytes) -> int:
        place = self._header.texts_used
        end = place + 4 + len(data)
        if end > layout.TEXTS_NBYTES:
            return 0
        self._change(texts_used=end)
        return self._put(place, data)

    def _put(self, place: int, data: bytes) -> int:
        offset = layout.TEXTS_OFFSET + place
        self.memory[offset : offset + 4 + len(data)] = len(data).to_bytes(4, "little") + data
        return place

    # Entries

    def add(self, number: int, facts: Facts) -> int:
        """Write an entry, and return its sequence number."""
        return self.add_packed(number, FACTS.pack(*facts))

    def add_packed(self, number: int, facts: bytes) -> int:
        """As `add`, with facts of `FACTS`."""
        offset, sequence = self._next()
        ENTRY.pack_into(self.memory, offset, now(), number, facts, sequence)
        return sequence

    def add_over(self, facts: bytes) -> None:
        """Write the entry of a call without a number that is over at once."""
        offset, sequence = self._next()
        at = now()
        facts = facts[:-_ENDED_NBYTES] + at.to_bytes(_ENDED_NBYTES, "little")
        ENTRY.pack_into(self.memory, offset, at, 0, facts, sequence)

    def number(self, sequence: int, number: int) -> None:
        """Give an entry its number, unless a later one has its place."""
        offset = self._offset_of(sequence)
        if offset:
            self.memory[offset + 8 : offset + 16] = number.to_bytes(8, "little")

    def rewrite(self, sequence: int, facts: Facts) -> None:
        """Change an entry, but for its time, unless a later one has its place."""
        offset = self._offset_of(sequence)
        if offset:
            FACTS.pack_into(self.memory, offset + 16, *facts)

    def end(self, sequence: int) -> None:
        """Note that what an entry is about is over, unless a later one has its place."""
        offset = _OFFSETS[(sequence - 1) % CAPACITY]  # as `_offset_of`; each message ends here
        place, ended = offset + layout.SEQUENCE_OFFSET, offset + layout.ENDED_OFFSET
        if sequence and self.memory[place : place + 8] == sequence.to_bytes(8, "little"):
            self.memory[ended : ended + 8] = now().to_bytes(8, "little")

    def match(self, sequence: int, peer: int, tag: int) -> None:
        """Note which message a receive has got, unless a later entry has its place."""
        offset = self._offset_of(sequence)
        if offset:
            layout.MATCH.pack_into(self.memory, offset + layout.MATCH_OFFSET, peer, tag)

    def _offset_of(self, sequence: int) -> int:
        """Return where an entry is; 0 if a later one has its place."""
        offset = _OFFSETS[(sequence - 1) % CAPACITY]
        place = offset + layout.SEQUENCE_OFFSET
        return offset if sequence > 0 and self.memory[place : place + 8] == sequence.to_bytes(8, "little") else 0

    def writer(self, facts: bytes, numbers: Iterator[int]) -> Callable[[], None]:
        """Return a function that writes an entry with these facts and the next number, for calls that are repeated.

        No code of Python's runs in it: `map` takes the arguments from iterators, and calls with them.
        """
        times, same = iter(now, None), itertools.repeat
        return map(
            ENTRY.pack_into, same(self.memory), self._offsets, times, numbers, same(facts), self._sequences
        ).__next__


def _made() -> Ring | None:
    """The ring of this process, in a file if there can be one; None if PYNCCLX_RECORD turns it off."""
    if not is_on() or sys.is_finalizing():
        return None
    memory, path = _mapped()
    ring = Ring(memory, path)
    for function in when_made:
        function(ring)
    return ring


def _mapped() -> tuple[mmap.mmap, Path | None]:
    try:
        folder = folders.base() / folders.job()
        folder.mkdir(mode=0o700, exist_ok=True)
        folders.clean(folder)
        path = folder / f"{place()[0]}-{os.getpid()}{folders.SUFFIX}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, layout.NBYTES)  # else a full file system would end the process at some call
            return mmap.mmap(file, layout.NBYTES), path
        finally:
            os.close(file)
    except OSError:
        return mmap.mmap(-1, layout.NBYTES), None


def _end() -> None:
    """At the end of the program: the last process of a job takes its folder away, unless one has seen a failure."""
    ring = RING.made
    if ring is not None and ring.path is not None:
        ring.is_now(layout.ENDED_LATER if ring.failures else layout.ENDED)
        with suppress(OSError):
            folders.leave(ring.path)


def _begin_child() -> None:
    """Record nothing in a process that a rank has forked: it is no rank."""
    if MPI.Is_initialized():
        RING.set(None)


RING: PerProcess[Ring | None] = PerProcess(_made)
atexit.register(_end)
in_children(_begin_child)
