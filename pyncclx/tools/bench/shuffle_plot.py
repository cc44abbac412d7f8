"""Picture of token shuffles: times over tokens and GB/s over blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import picture, shuffle_peers
from .environment import ranks, wire

WAYS = {"dispatch": ("dispatch", "again"), "combine": ("combine",)}
VARIED = ("hidden", "k", "experts", "routing", "mode")
STYLES = {"dispatch": "C0o-", "again": "C0x:", "combine": "C0o-"}
STYLES |= dict(zip(shuffle_peers.NAMES, ("C1s--", "C2^--", "C3v:", "C4d:"), strict=True))

Row = dict[str, Any]


def write(path: Path, about: dict[str, Any], results: list[Row]) -> None:
    """Draw the first setting over tokens and over blocks, where there are several."""
    first, limit = results[0], wire(about)
    of_setting = [row for row in results if all(row[name] == first[name] for name in VARIED)]
    drawn = [(over_tokens, [row for row in of_setting if row["blocks"] == first["blocks"]])]
    drawn.append((over_blocks, rows_of_blocks(of_setting)))
    columns = [(draw_over, rows) for draw_over, rows in drawn if len(rows) > 1]
    count = max(len(columns), 1)
    figure, panels = picture.pyplot().subplots(2, count, figsize=(5.2 * count, 7), squeeze=False)
    for (draw_over, rows), column in zip(columns, panels.T, strict=False):
        for panel, way in zip(column, WAYS, strict=True):
            draw_over(panel, way, rows, limit)
    where = f"{ranks(about)}, {about['mode']}, {about['date']}"
    routing = f"hidden {first['hidden']}, top {first['k']} of {first['experts']}, {first['routing']}"
    figure.suptitle(f"pyncclx token shuffle: {where}\n{routing}, rows {first['rows_dtype']}", fontsize=9)
    figure.tight_layout()
    picture.save(figure, path, dpi=110)


def rows_of_blocks(rows: list[Row]) -> list[Row]:
    """Return the rows of the last number of tokens, each with the peers' times.

    Only one of the given rows has the peers' times.
    """
    last = [row for row in rows if row["tokens"] == rows[-1]["tokens"]]
    with_peers = next((row for row in last if f"{shuffle_peers.NAMES[0]}_dispatch_us" in row), {})
    return [with_peers | row for row in last if row["blocks"]]


def over_tokens(panel: Any, way: str, rows: list[Row], limit: float | None) -> None:
    """Draw times over tokens of a rank."""
    draw(panel, way, rows, limit, [row["tokens"] for row in rows], lambda row, us: us)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_ylim(bottom=1)
    panel.set(xlabel="tokens a rank", ylabel=f"{way} (µs)")


def over_blocks(panel: Any, way: str, rows: list[Row], limit: float | None) -> None:
    """Draw the GB/s that a rank receives over blocks, one on each multiprocessor.

    Peers choose their own number.
    """
    draw(panel, way, rows, limit, [row["blocks"] for row in rows], lambda row, us: row[f"{way}_nbytes"] / us / 1e3)
    panel.set_ylim(bottom=0)
    panel.set(xlabel=f"multiprocessors; {rows[0]['tokens']} tokens a rank", ylabel=f"{way} (GB/s)")


def draw(
    panel: Any, way: str, rows: list[Row], limit: float | None, over: list[int], value: Callable[[Row, float], float]
) -> None:
    """Draw the `value` of the microseconds of pyncclx and the peers.

    The wire is drawn at `limit` GB/s.
    """
    keys = {f"pyncclx: {name}": (f"{name}_us", STYLES[name]) for name in WAYS[way]}
    keys |= {f"NCCL: {name}": (f"{name}_{way}_us", STYLES[name]) for name in shuffle_peers.NAMES}
    for label, (key, style) in keys.items():
        if key in rows[0]:
            panel.plot(over, [value(row, row[key]) for row in rows], style, label=label, markersize=4, linewidth=1)
    if limit is not None:
        nominal = [value(row, row[f"{way}_nbytes"] / limit / 1e3) for row in rows]
        panel.plot(over, nominal, color="0.5", linewidth=1, label=picture.wire_label(limit))
    panel.grid(alpha=0.3)
    panel.legend(frameon=False, fontsize=7)
