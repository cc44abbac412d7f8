"""From the records of a job's ranks to verdicts, the one that explains the others first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from . import failures, hangs, mismatches, stragglers
from .job import CALLS, Job, Rank
from .verdict import CAUSES, Verdict
from .words import Words

_Look = Callable[[Job, Words], Iterator[Verdict]]
#: Looks for causes that a job has reported, or that show wherever it is.
_REPORTED: tuple[_Look, ...] = (failures.gpu_error, failures.dead, failures.exception, failures.full_capacity)
_SEEN: tuple[_Look, ...] = (mismatches.different_operation, mismatches.different_argument, hangs.hang)
_NOTICED_S = 0.1  # after the end of a wait, at most, others have noticed it


def analyse(job: Job) -> list[Verdict]:
    """Return the verdicts on a job, the first of which explains the others; none on a healthy one."""
    job = unsettled(job)
    words = Words(job)
    found = [verdict for look in _REPORTED for verdict in _first(look(job, words))]
    if not found:  # else waits, and calls that do not fit, follow from that
        found = [verdict for look in _SEEN for verdict in _first(look(before_failures(job), words))]
    found = found or _first(failures.mismatch(job, words))
    if found or any(rank.failures for rank in job):
        found += _first(failures.settings_differ(job, words))
    else:
        found += _first(stragglers.slow_rank(job, words))
    order = list(CAUSES)
    return sorted(found, key=lambda verdict: order.index(verdict.cause))


def unsettled(job: Job) -> Job:
    """Return a job without the failures after which a program has gone on, and the communicators that these have ended.

    A rank has gone on if it has made two collective calls since: in the second one it may wait, the first one is over.
    """
    handled = {rank.number: _handled(rank) for rank in job}
    survived = {world for found in handled.values() for failure in found for world in _dead(failure)}
    survived -= {world for rank in job for failure in rank.failures if failure not in handled[rank.number]
                 for world in _dead(failure)}
    ranks = {rank.number: rank.since(handled[rank.number], survived) for rank in job if rank.number not in survived}
    return Job(ranks, job.where, job.notes)


def _handled(rank: Rank) -> list[dict[str, Any]]:
    begun = [entry["began_ns"] for entry in rank.entries if entry["kind"] in CALLS and entry["number"]]
    return [
        failure
        for failure in rank.failures
        if not failure["unhandled"] and sum(began_ns > failure["time_ns"] for began_ns in begun) > 1
    ]


def _dead(failure: dict[str, Any]) -> tuple[int, ...]:
    """The ranks of which a failure reports that they died."""
    return tuple(failure["fields"].get("world_ranks", ())) if failure["kind"] == "RankFailed" else ()


def before_failures(job: Job) -> Job:
    """Return a job as it was when a wait ended in vain: what ranks did since does not explain it."""
    times = [f["time_ns"] for rank in job for f in rank.failures if f["kind"] in failures.OF_WAITS]
    return job.until(min(times) - int(_NOTICED_S * 1e9)) if times else job


def _first(verdicts: Iterator[Verdict]) -> list[Verdict]:
    """The first of what one look finds: what comes later mostly follows from it."""
    return [verdict for verdict, _ in zip(verdicts, range(1), strict=False)]
