"""Ranks whose calls, or arguments of calls, differ at one place.

The place is a number in a communicator's order of calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from .job import Comm, Entry, Job
from .verdict import Verdict
from .words import Words

#: Arguments that must be equal on all ranks: name, and value in an entry. One of them differs if signatures do.
ARGUMENTS: tuple[tuple[str, Callable[[Entry], Any]], ...] = (
    ("type", lambda entry: entry["datatype"]),
    ("operator", lambda entry: entry["operator"]),
    ("root", lambda entry: entry["peer"] if "rooted" in entry["flags"] else None),
    ("count", lambda entry: entry["elements"]),
    ("length in bytes", lambda entry: entry["nbytes"]),
    ("kind of arrays", lambda entry: "host" if entry["kind"] == "host" else "device"),
)


def different_operation(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield verdicts on call numbers at which operations differ."""
    for comm, number, entries in _compared(job):
        if len({entry["operation"] for entry in entries.values()}) > 1:
            yield _verdict("different operation", comm, number, entries, words, lambda entry: entry["operation"])


def different_argument(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield verdicts on call numbers at which arguments differ that must be equal."""
    for comm, number, entries in _compared(job):
        signatures = {entry["signature"] for entry in entries.values()}
        if len({entry["operation"] for entry in entries.values()}) == 1 and len(signatures) > 1:
            yield _of_arguments(comm, number, entries, words)


def _compared(job: Job) -> Iterator[tuple[Comm, int, dict[int, Entry]]]:
    """Yield each number of each communicator, with the entries of the ranks."""
    for comm in job.comms:
        calls = {rank.number: rank.calls.get(comm, {}) for rank in job.of(comm)}
        for number in sorted({number for each in calls.values() for number in each}):
            entries = {rank: each[number] for rank, each in calls.items() if number in each}
            if len(entries) > 1:
                yield comm, number, entries


def _of_arguments(comm: Comm, number: int, entries: dict[int, Entry], words: Words) -> Verdict:
    for name, value in ARGUMENTS:
        if len({value(entry) for entry in entries.values()}) > 1:
            return _verdict("different argument", comm, number, entries, words, value, name)
    return _verdict("different argument", comm, number, entries, words, lambda entry: entry["signature"], "")


def _verdict(
    cause: str,
    comm: Comm,
    number: int,
    entries: dict[int, Entry],
    words: Words,
    value: Callable[[Entry], Any],
    argument: str | None = None,
) -> Verdict:
    usual, _ = Counter(map(value, entries.values())).most_common(1)[0]
    odd = tuple(rank for rank, entry in entries.items() if value(entry) != usual)
    odd_entry, usual_entry = entries[odd[0]], next(e for e in entries.values() if value(e) == usual)
    of = words.comm(comm)
    if argument is None:
        place = f"As call #{number}{of}, {words.ranks(odd)} made {odd_entry['operation']}"
        sentence = f"{place} at {_site(odd_entry)}, where the others made {usual} at {_site(usual_entry)}"
    else:
        what = f"the {argument} {value(odd_entry)}" if argument else "other arguments"
        others = f"where the others have {usual}" if argument else "than the others"
        sentence = f"{odd_entry['operation']} #{number}{of} has {what} on {words.ranks(odd)}, {others}"
    evidence = tuple(f"{words.rank(rank)}: {described(entry)}" for rank, entry in sorted(entries.items()))
    return Verdict(cause=cause, ranks=odd, sentence=sentence, evidence=evidence)


def _site(entry: Entry) -> str:
    return str(entry["site"]).rpartition("/")[2] or "an unknown line"


def described(entry: Entry) -> str:
    """Return a text of a call with its arguments."""
    parts = [entry["operation"]]
    if entry["datatype"]:
        parts.append(f"{entry['elements']} x {entry['datatype']}")
    parts += [entry["operator"]] if entry["operator"] else []
    parts += [f"root {entry['peer']}"] if "rooted" in entry["flags"] else []
    parts += ["host arrays"] if entry["kind"] == "host" else []
    return ", ".join(parts) + (f" at {_site(entry)}" if entry["site"] else "")
