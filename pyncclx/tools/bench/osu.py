"""Table in the format of the OSU micro-benchmarks.

It has the size of one rank's message, and the average latency over the ranks.
"""

from __future__ import annotations

from typing import Any

from . import environment, report
from .cases import FORMS, Case, Options
from .peers import Peer


def header(kind: type[Case], about: dict[str, Any], peers: dict[str, Peer], options: Options) -> str:
    """Return the lines before the table and the titles of the columns."""
    lines = [f"\n# pyncclx {kind.method} Latency Test, {environment.ranks(about)}, {about['mode']}"]
    lines += report.notes(about, peers)
    lines.append(f"# Datatype: {options.datatype}." + (f" Operator: {options.op}." if kind.reduces else ""))
    return "\n".join([*lines, f"{'# Size':<10}{'Avg Latency(us)':>18}" + "".join(f"{name:>18}" for name in peers)])


def line(row: dict[str, Any], scale: int, peers: dict[str, Peer]) -> str:
    """Return the line of one size.

    A peer's time is that of the same form, or in place if it has no other.
    """
    form = "out_of_place" if row["out_of_place"] else "in_place"
    text = f"{row['nbytes'] // scale:<10}{row[form]['average_us']:>18.2f}"
    for name in peers:
        cell = row["peers"][name][form] or row["peers"][name]["in_place"]
        text += f"{cell['average_us']:>18.2f}" if cell else f"{'n/a':>18}"
    return text


def footer(rows: list[dict[str, Any]], peers: dict[str, Peer]) -> str:
    """Return the number of wrong results, or nothing: OSU's tables have no footer."""
    wrong = sum(row[form]["wrong"] or 0 for row in rows for form in FORMS if row[form])
    return f"# Wrong elements: {wrong}" if wrong else ""
