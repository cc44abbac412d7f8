"""python -m pyncclx analyze: say what is wrong with a job, from its records.

Pass the folder of the dumps, which log messages name (PYNCCLX_DUMP), or the folder of a job's flight recorders. Ranks
that were killed have no dump; their flight recorder's file is read, if it is on this host. The first line is the
verdict; its evidence follows. Exit status: 0 if nothing is wrong, 1 otherwise, 2 if nothing was found.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from . import comparisons, failures, hangs, torch_format
from .job import CALLS, Job, Rank, load
from .verdict import CAUSES, Verdict, Words

HEALTHY = "no fault found"
_Check = Callable[[Job, Words], Iterator[Verdict]]
#: Checks for causes that a job has reported, or that its records always show.
_REPORTED: tuple[_Check, ...] = (failures.gpu_error, failures.dead, failures.exception, failures.full_capacity)
_SEEN: tuple[_Check, ...] = (comparisons.different_operation, comparisons.different_argument, hangs.hang)
# When a wait has ended on one rank, the other ranks detect this within this time.
_NOTICED_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", type=Path, help="folder of the dumps, or of a job in /dev/shm/pyncclx-UID")
    parser.add_argument("--json", action="store_true", help="print verdicts as JSON")
    parser.add_argument("--torch", type=Path, metavar="FOLDER", help="also write dumps that torchfrtrace reads")


def run(arguments: argparse.Namespace) -> None:
    """Print the verdicts."""
    try:
        job = load(arguments.folder)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    if arguments.torch is not None:
        torch_format.write(job, arguments.torch)
    verdicts = analyse(job)
    print(
        json.dumps([verdict._asdict() for verdict in verdicts], indent=1) if arguments.json else report(job, verdicts)
    )
    raise SystemExit(1 if verdicts else 0)


def report(job: Job, verdicts: list[Verdict]) -> str:
    """Return the first verdict with its evidence, the others, and each rank's place."""
    lines = [verdicts[0].sentence if verdicts else HEALTHY]
    for number, verdict in enumerate(verdicts):
        lines += [""] if number == 0 else ["", f"also: {verdict.sentence}"]
        lines += [f"  cause: {verdict.cause} ({CAUSES[verdict.cause]})"]
        lines += [f"  {line}" for line in verdict.evidence]
    return "\n".join([*lines, "", *_about(job)])


def _about(job: Job) -> Iterator[str]:
    words = Words(job)
    yield f"{len(job.ranks)} of {job.size} ranks have left a record"
    for rank in job:
        reason = rank.record.get("reason")
        why = f" (dumped: {reason.splitlines()[0][:60]})" if reason else ""
        yield f"  {words.rank(rank.number)}: {words.place(rank)}{why}"
    yield from (f"  rank {number}: no record" for number in job.missing)
    yield from job.notes


def analyse(job: Job) -> list[Verdict]:
    """Return the verdicts on a job; the first explains the others.

    A healthy job has none.
    """
    job = unsettled(job)
    words = Words(job)
    # If a cause has been reported, waits and calls that do not match are its consequences.
    found = _found(_REPORTED, job, words) or _found(_SEEN, before_failures(job), words)
    found = found or _found([failures.mismatch], job, words)
    found += _found([failures.settings_differ if found or job.failures else comparisons.slow_rank], job, words)
    order = list(CAUSES)
    return sorted(found, key=lambda verdict: order.index(verdict.cause))


def unsettled(job: Job) -> Job:
    """Return the job without failures that its program has survived.

    The communicators that these failures ended are omitted too. A rank has survived a failure if it has made two
    collective calls since then: it may wait in the second one, but has completed the first.
    """
    handled = {rank.number: _handled(rank) for rank in job}
    survived = {world for found in handled.values() for failure in found for world in failures.died(failure)}
    others = (failure for rank, failure in job.failures if failure not in handled[rank.number])
    survived -= {world for failure in others for world in failures.died(failure)}
    ranks = {rank.number: rank.since(handled[rank.number], survived) for rank in job if rank.number not in survived}
    return Job(ranks, job.notes)


def _handled(rank: Rank) -> list[dict[str, Any]]:
    begun = [entry["began_ns"] for entry in rank.entries if entry["kind"] in CALLS and entry["number"]]
    return [
        failure
        for failure in rank.failures
        if not failure["unhandled"] and sum(began_ns > failure["time_ns"] for began_ns in begun) > 1
    ]


def before_failures(job: Job) -> Job:
    """Return the job as it was when the first wait timed out.

    Later calls do not explain the timeout.
    """
    times = [failure["time_ns"] for _, failure in job.failures if failure["kind"] in failures.OF_WAITS]
    return job.until(min(times) - int(_NOTICED_S * 1e9)) if times else job


def _found(checks: Iterable[_Check], job: Job, words: Words) -> list[Verdict]:
    """Return the first verdict of each check; later ones are mostly consequences."""
    return [verdict for check in checks for verdict in islice(check(job, words), 1)]
