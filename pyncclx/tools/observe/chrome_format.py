"""Trace of all ranks' calls in Chrome's format, which Perfetto reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .job import Entry, Job, Rank
from .words import Words

_ARGUMENTS = ("number", "algorithm", "datatype", "operator", "elements", "nbytes", "peer", "tag", "site", "flags")


def write(job: Job, path: Path) -> None:
    """Write the trace."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": list(events(job)), "displayTimeUnit": "ns"}))


def events(job: Job) -> Iterator[dict[str, Any]]:
    """Yield the events: each rank is a process, each of its communicators a thread."""
    words = Words(job)
    first_ns = min((rank.entries[0]["began_ns"] for rank in job if rank.entries), default=0)
    for rank in job:
        yield _named("process_name", rank, 0, words.rank(rank.number))
        rows = list(dict.fromkeys(entry["comm"] for entry in rank.entries))
        for row, comm in enumerate(rows):
            yield _named("thread_name", rank, row, words.comm(comm).removeprefix(" of ") or "MPI.COMM_WORLD")
        for entry, end_ns in spans(rank):
            yield {
                "name": entry["operation"],
                "cat": entry["kind"],
                "ph": "X",
                "ts": (entry["began_ns"] - first_ns) / 1e3,
                "dur": (end_ns - entry["began_ns"]) / 1e3,
                "pid": rank.number,
                "tid": rows.index(entry["comm"]),
                "args": {name: entry[name] for name in _ARGUMENTS},
            }


def spans(rank: Rank) -> Iterator[tuple[Entry, int]]:
    """Yield a rank's entries with their ends.

    A call without a known end lasts until the next call begins, or until the time of the record.
    """
    begins = [entry["began_ns"] for entry in rank.entries[1:]] + [rank.at_ns]
    for entry, next_ns in zip(rank.entries, begins, strict=True):
        yield entry, int(entry["ended_ns"] or max(next_ns, entry["began_ns"]))


def _named(what: str, rank: Rank, row: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": rank.number, "tid": row, "args": {"name": name}}
