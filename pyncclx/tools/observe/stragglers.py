"""Slow ranks: those that begin calls later than the others, again and again."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

from .job import Comm, Job
from .verdict import Verdict
from .words import Words

# A call that all members have made: last rank, its delay in seconds, and the time of the first begin in ns.
Call = tuple[int, float, int]

# Numbers of last calls of a communicator to check: a rank may be slow recently, or slightly all the time.
LAST_CALLS = (50, 500)
# Some rank must be late in at least this number of calls, and this share of the calls that are checked.
FEWEST_LATE = 5
SHARE_LATE = 1 / 3
# Least delay in seconds after the first rank that counts as late.
SHORTEST_S = 1e-3
# Least share of late calls in which the same rank is last.
MOSTLY = 0.7
# Least share of the time, and least seconds, that the others lose. A healthy job on a busy machine lost 0.06 of 0.19 s.
OF_TIME = 0.2
LEAST_S = 0.25


def slow_rank(job: Job, words: Words) -> Iterator[Verdict]:
    """Yield a verdict on the rank that is last in most late calls.

    The others must lose much time by it.
    """
    for comm in job.comms:
        calls = list(lateness(job, comm))
        for count in LAST_CALLS:
            verdict = slowest(calls[-count:], comm, words)
            if verdict is not None:
                yield verdict
                break


def slowest(calls: list[Call], comm: Comm, words: Words) -> Verdict | None:
    """Return the verdict on the rank that is last in most calls; None if none is slow."""
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
    return Verdict(cause="slow rank", ranks=(rank,), sentence=sentence)


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
