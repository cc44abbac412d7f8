"""The records of a job's ranks, from their dumps or from the files of their flight recorders."""

from __future__ import annotations

import json
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..recording import folders, reading
from ..recording.layout import COUNTED, KINDS

Entry = dict[str, Any]
CALLS = frozenset(KINDS[kind] for kind in COUNTED)  # kinds of entries that all ranks of a communicator have alike


@dataclass(frozen=True, slots=True)
class Comm:
    """A communicator, or a window: equal on all of its ranks."""

    kind: str
    world: tuple[int, ...]
    remote: tuple[int, ...]
    number: int

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Comm:
        """Return that of the text in a record; an empty one if the text had no room there."""
        world, remote = tuple(fields.get("world", ())), tuple(fields.get("remote", ()))
        return cls(fields.get("kind", "comm"), world, remote, fields.get("number", -1))

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of its processes in MPI.COMM_WORLD."""
        return (*self.world, *self.remote)


@dataclass(eq=False)
class Rank:
    """What is known of one rank.

    Attributes
    ----------
    record : dict
        As `reading.Reading.record` and `dump` have it.
    at_ns : int
        When it was taken.
    """

    record: dict[str, Any]
    at_ns: int

    def until(self, ns: int) -> Rank:
        """Return what was known at a time before."""
        entries = [
            {**entry, "ended_ns": None} if (entry["ended_ns"] or 0) > ns else entry
            for entry in self.record["entries"]
            if entry["began_ns"] <= ns
        ]
        went_on = len(entries) < len(self.record["entries"])  # so it had not ended then
        state = "running" if went_on else self.record["state"]
        condition = self.record.get("condition") or None  # a process that is gone now was there then
        record = {**self._with(entries), "state": state, "condition": condition}
        return Rank(record, min(self.at_ns, ns))

    def since(self, handled: Sequence[dict[str, Any]], survived: Container[int]) -> Rank:
        """Return what is known without failures that the program has handled, and ranks that it has survived."""
        last_ns = max((failure["time_ns"] for failure in handled), default=0)
        used = {entry["comm"] for entry in self.record["entries"] if entry["began_ns"] > last_ns}
        used -= {place for place, comm in self.comms.items() if any(rank in survived for rank in comm.members)}
        entries = [entry for entry in self.record["entries"] if entry["comm"] in used]
        left = [failure for failure in self.failures if failure not in handled]
        return Rank({**self._with(entries), "failures": left}, self.at_ns)

    def _with(self, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the record with some of its entries, and the numbers of calls that it had no entries of anyway."""
        listed = {entry["comm"] for entry in self.record["entries"] if entry["kind"] in CALLS and entry["number"]}
        numbers = {place: each for place, each in self.record.get("numbers", {}).items() if int(place) not in listed}
        return {**self.record, "entries": entries, "numbers": numbers}

    @cached_property
    def comms(self) -> dict[int, Comm]:
        """By the references in entries."""
        return {int(place): Comm.of(fields) for place, fields in self.record["comms"].items()}

    @cached_property
    def names(self) -> dict[Comm, str]:
        """The names that the program has given to communicators."""
        return {self.comms[int(place)]: fields.get("name", "") for place, fields in self.record["comms"].items()}

    @cached_property
    def entries(self) -> list[Entry]:
        """All of them, with their communicators, the oldest first."""
        return [{**entry, "comm": self.comms[entry["comm"]]} for entry in self.record["entries"]]

    @cached_property
    def calls(self) -> dict[Comm, dict[int, Entry]]:
        """The collective calls of each communicator, by their numbers."""
        found: dict[Comm, dict[int, Entry]] = {}
        for entry in self.entries:
            if entry["kind"] in CALLS and entry["number"]:
                found.setdefault(entry["comm"], {})[entry["number"]] = entry
        return found

    @cached_property
    def beginning(self) -> Entry | None:
        """The collective call that it prepares and that has no number yet."""
        for entry in reversed(self.entries):
            if entry["kind"] in CALLS:
                return entry if not entry["number"] and entry["ended_ns"] is None else None
        return None

    def last(self, comm: Comm) -> int:
        """The number of its last call on a communicator; 0: it has made none, or that is not known."""
        return max(self.calls.get(comm, {}), default=0) or self._numbers.get(comm, 0)

    @cached_property
    def _numbers(self) -> dict[Comm, int]:
        """The numbers of last calls, as a dump has them: no entry may be left of one."""
        return {self.comms[int(place)]: each for place, each in self.record.get("numbers", {}).items()}

    @property
    def has_forgotten(self) -> bool:
        """Whether later entries have the places of its first ones."""
        return bool(self.record["entries"]) and int(self.record["entries"][0]["sequence"]) > 1

    @property
    def number(self) -> int:
        """Its rank in MPI.COMM_WORLD."""
        return int(self.record["process"]["rank"])

    @property
    def host(self) -> str:
        return str(self.record["process"]["host"])

    @property
    def failures(self) -> list[dict[str, Any]]:
        return list(self.record.get("failures", ()))

    @property
    def live(self) -> dict[str, Any]:
        """What it waits for on the host; empty: for nothing."""
        return self.record.get("live") or {}

    @cached_property
    def condition(self) -> str | None:
        """The letter of /proc for its process, "" if it was gone; None for a dump: then it was there."""
        condition: str | None = self.record.get("condition")
        return condition

    @property
    def is_dead(self) -> bool:
        """Whether its process has gone without an end: killed, perhaps by the launcher, after another one failed."""
        return self.record["state"] == "running" and self.condition == ""

    @property
    def stack(self) -> dict[str, Any]:
        """Where its main thread was; empty: not known."""
        return next((stack for stack in self.record.get("stacks", ()) if stack["main"]), {})

    def progress(self, comm: Comm) -> dict[str, Any] | None:
        """What its kernels have got to on a communicator."""
        for place, progress in self.record.get("progress", {}).items():
            if self.comms.get(int(place)) == comm:
                return dict(progress)
        return None


