"""Layout of a flight recorder's file (header, ring of entries, texts), and reader.

All numbers are little endian. The sequence number of an entry is written last, and makes the entry valid. Entry `n` is
at place ``n % CAPACITY``. Entries refer to a text by its offset; 0 means no text.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

MAGIC = b"pyncclxR"
VERSION = 1
HEADER_NBYTES = 4096
CAPACITY = 2048  # entries
TEXTS_NBYTES = 256 << 10

# States of a process. ENDED_LATER is a clean end after a failure that the program caught.
RUNNING, ENDED, FAILED, ENDED_LATER = range(4)
STATES = ("running", "ended", "failed", "ended")

# Kinds of entries. A communicator's collective entries, COLLECTIVE to MEETING, have equal numbers on all ranks.
COLLECTIVE, HOST, SHUFFLE, MEETING, MESSAGE, ACCESS = range(6)
KINDS = ("collective", "host", "shuffle", "meeting", "message", "access")
COUNTED = (COLLECTIVE, HOST, SHUFFLE, MEETING)

# Flags of an entry.
ASIDE, PERSISTENT, CAPTURED, ROOTED, REPEATED = 1, 2, 4, 8, 16
FLAGS = {"nonblocking": ASIDE, "persistent": PERSISTENT, "captured": CAPTURED, "rooted": ROOTED, "repeated": REPEATED}

# A wildcard as peer or tag, or the peer of an operation without one.
ANY = -1


class Header(NamedTuple):
    """Beginning of the file."""

    magic: bytes = MAGIC
    version: int = VERSION
    entry_nbytes: int = 0
    capacity: int = CAPACITY
    texts_offset: int = 0
    texts_nbytes: int = TEXTS_NBYTES
    texts_used: int = 8  # 0 is no text
    pid: int = 0
    state: int = RUNNING
    # Offset from the monotonic clock of entries to the wall clock.
    realtime_ns: int = 0
    # Start of the process in ticks since boot (/proc/PID/stat).
    started: int = 0
    facts: int = 0  # text: JSON of the facts of the process


class Live(NamedTuple):
    """What a process waits for on the host; a part of the file beside the entries."""

    since_ns: int = 0
    what: int = 0  # text; 0 while it does not wait
    comm: int = 0
    detail: int = 0


class Facts(NamedTuple):
    """Part of an entry that equal calls have in common."""

    operation: int = 0  # reference of a text, like the next five fields
    comm: int = 0  # JSON of the communicator's identity
    algorithm: int = 0
    datatype: int = 0
    operator: int = 0
    site: int = 0  # file:line of the program
    elements: int = 0
    nbytes: int = 0
    stream: int = 0  # handle of the stream
    peer: int = ANY  # root, or the other rank, in MPI.COMM_WORLD
    tag: int = ANY
    signature: int = 0  # checksum of the values that must be equal on all ranks
    kind: int = COLLECTIVE
    flags: int = 0
    ended_ns: int = 0  # 0 if the operation has not ended, or if the end is unknown


HEADER = struct.Struct("<8sIIIIIIIIqQI")
LIVE = struct.Struct("<QIII")
FACTS = struct.Struct("<IIIIIIQQQiiIHHQ")
MATCH = struct.Struct("<ii")  # `Facts.peer` and `Facts.tag`
ENTRY = struct.Struct(f"<QQ{FACTS.size}sQ")  # monotonic ns, number, facts, sequence number

LIVE_OFFSET = 128
ENDED_OFFSET = 16 + FACTS.size - 8  # offset of `Facts.ended_ns` in an entry
MATCH_OFFSET = 16 + struct.calcsize("<IIIIIIQQQ")
SEQUENCE_OFFSET = ENTRY.size - 8
TEXTS_OFFSET = HEADER_NBYTES + CAPACITY * ENTRY.size
NBYTES = TEXTS_OFFSET + TEXTS_NBYTES

# Fields of an entry that are texts.
TEXTS = ("operation", "algorithm", "datatype", "operator", "site")

Entry = dict[str, Any]


class Reading:
    """Contents of a ring at one time.

    Attributes
    ----------
    header : Header
    facts : dict
        Facts of the process.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.header = Header(*HEADER.unpack_from(data, 0))
        self.facts: dict[str, Any] = json.loads(self.text(self.header.facts) or "{}")

    def text(self, place: int) -> str:
        """Return the text for a reference."""
        if not place:
            return ""
        begin = self.header.texts_offset + place
        end = begin + 4 + int.from_bytes(self._data[begin : begin + 4], "little")
        return self._data[begin + 4 : end].decode(errors="replace")

    def entries(self) -> list[Entry]:
        """Return the entries, the oldest first; times are wall clock nanoseconds."""
        found = []
        for place in range(self.header.capacity):
            offset = HEADER_NBYTES + place * self.header.entry_nbytes
            began_ns, number, facts, sequence = ENTRY.unpack_from(self._data, offset)
            if sequence and sequence % self.header.capacity == place:
                found.append((sequence, number, began_ns, Facts(*FACTS.unpack(facts))))
        return [self._entry(*each) for each in sorted(found, key=lambda each: each[0])]

    def _entry(self, sequence: int, number: int, began_ns: int, facts: Facts) -> Entry:
        fields = facts._asdict()
        ended_ns, flags, kind = fields.pop("ended_ns"), fields.pop("flags"), fields.pop("kind")
        return {
            "sequence": sequence,
            "number": number,
            **fields,
            **{name: self.text(fields[name]) for name in TEXTS},
            "kind": KINDS[kind] if kind < len(KINDS) else "unknown",
            "flags": [name for name, flag in FLAGS.items() if flags & flag],
            "began_ns": began_ns + self.header.realtime_ns,
            "ended_ns": ended_ns + self.header.realtime_ns if ended_ns else None,
        }

    def comms(self, entries: Sequence[Entry], *others: int) -> dict[int, dict[str, Any]]:
        """Return the communicators and windows of entries, by reference."""
        places = {entry["comm"] for entry in entries} | set(others) - {0}
        return {place: json.loads(self.text(place) or "{}") for place in sorted(places)}

    def live(self) -> dict[str, Any] | None:
        """Return what the process waits for on the host; None if it does not wait."""
        live = Live(*LIVE.unpack_from(self._data, LIVE_OFFSET))
        if not live.what:
            return None
        since_ns = live.since_ns + self.header.realtime_ns
        return {"what": self.text(live.what), "detail": self.text(live.detail), "comm": live.comm, "since_ns": since_ns}

    def record(self, *others: int) -> dict[str, Any]:
        """Return the whole record in the form of a dump.

        `others` are references of further communicators to include.
        """
        entries, live = self.entries(), self.live()
        return {
            "process": self.facts,
            "state": STATES[self.header.state],
            "live": live,
            "comms": self.comms(entries, live["comm"] if live else 0, *others),
            "entries": entries,
        }


def header_of(path: Path) -> Header | None:
    """Return the header of a flight recorder file; None for any other file."""
    try:
        with path.open("rb") as file:
            header = Header(*HEADER.unpack(file.read(HEADER.size)))
    except (OSError, struct.error):
        return None
    return header if header.magic == MAGIC and header.version == VERSION else None
