"""The ring buffer to which a process writes its calls."""

from __future__ import annotations

import atexit
import itertools
import json
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mpi4py import MPI

from mpi_bootstrap.processes import Process, process

from ..system.process import PerProcess, in_children
from . import folders, layout, nvtx_ranges
from .facts import facts_of_process, is_on, place
from .layout import CAPACITY, ENTRY, FACTS, Facts, Header, Live

now = time.monotonic_ns
_ROUND = 64
_ENDED_NBYTES = 8  # bytes of `Facts.ended_ns`, the last field
_ENDED_ENTRY = struct.Struct(f"<QQ{FACTS.size - _ENDED_NBYTES}sQQ")  # `ENTRY`, with `Facts.ended_ns` apart
_TIMES, _same = iter(now, None), itertools.repeat
# Offsets of entries, by sequence numbers from 1.
_OFFSETS = [layout.HEADER_NBYTES + (sequence % CAPACITY) * ENTRY.size for sequence in range(1, CAPACITY + 1)]


#: Functions to call with the ring of the process once it is made.
when_made: list[Callable[[Ring], object]] = []


class _Released(NamedTuple):
    """Place of a released text that entries up to a sequence number refer to."""

    place: int
    length: int
    sequence: int


class Ring:
    """The last calls of this process.

    Parameters
    ----------
    memory : mmap
        Memory of `layout.NBYTES` zeroed bytes.
    path : Path or None
        Path of the mapped file; None if the memory is private to this process.

    Attributes
    ----------
    facts : dict
        Facts of the process.
    failures : list of dict
        Failures reported so far, for dumps.
    """

    def __init__(self, memory: mmap.mmap, path: Path | None = None) -> None:
        self.memory, self.path = memory, path
        # A single C call advances both, so two threads never get the same number.
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
            started=(process(pid) or Process()).started,
        )
        self.facts, self.failures = facts_of_process(), list[dict[str, Any]]()
        self._change(facts=self.text(json.dumps(self.facts)))

    # Methods for the header.

    def _change(self, **fields: Any) -> None:
        with self._lock:
            self._header = self._header._replace(**fields)
            layout.HEADER.pack_into(self.memory, 0, *self._header)

    @property
    def state(self) -> int:
        """RUNNING, ENDED, FAILED or ENDED_LATER."""
        return self._header.state

    def is_now(self, state: int) -> None:
        """Change the state of this process if it is RUNNING; do nothing in a forked child."""
        if self._header.state == layout.RUNNING and os.getpid() == self._header.pid:
            self._change(state=state)

    def live(self, live: Live) -> None:
        """Record what the process waits for on the host."""
        layout.LIVE.pack_into(self.memory, layout.LIVE_OFFSET, *live)

    def shown(self) -> Live:
        """Return what the process waits for on the host."""
        return Live(*layout.LIVE.unpack_from(self.memory, layout.LIVE_OFFSET))

    # Methods for texts.

    def text(self, text: str) -> int:
        """Return the reference of a text, written at first use; 0 if there is no room."""
        found = self._texts.get(text)
        return self._write(text) if found is None else found

    def passing_text(self, text: str) -> int:
        """Return the reference of a text whose place can be released.

        Use it for objects that may end before the process, such as communicators.
        """
        data = text.encode(errors="replace")
        # Round the length up, so that the place fits other texts too.
        data = data.ljust(-(-len(data) // _ROUND) * _ROUND)
        with self._lock:
            # No entry has this sequence number.
            _, sequence = self._next()
            # Texts are in the order of their release.
            for released in self._released:
                if sequence - released.sequence <= CAPACITY:
                    break
                if released.length >= len(data):
                    self._released.remove(released)
                    return self._put(released.place, data)
            return self._append(data)

    def release(self, place: int) -> None:
        """Note that no more entries will refer to a text of `passing_text`."""
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

    # Methods for entries.

    def add(self, number: int, facts: Facts) -> int:
        """Write an entry, and return its sequence number."""
        return self.add_packed(number, FACTS.pack(*facts))

    def add_packed(self, number: int, facts: bytes) -> int:
        """Write an entry with packed facts, and return its sequence number."""
        offset, sequence = self._next()
        ENTRY.pack_into(self.memory, offset, now(), number, facts, sequence)
        return sequence

    def number(self, sequence: int, number: int) -> None:
        """Set the number of an entry, unless a later entry has its place."""
        offset = self._offset_of(sequence)
        if offset:
            self.memory[offset + 8 : offset + 16] = number.to_bytes(8, "little")

    def rewrite(self, sequence: int, facts: Facts) -> None:
        """Replace the facts of an entry, unless a later entry has its place."""
        offset = self._offset_of(sequence)
        if offset:
            FACTS.pack_into(self.memory, offset + 16, *facts)

    def end(self, *sequences: int) -> None:
        """Record the end of the entries' calls, unless later entries have their places."""
        at, memory = now().to_bytes(_ENDED_NBYTES, "little"), self.memory
        for sequence in sequences:
            # `_offset_of` is inlined, because this runs for each message.
            offset = _OFFSETS[(sequence - 1) % CAPACITY]
            place, ended = offset + layout.SEQUENCE_OFFSET, offset + layout.ENDED_OFFSET
            if sequence and memory[place : place + 8] == sequence.to_bytes(8, "little"):
                memory[ended : ended + _ENDED_NBYTES] = at

    def match(self, sequence: int, peer: int, tag: int) -> None:
        """Record which message a receive has matched, unless a later entry has its place."""
        offset = self._offset_of(sequence)
        if offset:
            layout.MATCH.pack_into(self.memory, offset + layout.MATCH_OFFSET, peer, tag)

    def _offset_of(self, sequence: int) -> int:
        """Return the offset of an entry; 0 if a later entry has its place."""
        offset = _OFFSETS[(sequence - 1) % CAPACITY]
        place = offset + layout.SEQUENCE_OFFSET
        return offset if sequence > 0 and self.memory[place : place + 8] == sequence.to_bytes(8, "little") else 0

    def writer(self, facts: bytes, numbers: Iterator[int]) -> Callable[[], None]:
        """Return a function without parameters that records a start of a cached call.

        `facts` are the packed constant fields of the entry; `numbers` yields the number of each call. The function is
        fast because it runs no Python code: `map` takes the arguments from iterators.
        """
        return self._written_by(ENTRY, _TIMES, numbers, _same(facts))

    def writer_of_ended(self, facts: bytes) -> Callable[[], None]:
        """Return a function that records a send which has already ended.

        `facts` are the packed constant fields of the entry. Its number is 0, because the call is not collective.
        """
        return self._written_by(_ENDED_ENTRY, _TIMES, _same(0), _same(facts[:-_ENDED_NBYTES]), _TIMES)

    def _written_by(self, entry: struct.Struct, *fields: Iterator[Any]) -> Callable[[], None]:
        return map(entry.pack_into, _same(self.memory), self._offsets, *fields, self._sequences).__next__


def _made() -> Ring | None:
    """Return the ring of this process; None if PYNCCLX_RECORD turns it off.

    The ring is in a file if one can be created.
    """
    if not is_on() or sys.is_finalizing():
        return None
    memory, path = _mapped()
    ring = Ring(memory, path)
    nvtx_ranges.listen()
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
            # Without the allocation, a full file system would kill the process in a later call.
            os.posix_fallocate(file, 0, layout.NBYTES)
            return mmap.mmap(file, layout.NBYTES), path
        finally:
            os.close(file)
    except OSError:
        return mmap.mmap(-1, layout.NBYTES), None


def _end() -> None:
    """End the recording at the end of the program.

    The last process of a job removes the job's folder, unless a process has recorded a failure.
    """
    ring = RING.made
    if ring is not None and ring.path is not None:
        ring.is_now(layout.ENDED_LATER if ring.failures else layout.ENDED)
        with suppress(OSError):
            folders.leave(ring.path)


def _begin_child() -> None:
    """Record nothing in a process that a rank has forked, because it is no rank."""
    if MPI.Is_initialized():
        RING.set(None)


RING: PerProcess[Ring | None] = PerProcess(_made)
atexit.register(_end)
in_children(_begin_child)
