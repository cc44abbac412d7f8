"""Verdicts from the records of a job's ranks; the first explains the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from . import failures, hangs, mismatches, stragglers
from .job import CALLS, Job, Rank
from .verdict import CAUSES, Verdict
from .words import Words

_Look = Callable[[Job, Words], Iterator[Verdict]]
#: Checks for causes that a job has reported, or that its state shows at any time.
_REPORTED: tuple[_Look, ...] = (failures.gpu_error, failures.dead, failures.exception, failures.full_capacity)
_SEEN: tuple[_Look, ...] = (mismatches.different_operation, mismatches.different_argument, hangs.hang)
# A wait's end is noticed by other ranks within this time.
_NOTICED_S = 0.1


def analyse(job: Job) -> list[Verdict]:
    """Return the verdicts on a job; the first explains the others.

    A healthy job has none.
    """
    job = unsettled(job)
    words = Words(job)
    found = [verdict for look in _REPORTED for verdict in _first(look(job, words))]
    # Waits, and calls that do not match, are consequences of a reported cause.
    if not found:
        found = [verdict for look in _SEEN for verdict in _first(look(before_failures(job), words))]
    found = found or _first(failures.mismatch(job, words))
    if found or any(rank.failures for rank in job):
        found += _first(failures.settings_differ(job, words))
    else:
        found += _first(stragglers.slow_rank(job, words))
    order = list(CAUSES)
    return sorted(found, key=lambda verdict: order.index(verdict.cause))


def unsettled(job: Job) -> Job:
    """Return a job without failures that its program has survived.

    The communicators that these failures ended are left out, too. A rank has survived if it has made two collective
    calls since: it may wait in the second one, but the first one is over.
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
    """Return the ranks that died according to a failure."""
    return tuple(failure["fields"].get("world_ranks", ())) if failure["kind"] == "RankFailed" else ()


def before_failures(job: Job) -> Job:
    """Return a job as it was when the first wait timed out.

    Later calls do not explain the timeout.
    """
    times = [f["time_ns"] for rank in job for f in rank.failures if f["kind"] in failures.OF_WAITS]
    return job.until(min(times) - int(_NOTICED_S * 1e9)) if times else job


def _first(verdicts: Iterator[Verdict]) -> list[Verdict]:
    """Return the first verdict of a check; later ones are mostly consequences."""
    return [verdict for verdict, _ in zip(verdicts, range(1), strict=False)]