@dataclass(eq=False)
class Job:
    """All that is known of a job.

    Attributes
    ----------
    ranks : dict
        By rank in MPI.COMM_WORLD.
    where : Path
        Where it was found.
    """

    ranks: dict[int, Rank]
    where: Path
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
        """Those that entries refer to, in the order of their first entries."""
        return list(dict.fromkeys(entry["comm"] for rank in self for entry in rank.entries if entry["comm"].members))

    def until(self, ns: int) -> Job:
        """Return the job as it was at a time before."""
        return Job({rank.number: rank.until(ns) for rank in self}, self.where, self.notes)

    def __iter__(self) -> Iterator[Rank]:
        return (self.ranks[number] for number in sorted(self.ranks))

    def of(self, comm: Comm) -> list[Rank]:
        """The members of a communicator that have records."""
        return [self.ranks[number] for number in dict.fromkeys(comm.members) if number in self.ranks]


def load(folder: Path) -> Job:
    """Read the dumps in a folder, and the files of flight recorders there; of ranks without a dump also on this host.

    Raises
    ------
    FileNotFoundError
        There is neither in the folder.
    """
    job = Job({}, folder)
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
    """Whether two dumps are of one job; without a name by the launcher it has another one on each host."""
    mine, others = record["process"], newest["process"]
    if record.get("job") == newest.get("job"):
        return bool(mine["size"] == others["size"])
    names = str(record.get("job")), str(newest.get("job"))
    return mine["host"] != others["host"] and mine["size"] == others["size"] and not any(map(folders.is_agreed, names))


def _add_rings(job: Job, places: Iterable[Path]) -> None:
    for place in places:
        for path in sorted(folders.files(place)):
            try:
                record = reading.read(path)
            except (OSError, ValueError) as error:
                job.notes.append(str(error))
                continue
            number = int(record["process"]["rank"])
            if number not in job.ranks:
                job.ranks[number] = Rank(record, time.time_ns())

