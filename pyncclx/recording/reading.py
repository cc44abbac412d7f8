"""Reader of a flight recorder's file, of a process that may have ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import folders, layout
from .layout import ENTRY, FACTS, FLAGS, HEADER_NBYTES, KINDS, Facts, Header, Live

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
        self.header = Header(*layout.HEADER.unpack_from(data, 0))
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
        live = Live(*layout.LIVE.unpack_from(self._data, layout.LIVE_OFFSET))
        if not live.what:
            return None
        since_ns = live.since_ns + self.header.realtime_ns
        return {"what": self.text(live.what), "detail": self.text(live.detail), "comm": live.comm, "since_ns": since_ns}

    def record(self, *others: int) -> dict[str, Any]:
        """Return the whole record in the form of a dump.

        `others` are references of communicators that no entry may have.
        """
        entries, live = self.entries(), self.live()
        return {
            "process": self.facts,
            "state": layout.STATES[self.header.state],
            "live": live,
            "comms": self.comms(entries, live["comm"] if live else 0, *others),
            "entries": entries,
        }


def read(path: Path) -> dict[str, Any]:
    """Return the contents of a file, and the condition of its process.

    Raises
    ------
    ValueError
        If the file is no flight recorder's, or another version's.
    """
    if folders.header_of(path) is None:
        raise ValueError(f"{path} is no file of pyncclx's flight recorder, version {layout.VERSION}")
    reading = Reading(path.read_bytes())
    condition = folders.condition(reading.header.pid, reading.header.started)
    return reading.record() | {"condition": condition, "started": reading.header.started, "file": str(path)}
