"""The benchmark's picture: latency and bus bandwidth over message size, ours beside NCCL's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SIZES = {1: "1 B", 1 << 10: "1 KB", 1 << 20: "1 MB", 1 << 30: "1 GB"}


def write(path: Path, environment: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Draw one column of panels an operation: time above, bus bandwidth below."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  only who asks for a picture needs it

    operations = list(dict.fromkeys(row["operation"] for row in results))
    figure, panels = plt.subplots(2, len(operations), figsize=(4.2 * len(operations), 6.5), squeeze=False, sharex=True)
    for column, operation in enumerate(operations):
        rows = [row for row in results if row["operation"] == operation]
        _draw(panels[0][column], panels[1][column], rows)
        panels[0][column].set_title(operation)
    panels[0][0].set_ylabel("time (µs)")
    panels[1][0].set_ylabel("bus bandwidth (GB/s)")
    panels[0][0].legend(frameon=False)
    where = f"{environment['ranks']} ranks, {environment['device']}, {environment['mode']}, {environment['date']}"
    figure.suptitle(f"pyncclx: {where}", fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw(times: Any, bandwidths: Any, rows: list[dict[str, Any]]) -> None:
    sizes = [row["nbytes"] for row in rows]
    for key, label, style in (("time_us", "pyncclx", "o-"), ("nccl_us", "NCCL", "s--")):
        if key not in rows[0]:
            continue
        times.plot(sizes, [row[key] for row in rows], style, label=label, markersize=4)
        busbw = [row["nbytes"] / row[key] / 1e3 * row["bus_factor"] for row in rows]
        bandwidths.plot(sizes, busbw, style, label=label, markersize=4)
    times.set_xscale("log", base=2)
    times.set_yscale("log")
    bandwidths.set_xlabel("size")
    ticks = [tick for tick in SIZES if sizes[0] / 16 <= tick <= sizes[-1] * 2]
    bandwidths.set_xticks(ticks, [SIZES[tick] for tick in ticks])
    for panel in (times, bandwidths):
        panel.grid(alpha=0.3)
