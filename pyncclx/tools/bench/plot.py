"""Picture of operations: time, bus bandwidth and ratio over message size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import picture
from .environment import ranks, wire

TICKS = {1: "1 B", 1 << 10: "1 KB", 1 << 20: "1 MB", 1 << 30: "1 GB"}
STYLES = ("C0o-", "C1s--", "C2^--", "C3v:", "C4d:")  # pyncclx, then the peers in order
ABREAST = 4  # operations in a row of panels
LABELS = ("time (µs)", "bus bandwidth (GB/s)", "peer's time / ours")
Row = dict[str, Any]


def write(path: Path, environment: dict[str, Any], results: list[Row]) -> None:
    """Draw a column of panels for each operation.

    They show time, bus bandwidth and, with peers, the ratio of times.
    """
    operations = list(dict.fromkeys(row["operation"] for row in results))
    columns, bands = min(len(operations), ABREAST), -(-len(operations) // ABREAST)
    labels = LABELS if any(row["peers"] for row in results) else LABELS[:2]
    figure = picture.pyplot().figure(figsize=(3.5 * columns, 2.5 * len(labels) * bands + 0.5), layout="constrained")
    for number, band in enumerate(figure.subfigures(bands, 1, squeeze=False)[:, 0]):
        panels = band.subplots(len(labels), columns, squeeze=False, sharex="col")
        for panel, label in zip(panels[:, 0], labels, strict=True):
            panel.set_ylabel(label)
        here = operations[number * ABREAST :][:ABREAST]
        for column, operation in zip(panels.T, here, strict=False):
            draw(column, [row for row in results if row["operation"] == operation], wire(environment))
            column[0].set_title(operation)
        for panel in panels[:, len(here) :].flat:
            panel.remove()
    where = f"{ranks(environment)}, {environment['mode']}, {environment['date']}"
    figure.suptitle(f"pyncclx: {where}", fontsize=10)
    picture.save(figure, path)


def lines(rows: list[Row]) -> dict[str, list[tuple[float, ...]]]:
    """Return (size, time, busbw, ratio) by library: out of place, or else in place."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for row in rows:
        for name, forms in {"pyncclx": row, **row["peers"]}.items():
            form = "out_of_place" if forms["out_of_place"] else "in_place"
            if forms[form]:
                time = forms[form]["time_us"]
                busbw = row["nbytes"] / time / 1e3 * row["bus_factor"]
                ratio = time / row[form]["time_us"] if row[form] else float("nan")
                found.setdefault(name, []).append((row["nbytes"], time, busbw, ratio))
    return found


def draw(panels: Any, rows: list[Row], limit: float | None) -> None:
    """Draw one operation in its panels; `limit` is the wire's bandwidth in GB/s."""
    # Styles are the same in all panels.
    styles = dict(zip(("pyncclx", *rows[0]["peers"]), STYLES, strict=False))
    for name, points in lines(rows).items():
        sizes, *curves = zip(*points, strict=True)
        for panel, curve in zip(panels, curves, strict=False):
            panel.plot(sizes, curve, styles[name], label=name, markersize=3.5)
    if limit is not None:
        panels[1].axhline(limit, color="0.5", linewidth=1, label=picture.wire_label(limit))
    panels[1].legend(frameon=False, fontsize=8)
    for panel in panels:
        panel.set_xscale("log", base=2)
        panel.grid(alpha=0.3)
    panels[0].set_yscale("log")
    # One rank has no bandwidth.
    if rows[0]["bus_factor"]:
        panels[1].set_yscale("log")
    first, last = rows[0]["nbytes"], rows[-1]["nbytes"]
    ticks = [tick for tick in TICKS if first / 16 <= tick <= last * 2]
    panels[-1].set_xticks(ticks, [TICKS[tick] for tick in ticks])
    panels[-1].set_xlabel("size")
