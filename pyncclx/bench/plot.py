"""The benchmark's picture: latency and bus bandwidth over message size, ours beside the peers', and the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .environment import wire

SIZES = {1: "1 B", 1 << 10: "1 KB", 1 << 20: "1 MB", 1 << 30: "1 GB"}
STYLES = ("C0o-", "C1s--", "C2^--", "C3v:", "C4d:")  # ours, then the peers in their order


def write(path: Path, environment: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Draw one column of panels an operation: time above, bus bandwidth below."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  only who asks for a picture needs it

    operations = list(dict.fromkeys(row["operation"] for row in results))
    figure, panels = plt.subplots(2, len(operations), figsize=(4.2 * len(operations), 6.5), squeeze=False, sharex=True)
    for column, operation in enumerate(operations):
        rows = [row for row in results if row["operation"] == operation]
        draw(panels[0][column], panels[1][column], rows, wire(environment))
        panels[0][column].set_title(operation)
    panels[0][0].set_ylabel("time (µs)")
    panels[1][0].set_ylabel("bus bandwidth (GB/s)")
    where = f"{environment['ranks']} ranks, {environment['device']}, {environment['mode']}, {environment['date']}"
    figure.suptitle(f"pyncclx: {where}", fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def lines(rows: list[dict[str, Any]]) -> dict[str, list[tuple[float, float, float]]]:
    """Size, time and busbw of everybody who was timed; out of place, or in place where that is the only form."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows:
        for name, forms in {"pyncclx": row, **row["peers"]}.items():
            cell = forms["out_of_place"] or forms["in_place"]
            if cell:
                busbw = row["nbytes"] / cell["time_us"] / 1e3 * row["bus_factor"]
                found.setdefault(name, []).append((row["nbytes"], cell["time_us"], busbw))
    return found


def draw(times: Any, bandwidths: Any, rows: list[dict[str, Any]], limit: float | None) -> None:
    """Draw one operation; `limit` is what the wire carries in GB/s."""
    styles = dict(zip(("pyncclx", *rows[0]["peers"]), STYLES, strict=False))  # the same in all panels
    for name, points in lines(rows).items():
        sizes, microseconds, busbw = zip(*points, strict=True)
        times.plot(sizes, microseconds, styles[name], label=name, markersize=4)
        bandwidths.plot(sizes, busbw, styles[name], label=name, markersize=4)
    if limit is not None:
        bandwidths.axhline(limit, color="0.5", linewidth=1, label=f"wire, {limit:g} GB/s nominal")
    bandwidths.set_xlabel("size")
    bandwidths.legend(frameon=False, fontsize=8)
    first, last = rows[0]["nbytes"], rows[-1]["nbytes"]
    for panel in (times, bandwidths):
        panel.set_xscale("log", base=2)
        if panel is times or rows[0]["bus_factor"]:  # one rank has no bandwidth
            panel.set_yscale("log")
        panel.grid(alpha=0.3)
    ticks = [tick for tick in SIZES if first / 16 <= tick <= last * 2]
    bandwidths.set_xticks(ticks, [SIZES[tick] for tick in ticks])
