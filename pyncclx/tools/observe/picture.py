"""Picture of the ranks' last calls: a row for each rank, a bar for each call."""

from __future__ import annotations

from pathlib import Path

from .chrome_format import spans
from .job import Job
from .words import Words

_MOST_NAMED = 10  # operations in the legend
# Least width of a bar, as a part of the whole.
_LEAST_WIDTH = 1 / 400
# Least width of a bar that shows its operation's name, as a part of the whole.
_LEAST_NAMED = 1 / 14
_PALE = 0.45


def write(job: Job, path: Path, seconds: float) -> None:
    """Draw the last seconds of a job."""
    words, rows = Words(job), list(job)
    end_ns = max(rank.entries[-1]["began_ns"] for rank in rows if rank.entries)
    end_ns = max([end_ns, *(end for rank in rows for entry, end in spans(rank) if entry["ended_ns"])])
    begin_ns = end_ns - int(seconds * 1e9)
    shown = [
        (row, entry, max(entry["began_ns"], begin_ns), min(end, end_ns))
        for row, rank in enumerate(rows)
        for entry, end in spans(rank)
        if end >= begin_ns and entry["began_ns"] <= end_ns
    ]
    first_ns = min((begin for _, _, begin, _ in shown), default=begin_ns)
    names = list(dict.fromkeys(entry["operation"] for _, entry, _, _ in shown))
    colours = {name: f"C{number % 10}" for number, name in enumerate(names)}
    import matplotlib.pyplot as plt  # noqa: PLC0415  optional
    from matplotlib.patches import Patch  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.45 * len(rows)), layout="constrained")
    width = max((end_ns - first_ns) / 1e6, 1e-6)
    for row, entry, begin, end in shown:
        length = max((end - begin) / 1e6, _LEAST_WIDTH * width)
        left, colour = (begin - first_ns) / 1e6, colours[entry["operation"]]
        alpha = 1.0 if entry["ended_ns"] else _PALE
        bars = axes.barh(row, length, left=left, color=colour, height=0.8, alpha=alpha, edgecolor="white")
        # A mark where the call begins.
        axes.barh(row, _LEAST_WIDTH * width, left=left, color=colour, height=0.8)
        if length > _LEAST_NAMED * width:
            axes.bar_label(bars, [entry["operation"]], label_type="center", fontsize=7)
    axes.set_yticks(range(len(rows)), [words.rank(rank.number) for rank in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, width * 1.01)
    axes.set_xlabel("milliseconds")
    title = f"calls of the last {width / 1e3:.3g} s; pale: to the next call, where no end is known"
    axes.set_title(title, fontsize=9)
    handles = [Patch(color=colours[name]) for name in names[:_MOST_NAMED]]
    figure.legend(handles, names[:_MOST_NAMED], loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
