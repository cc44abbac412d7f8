"""Pictures of operations over message size, and of token shuffles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import common
from . import shuffle_peers
from .environment import Row, ranks, wire

TICKS = {1: "1 B", 1 << 10: "1 KB", 1 << 20: "1 MB", 1 << 30: "1 GB"}
STYLES = ("C0o-", "C1s--", "C2^--", "C3v:", "C4d:")  # pyncclx, then the peers in order
ABREAST = 4  # operations in a row of panels
LABELS = ("time (µs)", "bus bandwidth (GB/s)", "peer's time / ours")
# Operations of a token shuffle with pyncclx's forms of them, and options that may differ between settings.
WAYS = {"dispatch": ("dispatch", "again"), "combine": ("combine",)}
VARIED = ("hidden", "k", "experts", "routing", "mode")
SHUFFLE_STYLES = {"dispatch": "C0o-", "again": "C0x:", "combine": "C0o-"}
SHUFFLE_STYLES |= dict(zip(shuffle_peers.NAMES, STYLES[1:], strict=True))


def write(path: Path, about: Row, results: list[Row]) -> None:
    """Draw a column of panels for each operation.

    The panels show time, bus bandwidth and, with peers, the ratio of times.
    """
    operations = list(dict.fromkeys(row["operation"] for row in results))
    columns, bands = min(len(operations), ABREAST), -(-len(operations) // ABREAST)
    labels = LABELS if any(row["peers"] for row in results) else LABELS[:2]
    figure = common.pyplot().figure(figsize=(3.5 * columns, 2.5 * len(labels) * bands + 0.5), layout="constrained")
    for number, band in enumerate(figure.subfigures(bands, 1, squeeze=False)[:, 0]):
        panels = band.subplots(len(labels), columns, squeeze=False, sharex="col")
        for panel, label in zip(panels[:, 0], labels, strict=True):
            panel.set_ylabel(label)
        here = operations[number * ABREAST :][:ABREAST]
        for column, operation in zip(panels.T, here, strict=False):
            draw(column, [row for row in results if row["operation"] == operation], wire(about))
            column[0].set_title(operation)
        for panel in panels[:, len(here) :].flat:
            panel.remove()
    figure.suptitle(f"pyncclx: {where(about)}", fontsize=10)
    common.save(figure, path)


def where(about: Row) -> str:
    """Return where, how and when something was measured."""
    return f"{ranks(about)}, {about['mode']}, {about['date']}"


def wire_style(limit_gbs: float) -> dict[str, Any]:
    """Return the style and label of the line of the wire's bandwidth."""
    return {"color": "0.5", "linewidth": 1, "label": f"wire, {limit_gbs:g} GB/s nominal"}


def lines(rows: list[Row]) -> dict[str, list[tuple[float, ...]]]:
    """Return (size, time, busbw, ratio) for each library, out of place if possible."""
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
        panels[1].axhline(limit, **wire_style(limit))
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


# ---- token shuffles --------------------------------------------------------------------------------------------------


def write_shuffles(path: Path, about: Row, results: list[Row]) -> None:
    """Draw the first setting over tokens, and over blocks, if there are several."""
    first = results[0]
    of_setting = [row for row in results if all(row[name] == first[name] for name in VARIED)]
    of_tokens = [row for row in of_setting if row["blocks"] == first["blocks"]]
    drawn = {"tokens": of_tokens, "blocks": rows_of_blocks(of_setting)}
    columns = {over: rows for over, rows in drawn.items() if len(rows) > 1}
    count = max(len(columns), 1)
    figure, panels = common.pyplot().subplots(2, count, figsize=(5.2 * count, 7), squeeze=False)
    for (over, rows), column in zip(columns.items(), panels.T, strict=False):
        for panel, way in zip(column, WAYS, strict=True):
            draw_shuffle(panel, way, rows, over, wire(about))
    routing = f"hidden {first['hidden']}, top {first['k']} of {first['experts']}, {first['routing']}"
    figure.suptitle(f"pyncclx token shuffle: {where(about)}\n{routing}, rows {first['rows_dtype']}", fontsize=9)
    figure.tight_layout()
    common.save(figure, path, dpi=110)


def rows_of_blocks(rows: list[Row]) -> list[Row]:
    """Return the rows for the last number of tokens, with the peers' times in each.

    Peers are timed once for each number of tokens, so only one of these rows has their times.
    """
    last = [row for row in rows if row["tokens"] == rows[-1]["tokens"]]
    with_peers = next((row for row in last if f"{shuffle_peers.NAMES[0]}_dispatch_us" in row), {})
    return [with_peers | row for row in last if row["blocks"]]


def draw_shuffle(panel: Any, way: str, rows: list[Row], over: str, limit: float | None) -> None:
    """Draw times over a rank's tokens, or received GB/s over numbers of blocks.

    There is one block on each multiprocessor; peers choose their own number.
    """
    keys = {f"pyncclx: {name}": f"{name}_us" for name in WAYS[way]}
    keys |= {f"NCCL: {name}": f"{name}_{way}_us" for name in shuffle_peers.NAMES}
    places, of_tokens = [row[over] for row in rows], over == "tokens"

    def value(row: Row, us: float) -> float:
        return us if of_tokens else float(row[f"{way}_nbytes"] / us / 1e3)

    for label, key in keys.items():
        if key in rows[0]:
            style = SHUFFLE_STYLES[label.split()[-1]]
            panel.plot(places, [value(row, row[key]) for row in rows], style, label=label, markersize=4, linewidth=1)
    if limit is not None:
        panel.plot(places, [value(row, row[f"{way}_nbytes"] / limit / 1e3) for row in rows], **wire_style(limit))
    if of_tokens:
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
    panel.set_ylim(bottom=int(of_tokens))
    label = "tokens a rank" if of_tokens else f"multiprocessors; {rows[0]['tokens']} tokens a rank"
    panel.set(xlabel=label, ylabel=f"{way} ({'µs' if of_tokens else 'GB/s'})")
    panel.grid(alpha=0.3)
    panel.legend(frameon=False, fontsize=7)
