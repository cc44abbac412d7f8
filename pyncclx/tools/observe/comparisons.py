"""Compare the calls that ranks have made with the same number.

Calls are numbered on each communicator. Two things can be wrong: operations or arguments of calls with one number
differ, or one rank repeatedly begins its calls later than the other ranks.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

from .job import Comm, Entry, Job
from .verdict import Verdict, Words, odd_ones

#: Arguments that must be equal on all ranks: name, and function to read the value from an entry. The last one covers
#: all other arguments.
ARGUMENTS: tuple[tuple[str, Callable[[Entry], Any]], ...] = (
    ("type", itemgetter("datatype")),
    ("operator", itemgetter("operator")),
    ("root", lambda entry: entry["peer"] if "rooted" in entry["flags"] else None),
    ("count", itemgetter("elements")),
    ("length in bytes", itemgetter("nbytes")),
    ("kind of arrays", lambda entry: "host" if entry["kind"] == "host" else "device"),
    ("", itemgetter("signature")),
)


def different_operation(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield verdicts on calls with the same number whose operations differ."""
    for comm, number, entries in _compared(job):
        odd, usual = _odd_ones(entries, itemgetter("operation"))
        if odd:
            theirs, others = entries[odd[0]], next(each for each in entries.values() if each["operation"] == usual)
            sentence = (
                f"As call #{number}{words.comm(comm)}, {words.ranks(odd)} made {theirs['operation']} at "
                f"{_site(theirs)}, where the others made {usual} at {_site(others)}"
            )
            yield Verdict("different operation", odd, sentence, _calls(entries, words))


def different_argument(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield verdicts on calls with the same number whose arguments must not differ."""
    for comm, number, entries in _compared(job):
        operations, signatures = ({entry[name] for entry in entries.values()} for name in ("operation", "signature"))
        if len(operations) == 1 and len(signatures) > 1:
            name, value = next(row for row in ARGUMENTS if _odd_ones(entries, row[1])[0])
            odd, usual = _odd_ones(entries, value)
            has = f"the {name} {value(entries[odd[0]])}" if name else "other arguments"
            others = f"where the others have {usual}" if name else "than the others"
            sentence = f"{operations.pop()} #{number}{words.comm(comm)} has {has} on {words.ranks(odd)}, {others}"
            yield Verdict("different argument", odd, sentence, _calls(entries, words))


def _compared(job: Job) -> Iterator[tuple[Comm, int, dict[int, Entry]]]:
    """Yield each number of each communicator, with the entries of the ranks."""
    for comm in job.comms:
        calls = {rank.number: rank.calls.get(comm, {}) for rank in job.of(comm)}
        for number in sorted({number for each in calls.values() for number in each}):
            entries = {rank: each[number] for rank, each in calls.items() if number in each}
            if len(entries) > 1:
                yield comm, number, entries


def _odd_ones(entries: dict[int, Entry], value: Callable[[Entry], Any]) -> tuple[tuple[int, ...], Any]:
    return odd_ones({rank: value(entry) for rank, entry in entries.items()})


def _calls(entries: dict[int, Entry], words: Words) -> tuple[str, ...]:
    """Return a line of text for each rank: its name, its call and the arguments."""
    return tuple(f"{words.rank(rank)}: {described(entry)}" for rank, entry in sorted(entries.items()))


def _site(entry: Entry) -> str:
    return str(entry["site"]).rpartition("/")[2] or "an unknown line"


def described(entry: Entry) -> str:
    """Return a call with its arguments as text."""
    parts = [entry["operation"]]
    if entry["datatype"]:
        parts.append(f"{entry['elements']} x {entry['datatype']}")
    parts += [entry["operator"]] if entry["operator"] else []
    parts += [f"root {entry['peer']}"] if "rooted" in entry["flags"] else []
    parts += ["host arrays"] if entry["kind"] == "host" else []
    return ", ".join(parts) + (f" at {_site(entry)}" if entry["site"] else "")


# ---- slow ranks ------------------------------------------------------------------------------------------------------

# A call that all members have made: last rank, its delay in seconds, and the time of the first begin in ns.
Call = tuple[int, float, int]

# How many last calls of a communicator to check: a rank may have become slow recently, or be slightly slow all the
# time.
LAST_CALLS = (50, 500)
# A rank is reported only if late in at least this number of calls, and this share of the checked calls.
FEWEST_LATE = 5
SHARE_LATE = 1 / 3
# A rank is late if it begins at least this many seconds after the first rank.
SHORTEST_S = 1e-3
# Least share of late calls in which the same rank is last.
MOSTLY = 0.7
# Least share of the time, and least seconds, that the other ranks must lose. A healthy job on a busy machine lost 0.06
# s of 0.19 s.
OF_TIME = 0.2
LEAST_S = 0.25


def slow_rank(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield verdicts on ranks that delay the other ranks.

    A call is late if its last rank begins it at least SHORTEST_S after the first rank. A rank is slow if it is last in
    most late calls, and if the other ranks lose much time by waiting for it.
    """
    for comm in job.comms:
        calls = list(lateness(job, comm))
        yield from filter(None, (slowest(calls[-count:], comm, words) for count in LAST_CALLS))


def slowest(calls: list[Call], comm: Comm, words: Words) -> Verdict | None:
    """Return the verdict on the rank that is slow in `calls`; None if no rank is slow."""
    late = [(rank, by_s) for rank, by_s, _ in calls if by_s >= SHORTEST_S]
    if len(late) < max(FEWEST_LATE, SHARE_LATE * len(calls)):
        return None
    (rank, count), *_ = Counter(number for number, _ in late).most_common(1)
    lost = [by_s for number, by_s in late if number == rank]
    begins = [begin_ns for _, _, begin_ns in calls]
    time_s = (max(begins) - min(begins)) / 1e9
    if count < MOSTLY * len(late) or sum(lost) < max(LEAST_S, OF_TIME * time_s):
        return None
    sentence = (
        f"{words.rank(rank)} is slow: of the last {len(calls)} calls{words.comm(comm)} it came last to {count}, "
        f"{statistics.median(lost) * 1e3:.3g} ms after the first (median); the others have waited for it for "
        f"{sum(lost):.3g} of {time_s:.3g} s"
    )
    return Verdict("slow rank", (rank,), sentence)


def lateness(job: Job, comm: Comm) -> Iterator[Call]:
    """Yield the calls that all members have made, in order."""
    members = job.of(comm)
    if len(members) < 2 or len(members) < len(set(comm.members)):
        return
    calls = [rank.calls.get(comm, {}) for rank in members]
    for number in sorted(set.intersection(*map(set, calls))):
        begins = [each[number]["began_ns"] for each in calls]
        last = max(range(len(begins)), key=begins.__getitem__)
        yield members[last].number, (begins[last] - min(begins)) / 1e9, min(begins)
