"""python -m pyncclx timeline: write a job's calls as a trace and as a picture.

The trace is in Chrome's format, which https://ui.perfetto.dev opens. A call that only enqueues has no end in the
record: it is drawn until the next call of its rank.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import common
from .job import Entry, Job, Rank, load
from .verdict import Words

_ARGUMENTS = ("number", "algorithm", "datatype", "operator", "elements", "nbytes", "peer", "tag", "site", "flags")
_MOST_NAMED = 10  # operations in the legend
# Least width of a bar, as a share of the picture's width.
_LEAST_WIDTH = 1 / 400
# Least width of a bar that shows its operation's name, as a share of the picture's width.
_LEAST_NAMED = 1 / 14
_PALE = 0.45
_Shown = tuple[int, Entry, int, int]  # row, entry, begin and end in ns
_Span = tuple[float, float]  # begin and length in ms


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", type=Path, help="folder of the dumps, or of a job in /dev/shm/pyncclx-UID")
    parser.add_argument("-o", "--output", type=Path, help="the trace, a JSON file")
    parser.add_argument("--png", type=Path, help="the picture; needs Matplotlib")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of the picture; default: 1")


def run(arguments: argparse.Namespace) -> None:
    """Write the files."""
    if arguments.output is None and arguments.png is None:
        raise SystemExit("give the trace's file, -o trace.json, or the picture's, --png timeline.png")
    job = load(arguments.folder)
    if arguments.output is not None:
        write_trace(job, arguments.output)
        print(f"{arguments.output}: open it in https://ui.perfetto.dev")
    if arguments.png is not None:
        draw(job, arguments.png, arguments.seconds)
        print(arguments.png)


def write_trace(job: Job, path: Path) -> None:
    """Write the trace."""
    common.write_json(path, {"traceEvents": list(events(job)), "displayTimeUnit": "ns"}, indent=None)


def events(job: Job) -> Iterator[dict[str, Any]]:
    """Yield the trace's events: ranks as processes, their communicators as threads."""
    words = Words(job)
    first_ns = min((rank.entries[0]["began_ns"] for rank in job if rank.entries), default=0)
    for rank in job:
        yield _named("process_name", rank, 0, words.rank(rank.number))
        rows = list(dict.fromkeys(entry["comm"] for entry in rank.entries))
        for row, comm in enumerate(rows):
            yield _named("thread_name", rank, row, words.comm_name(comm))
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


def draw(job: Job, path: Path, seconds: float) -> None:
    """Draw the last seconds of a job."""
    words, rows = Words(job), list(job)
    shown, first_ns, end_ns = _last(rows, seconds)
    names = list(dict.fromkeys(entry["operation"] for _, entry, _, _ in shown))
    colours = {name: f"C{number % 10}" for number, name in enumerate(names)}
    from matplotlib.patches import Patch  # noqa: PLC0415  optional

    figure, axes = common.pyplot().subplots(figsize=(9, 1.2 + 0.45 * len(rows)), layout="constrained")
    width = max((end_ns - first_ns) / 1e6, 1e-6)
    for row, entry, begin, end in shown:
        _draw_call(axes, row, entry, ((begin - first_ns) / 1e6, (end - begin) / 1e6), colours, width)
    axes.set_yticks(range(len(rows)), [words.rank(rank.number) for rank in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, width * 1.01)
    axes.set_xlabel("milliseconds")
    title = f"calls of the last {width / 1e3:.3g} s; pale: to the next call, where no end is known"
    axes.set_title(title, fontsize=9)
    handles = [Patch(color=colours[name]) for name in names[:_MOST_NAMED]]
    figure.legend(handles, names[:_MOST_NAMED], loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    common.save(figure, path)


def _last(rows: list[Rank], seconds: float) -> tuple[list[_Shown], int, int]:
    """Return the calls of a job's last seconds, and begin and end of this time in ns."""
    end_ns = max(rank.entries[-1]["began_ns"] for rank in rows if rank.entries)
    end_ns = max([end_ns, *(end for rank in rows for entry, end in spans(rank) if entry["ended_ns"])])
    begin_ns = end_ns - int(seconds * 1e9)
    shown = [
        (row, entry, max(entry["began_ns"], begin_ns), min(end, end_ns))
        for row, rank in enumerate(rows)
        for entry, end in spans(rank)
        if end >= begin_ns and entry["began_ns"] <= end_ns
    ]
    return shown, min((begin for _, _, begin, _ in shown), default=begin_ns), end_ns


def _draw_call(axes: Any, row: int, entry: Entry, span: _Span, colours: dict[str, str], width: float) -> None:
    """Draw the bar of a call; `width` is the length of the whole picture in ms."""
    left, length = span[0], max(span[1], _LEAST_WIDTH * width)
    colour, alpha = colours[entry["operation"]], 1.0 if entry["ended_ns"] else _PALE
    bars = axes.barh(row, length, left=left, color=colour, height=0.8, alpha=alpha, edgecolor="white")
    # Draw a mark where the call begins.
    axes.barh(row, _LEAST_WIDTH * width, left=left, color=colour, height=0.8)
    if length > _LEAST_NAMED * width:
        axes.bar_label(bars, [entry["operation"]], label_type="center", fontsize=7)
