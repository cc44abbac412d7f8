"""Find waits between ranks, from calls that some have made and others have not."""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .job import CALLS, Comm, Entry, Job, Rank

# Least seconds after which a rank that has reported a failure counts as waiting.
AFTER_FAILURES_S = 0.2
# Least seconds after which a rank counts as waiting, even with few intervals between calls.
SHORTEST_S = 1.0
INTERVALS = 5
# A rank is stuck if its call takes this many times the longest interval between its calls so far.
_OF_LONGEST = 1.5
_RECEIVES = ("Recv", "Mrecv", "Sendrecv", "Sendrecv_replace", "recv", "Irecv", "Imrecv", "Isendrecv", "Recv_init")
_SENDS = ("Send", "Ssend", "Rsend", "Sendrecv", "send", "ssend", "Isend", "Issend", "Send_init", "Ssend_init")


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of one rank for another.

    Attributes
    ----------
    rank, awaited : int
        Ranks in MPI.COMM_WORLD.
    kind : str
        "call": the other has not made a collective call. "receive" and "send": the other has not made its part of a
        message. "lock": the other has the lock. "compilation": the other compiles.
    entry : dict
        Entry of the call in which it waits.
    since_ns : int
    """

    rank: int
    awaited: int
    kind: str
    entry: Entry
    since_ns: int


def waits(job: Job) -> list[Wait]:
    """Return all waits of ranks that are stuck."""
    return [*_in_calls(job), *_in_messages(job), *_for_locks(job), *_for_compilers(job)]


def patience_ns(rank: Rank) -> float:
    """Return the time in a call after which a rank is stuck.

    It is a second, or longer if calls are rare or in bursts.
    """
    if rank.failures:
        return AFTER_FAILURES_S * 1e9
    begins = [entry["began_ns"] for entry in rank.entries if entry["kind"] in CALLS]
    between: list[float] = [after - before for before, after in itertools.pairwise(begins)]
    if len(between) < INTERVALS:
        return SHORTEST_S * 1e9
    return max(SHORTEST_S * 1e9, INTERVALS * statistics.median(between), _OF_LONGEST * max(between))


def is_stuck(rank: Rank, entry: Entry) -> bool:
    """Return whether a rank has been in a call for so long that it counts as stuck.

    The caller checks that the call has not ended.
    """
    return rank.at_ns - int(entry["began_ns"]) >= patience_ns(rank)


def current(rank: Rank, comm: Comm) -> Entry | None:
    """Return the present or last call of a rank on a communicator."""
    beginning = rank.beginning
    if beginning is not None and beginning["comm"] == comm:
        return beginning | {"number": rank.last(comm) + 1}
    return rank.calls.get(comm, {}).get(rank.last(comm))


def reached(rank: Rank, comm: Comm) -> int:
    """Return the number of a rank's present or last call; 0 if none or unknown."""
    entry = current(rank, comm)
    return int(entry["number"]) if entry is not None else rank.last(comm)


def _in_calls(job: Job) -> Iterator[Wait]:
    for comm in job.comms:
        members = job.of(comm)
        for rank in members:
            entry = current(rank, comm)
            if entry is None or not _may_wait(rank, entry):
                continue
            late = {other.number for other in members if reached(other, comm) < entry["number"]}
            late = {number for number in late if _has_not_come(job.ranks[number], entry)}
            for number in sorted(late.union(set(comm.members).intersection(job.missing))):
                yield Wait(rank.number, number, "call", entry, int(entry["began_ns"]))


def _may_wait(rank: Rank, entry: Entry) -> bool:
    is_there = rank.record["state"] != "ended" and not rank.is_dead
    return is_there and is_stuck(rank, entry) and (entry["ended_ns"] is None or bool(rank.failures))


def _has_not_come(other: Rank, entry: Entry) -> bool:
    """Return whether a rank's record is recent enough to show that it missed a call."""
    return other.is_dead or other.at_ns - int(entry["began_ns"]) >= patience_ns(other) / 2


# ---- messages ------------------------------------------------------------------------------------------------------


def open_messages(rank: Rank) -> list[Entry]:
    """Return the messages that a rank has begun and not ended.

    Nonblocking messages count only while the rank is in the library.
    """
    entries = [entry for entry in rank.entries if entry["kind"] == "message" and entry["ended_ns"] is None]
    blocking = [entry for entry in entries if not re.search(r"^I|_init$", entry["operation"])]
    waiting = not rank.stack or rank.stack["inside"]
    # The rank may have continued to a collective call.
    busy = any(entry["kind"] in CALLS for entry in rank.entries[-1:])
    return blocking or (entries if waiting and not busy else [])


def is_receive(entry: Entry) -> bool:
    """Return whether a message's entry is a receive.

    The entry of a `Sendrecv` counts as a receive and as a send.
    """
    return entry["operation"] in _RECEIVES


def _in_messages(job: Job) -> Iterator[Wait]:
    for rank in job:
        for entry in open_messages(rank):
            if is_stuck(rank, entry) and entry["peer"] >= 0 and entry["peer"] != rank.number:
                kind = "receive" if is_receive(entry) else "send"
                yield Wait(rank.number, entry["peer"], kind, entry, int(entry["began_ns"]))


def sent(rank: Rank, to: int, comm: Comm) -> Counter[int]:
    """Return how many messages a rank has sent to another, by tag."""
    return _tags(rank.entries, to, comm, _SENDS)


def received(rank: Rank, source: int, comm: Comm) -> Counter[int]:
    """Return how many messages a rank has received from another, by tag."""
    return _tags([entry for entry in rank.entries if entry["ended_ns"] is not None], source, comm, _RECEIVES)


def _tags(entries: Sequence[Entry], peer: int, comm: Comm, operations: tuple[str, ...]) -> Counter[int]:
    messages = (entry for entry in entries if entry["kind"] == "message" and entry["operation"] in operations)
    return Counter(entry["tag"] for entry in messages if entry["peer"] == peer and entry["comm"] == comm)


# ---- locks, compilers ----------------------------------------------------------------------------------------------


def held_locks(rank: Rank) -> dict[tuple[Comm, int], Entry]:
    """Return the locks that a rank has, by window and target."""
    found: dict[tuple[Comm, int], Entry] = {}
    for entry in rank.entries:
        key = entry["comm"], int(entry["peer"])
        if entry["operation"] == "Lock" and entry["ended_ns"] is not None:
            found[key] = entry
        elif entry["operation"] == "Unlock":
            found.pop(key, None)
    return found


def _for_locks(job: Job) -> Iterator[Wait]:
    held = {rank.number: held_locks(rank) for rank in job}
    for rank in job:
        for entry in rank.entries:
            if entry["operation"] == "Lock" and entry["ended_ns"] is None and is_stuck(rank, entry):
                for other, locks in held.items():
                    if other != rank.number and (entry["comm"], entry["peer"]) in locks:
                        yield Wait(rank.number, other, "lock", entry, int(entry["began_ns"]))


def _for_compilers(job: Job) -> Iterator[Wait]:
    compiling = [rank for rank in job if rank.live.get("what") == "its compiler"]
    for rank in job:
        since_ns = int(rank.live.get("since_ns", rank.at_ns))
        if rank.live.get("what") == "the other ranks' compilers" and rank.at_ns - since_ns > SHORTEST_S * 1e9:
            entry = rank.beginning or rank.entries[-1]
            for other in compiling:
                yield Wait(rank.number, other.number, "compilation", entry, since_ns)
