"""Records of a job's ranks, from dumps or flight recorder files."""

from __future__ import annotations

import json
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...recording import folders
from ...recording.layout import COUNTED, KINDS

Entry = dict[str, Any]
# Kinds of entries that are equal on all ranks of a communicator.
CALLS = frozenset(KINDS[kind] for kind in COUNTED)


@dataclass(frozen=True, slots=True)
class Comm:
    """Communicator or window, equal on all of its ranks."""

    kind: str
    world: tuple[int, ...]
    remote: tuple[int, ...]
    number: int

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Comm:
        """Return the communicator of a record's text; an empty one without a text."""
        world, remote = tuple(fields.get("world", ())), tuple(fields.get("remote", ()))
        return cls(fields.get("kind", "comm"), world, remote, fields.get("number", -1))

    @property
    def members(self) -> tuple[int, ...]:
        """The members' ranks in MPI.COMM_WORLD."""
        return (*self.world, *self.remote)


class Rank:
    """Record of one rank.

    Attributes
    ----------
    record : dict
        Record in the form of `layout.Reading.record` and `dump`.
    at_ns : int
        Time at which the record was read or dumped: nanoseconds since 1970.
    number : int
        Rank in MPI.COMM_WORLD.
    failures : list of dict
        Failures that the rank has recorded, such as a timeout.
    live, stack : dict
        What the rank waits for on the host, and the stack of its main thread. Both are empty if the record has none.
    condition : str or None
        State letter of the process in /proc; "" if it had ended. None for a dump, because the process was alive when
        it wrote the dump.
    is_dead : bool
        Whether the process was killed, possibly by the launcher after another failure.
    has_forgotten : bool
        Whether later entries have overwritten the first ones.
    comms : dict of int to Comm
        Communicators by the numbers that entries refer to them with.
    names : dict of Comm to str
        Names that the program gave to communicators.
    entries : list of dict
        All entries with their communicators, the oldest first.
    """

    def __init__(self, record: dict[str, Any], at_ns: int) -> None:
        self.record, self.at_ns, process = record, at_ns, record["process"]
        self.number, self.host = int(process["rank"]), str(process["host"])
        self.failures: list[dict[str, Any]] = record.get("failures", [])
        self.live: dict[str, Any] = record.get("live") or {}
        self.stack: dict[str, Any] = next((stack for stack in record.get("stacks", ()) if stack["main"]), {})
        self.condition: str | None = record.get("condition")
        self.is_dead = record["state"] == "running" and self.condition == ""
        self.has_forgotten = any(entry["sequence"] > 1 for entry in record["entries"][:1])
        self.comms = {int(place): Comm.of(fields) for place, fields in record["comms"].items()}
        self.names = {self.comms[int(place)]: fields.get("name", "") for place, fields in record["comms"].items()}
        self.entries: list[Entry] = [{**entry, "comm": self.comms[entry["comm"]]} for entry in record["entries"]]
        # Numbers of last calls, from a dump that may have no entries of these calls.
        self._numbers = {self.comms[int(place)]: each for place, each in record.get("numbers", {}).items()}

    def until(self, ns: int) -> Rank:
        """Return the record as it was at an earlier time."""
        entries = [
            {**entry, "ended_ns": None} if (entry["ended_ns"] or 0) > ns else entry
            for entry in self.record["entries"]
            if entry["began_ns"] <= ns
        ]
        # A process that has made later calls was running then. A process that is dead now counts as alive then.
        state = "running" if len(entries) < len(self.record["entries"]) else self.record["state"]
        record = {**self._with(entries), "state": state, "condition": self.condition or None}
        return Rank(record, min(self.at_ns, ns))

    def since(self, handled: Sequence[dict[str, Any]], survived: Container[int]) -> Rank:
        """Return the record without handled failures and communicators of dead ranks."""
        last_ns = max((failure["time_ns"] for failure in handled), default=0)
        used = {entry["comm"] for entry in self.record["entries"] if entry["began_ns"] > last_ns}
        used -= {place for place, comm in self.comms.items() if any(rank in survived for rank in comm.members)}
        entries = [entry for entry in self.record["entries"] if entry["comm"] in used]
        left = [failure for failure in self.failures if failure not in handled]
        return Rank({**self._with(entries), "failures": left}, self.at_ns)

    def _with(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the record with some of its entries.

        The numbers of calls whose entries were overwritten are kept.
        """
        listed = {entry["comm"] for entry in self.record["entries"] if entry["kind"] in CALLS and entry["number"]}
        numbers = {place: each for place, each in self.record.get("numbers", {}).items() if int(place) not in listed}
        return {**self.record, "entries": entries, "numbers": numbers}

    @cached_property
    def calls(self) -> dict[Comm, dict[int, Entry]]:
        """Collective calls of each communicator, by call number."""
        found: dict[Comm, dict[int, Entry]] = {}
        for entry in self.entries:
            if entry["kind"] in CALLS and entry["number"]:
                found.setdefault(entry["comm"], {})[entry["number"]] = entry
        return found

    @cached_property
    def beginning(self) -> Entry | None:
        """The collective call in preparation, which has no number yet."""
        for entry in reversed(self.entries):
            if entry["kind"] in CALLS:
                return entry if not entry["number"] and entry["ended_ns"] is None else None
        return None

    def last(self, comm: Comm) -> int:
        """Return the number of the last call on a communicator; 0 if none or unknown."""
        return max(self.calls.get(comm, {}), default=0) or self._numbers.get(comm, 0)

    def progress(self, comm: Comm) -> dict[str, Any] | None:
        """Return the progress of the rank's kernels on a communicator."""
        for place, progress in self.record.get("progress", {}).items():
            if self.comms.get(int(place)) == comm:
                return dict(progress)
        return None


@dataclass(eq=False)
class Job:
    """Records of a job.

    Attributes
    ----------
    ranks : dict
        Records by rank in MPI.COMM_WORLD.
    notes : list of str
        Notes on other contents of the records' folder.
    """

    ranks: dict[int, Rank]
    notes: list[str] = field(default_factory=list)

    @cached_property
    def size(self) -> int:
        return max((int(rank.record["process"]["size"]) for rank in self.ranks.values()), default=0)

    @property
    def missing(self) -> list[int]:
        """Ranks without a record."""
        return [number for number in range(self.size) if number not in self.ranks]

    @cached_property
    def comms(self) -> list[Comm]:
        """Communicators in the entries, in the order of their first entries."""
        return list(dict.fromkeys(entry["comm"] for rank in self for entry in rank.entries if entry["comm"].members))

    @property
    def failures(self) -> list[tuple[Rank, dict[str, Any]]]:
        """Failures of all ranks, with the rank that reported each."""
        return [(rank, failure) for rank in self for failure in rank.failures]

    def until(self, ns: int) -> Job:
        """Return the job as it was at an earlier time."""
        return Job({rank.number: rank.until(ns) for rank in self}, self.notes)

    def __iter__(self) -> Iterator[Rank]:
        return (self.ranks[number] for number in sorted(self.ranks))

    def of(self, comm: Comm) -> list[Rank]:
        """Return the members of a communicator that have records."""
        return [self.ranks[number] for number in dict.fromkeys(comm.members) if number in self.ranks]


def load(folder: Path) -> Job:
    """Read a job's dumps and flight recorder files from a folder.

    For ranks without a dump, the flight recorder files on this host are read too.

    Raises
    ------
    FileNotFoundError
        If the folder has neither dumps nor files of flight recorders.
    """
    job = Job({})
    records = {path: json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))}
    newest: Entry = max(records.values(), key=lambda record: int(record["dumped_ns"]), default={})
    for path, record in records.items():
        if _is_of(record, newest):
            job.ranks[int(record["process"]["rank"])] = Rank(record, int(record["dumped_ns"]))
        else:
            job.notes.append(f"{path} is of an earlier job")
    beside = {Path(rank.record["file"]).parent for rank in job if rank.record.get("file")}
    _add_rings(job, [folder, *sorted(beside)])
    if not job.ranks:
        raise FileNotFoundError(f"{folder} has no rank-*.json, and no file of a flight recorder")
    return job


def _is_of(record: dict[str, Any], newest: dict[str, Any]) -> bool:
    """Return whether two dumps belong to one job.

    If the launcher does not name the job, each host uses a different name, which is ignored.
    """
    mine, others = record["process"], newest["process"]
    if record.get("job") == newest.get("job"):
        return bool(mine["size"] == others["size"])
    names = str(record.get("job")), str(newest.get("job"))
    return mine["host"] != others["host"] and mine["size"] == others["size"] and not any(map(folders.is_agreed, names))


def _add_rings(job: Job, places: Iterable[Path]) -> None:
    for place in places:
        for path in sorted(folders.files(place)):
            try:
                record = folders.read(path)
            except (OSError, ValueError) as error:
                job.notes.append(str(error))
                continue
            number = int(record["process"]["rank"])
            if number not in job.ranks:
                job.ranks[number] = Rank(record, time.time_ns())
