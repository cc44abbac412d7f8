"""The picture of token shuffles: times over tokens and GB/s over blocks, ours beside the peers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import picture, shuffle_peers
from .environment import ranks, wire

WAYS = {"dispatch": ("dispatch", "again"), "combine": ("combine",)}
VARIED = ("hidden", "k", "experts", "routing", "mode")
STYLES = {"dispatch": "C0o-", "again": "C0x:", "combine": "C0o-"}
STYLES |= dict(zip(shuffle_peers.NAMES, ("C1s--", "C2^--", "C3v:", "C4d:"), strict=True))


def write(path: Path, about: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Draw the first setting, over tokens and over blocks, as far as there are several."""
    first, limit = results[0], wire(about)
    of_setting = [row for row in results if all(row[name] == first[name] for name in VARIED)]
    drawn = [(over_tokens, [row for row in of_setting if row["blocks"] == first["blocks"]])]
    drawn.append((over_blocks, rows_of_blocks(of_setting)))
    columns = [(draw, rows) for draw, rows in drawn if len(rows) > 1]
    count = max(len(columns), 1)
    figure, panels = picture.pyplot().subplots(2, count, figsize=(5.2 * count, 7), squeeze=False)
    for (draw, rows), column in zip(columns, panels.T, strict=False):
        for panel, way in zip(column, WAYS, strict=True):
            draw(panel, way, rows, limit)
    where = f"{ranks(about)}, {about['mode']}, {about['date']}"
    routing = f"hidden {first['hidden']}, top {first['k']} of {first['experts']}, {first['routing']}"
    figure.suptitle(f"pyncclx token shuffle: {where}\n{routing}, rows {first['rows_dtype']}", fontsize=9)
    figure.tight_layout()
    picture.save(figure, path, dpi=110)


def rows_of_blocks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Select the rows of the last number of tokens, with the peers' times, which one of them has, in all."""
    last = [row for row in rows if row["tokens"] == rows[-1]["tokens"]]
    with_peers = next((row for row in last if f"{shuffle_peers.NAMES[0]}_dispatch_us" in row), {})
    return [with_peers | row for row in last if row["blocks"]]


def over_tokens(panel: Any, way: str, rows: list[dict[str, Any]], limit: float | None) -> None:
    """Draw times over tokens a rank."""
    tokens = [row["tokens"] for row in rows]
    for name in WAYS[way]:
        panel.plot(tokens, [row[f"{name}_us"] for row in rows], STYLES[name], label=f"pyncclx: {name}", markersize=4)
    for name in shuffle_peers.NAMES:
        if f"{name}_{way}_us" in rows[0]:
            times = [row[f"{name}_{way}_us"] for row in rows]
            panel.plot(tokens, times, STYLES[name], label=f"NCCL: {name}", markersize=4, linewidth=1)
    if limit is not None:
        nominal = [row[f"{way}_nbytes"] / limit / 1e3 for row in rows]
        panel.plot(tokens, nominal, color="0.5", linewidth=1, label=picture.wire_label(limit))
        panel.set_ylim(bottom=1)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    finish(panel, "tokens a rank", f"{way} (µs)")


def over_blocks(panel: Any, way: str, rows: list[dict[str, Any]], limit: float | None) -> None:
    """Draw GB/s that a rank receives over blocks, one on each multiprocessor. Peers choose their own number."""
    blocks, label = [row["blocks"] for row in rows], f"{rows[0]['tokens']} tokens a rank"
    bandwidths = [row[f"{way}_nbytes"] / row[f"{way}_us"] / 1e3 for row in rows]
    panel.plot(blocks, bandwidths, STYLES[way], label=label, markersize=4)
    for name in shuffle_peers.NAMES:
        if f"{name}_{way}_us" in rows[0]:
            useful = rows[0][f"{way}_nbytes"] / rows[0][f"{name}_{way}_us"] / 1e3
            color, line = STYLES[name][:2], STYLES[name][3:]
            panel.axhline(useful, color=color, linestyle=line, linewidth=1, label=f"NCCL: {name}")
    if limit is not None:
        panel.axhline(limit, color="0.5", linewidth=1, label=picture.wire_label(limit))
    panel.set_ylim(bottom=0)
    finish(panel, "multiprocessors", f"{way} (GB/s)")


def finish(panel: Any, below: str, beside: str) -> None:
    """Name the axes."""
    panel.set_xlabel(below)
    panel.set_ylabel(beside)
    panel.grid(alpha=0.3)
    panel.legend(frameon=False, fontsize=7)
