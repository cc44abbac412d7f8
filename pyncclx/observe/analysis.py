"""From the records of a job's ranks to verdicts, the one that explains the others first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import failures, hangs, mismatches, stragglers
from .job import Job
from .verdict import CAUSES, Verdict
from .words import Words

_Look = Callable[[Job, Words], Iterator[Verdict]]
#: Looks for causes that a job has reported, or that show wherever it is.
_REPORTED: tuple[_Look, ...] = (failures.gpu_error, failures.dead, failures.exception, failures.full_capacity)
_SEEN: tuple[_Look, ...] = (mismatches.different_operation, mismatches.different_argument, hangs.hang)
_NOTICED_S = 0.1  # after the end of a wait, at most, others have noticed it


def analyse(job: Job) -> list[Verdict]:
    """Return the verdicts on a job, the first of which explains the others; none on a healthy one."""
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


def before_failures(job: Job) -> Job:
    """Return a job as it was when a wait ended in vain: what ranks did since does not explain it."""
    times = [f["time_ns"] for rank in job for f in rank.failures if f["kind"] in failures.OF_WAITS]
    return job.until(min(times) - int(_NOTICED_S * 1e9)) if times else job


def _first(verdicts: Iterator[Verdict]) -> list[Verdict]:
    """The first of what one look finds: what comes later mostly follows from it."""
    return [verdict for verdict, _ in zip(verdicts, range(1), strict=False)]
