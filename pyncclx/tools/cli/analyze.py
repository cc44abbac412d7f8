"""python -m pyncclx analyze: name what is wrong with a job, from its records.

The folder is that of the dumps, which their messages name (PYNCCLX_DUMP), or that of a job's flight recorders. Ranks
that were killed have no dump: their flight recorder's file is read, if it is on this host. The first line is the
verdict; its evidence follows. Exit status: 0 if nothing is wrong, 1 otherwise, 2 if nothing was found.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ..observe import torch_format
from ..observe.analysis import analyse
from ..observe.job import Job, load
from ..observe.verdict import CAUSES, Verdict
from ..observe.words import Words

HEALTHY = "no fault found"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", type=Path, help="of the dumps, or of a job in /dev/shm/pyncclx-UID")
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
    print(json.dumps([asdict(verdict) for verdict in verdicts], indent=1) if arguments.json else report(job, verdicts))
    raise SystemExit(1 if verdicts else 0)


def report(job: Job, verdicts: list[Verdict]) -> str:
    """Return the first verdict and its evidence, the others, and each rank's place."""
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
