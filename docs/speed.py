# ruff: noqa: RUF001  the multiplication sign and the dash are meant
"""Draw speed.svg and write speed_tables.md from the measurements in examples/benchmarks/results.

The site shows variants of the picture, for dark mode and for phones: speed-dark.svg, speed-narrow.svg and
speed-narrow-dark.svg.

    python docs/speed.py            write all of them again
    python docs/speed.py --check    exit with 1 if one differs from what the measurements give
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "examples" / "benchmarks" / "results"
TABLES = DOCS / "speed_tables.md"

DRAWN = "h200-x4-windows"
OPERATIONS = ("allreduce", "allgather", "alltoall", "reduce")
TABULATED = {
    "h200-x4-windows": "Arrays from `comm.Alloc`",
    "h200-x2-windows": "Arrays from `comm.Alloc`",
    "h100-x2-windows": "Arrays from `comm.Alloc`",
    "h200-x4-ordinary": "Ordinary arrays",
    "h200-x2-ordinary": "Ordinary arrays",
    "h100-x2-ordinary": "Ordinary arrays",
    "h200-x8-ordinary": "Ordinary arrays",
}
SHUFFLES = ("h200-x4-token-shuffle", "h200-x2-token-shuffle", "h100-x2-token-shuffle", "h200-x8-token-shuffle")
WAYS = {"padded": "padded", "gathers": "gathers", "known": "counts known", "read": "counts read"}  # with NCCL
SETTING = ("hidden", "k", "experts", "dtype", "rows_dtype", "layout", "routing", "blocks", "mode")
HALVES = ("dispatch", "combine")
HOST_TIMES = ("h200-x2-host-time", "h100-x2-host-time")
SIZES = (8, 2 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20, 128 << 20)

Row = dict[str, Any]
WIDTH, HEIGHT, LEFT, TOP = 175, 190, 50, 62  # of one panel, and where the first begins
GAP_ACROSS, GAP_DOWN = 22, 52  # between panels
MOST = 3  # times as fast as NCCL: the top of a panel
LEGEND = ("pyncclx", "NCCL, the faster of plain calls and symmetric windows")


class Theme(NamedTuple):
    """The colours of a picture; those of the lines are ours and NCCL's."""

    text: str
    frame: str
    grid: str
    background: str
    lines: tuple[str, str]


LIGHT = Theme("#222", "#888", "#ddd", "#fff", ("#1769aa", "#c2571a"))
DARK = Theme("#d4d4d4", "#888", "#3a3a3a", "none", ("#62b0f0", "#f0935a"))


def read(name: str) -> dict[str, Any]:
    """One file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text())  # type: ignore[no-any-return]


def times(row: Row) -> tuple[float, float]:
    """Microseconds out of place (in place where there is no other form): ours, and the best peer's."""
    form = "out_of_place" if row.get("out_of_place") else "in_place"
    return row[form]["time_us"], min(peer[form]["time_us"] for peer in row["peers"].values())


def by_size(results: dict[str, Any], operation: str) -> dict[int, tuple[float, float]]:
    """The times of one operation, by its size in bytes."""
    return {row["nbytes"]: times(row) for row in results["results"] if row["operation"] == operation}


def title(results: dict[str, Any]) -> str:
    """The device, the number of ranks, the date and the versions that were measured."""
    where = results["environment"]
    device = where["device"].removeprefix("NVIDIA ")
    return f"{where['ranks']} × {device}, {where['date']}, float32, NCCL {where['versions']['nvidia-nccl-cu13']}"


def amount(nbytes: int) -> str:
    """A number of bytes with its unit."""
    for unit, bits in (("MB", 20), ("KB", 10)):
        if nbytes >> bits:
            return f"{nbytes >> bits} {unit}"
    return f"{nbytes} B"


def number(microseconds: float) -> str:
    """A time in microseconds with about three digits."""
    return f"{microseconds:.1f}" if microseconds < 99.95 else f"{microseconds:.0f}"


def nearest(measured: dict[int, tuple[float, float]], nbytes: int) -> tuple[float, float] | None:
    """The times for a size; the smallest size of operations with blocks is 16 bytes or more, not 8."""
    if nbytes == SIZES[0] and measured:
        return measured[min(measured)]
    return measured.get(nbytes)


def table(name: str, kind: str) -> str:
    """One file of results as a table: microseconds, and how many times as long the best peer takes."""
    results = read(name)
    operations = list(dict.fromkeys(row["operation"] for row in results["results"]))
    columns = {operation: by_size(results, operation) for operation in operations}
    lines = [
        f"## {kind}: {title(results)}",
        "",
        f"From `examples/benchmarks/results/{name}.json`.",
        "",
        "| Size | " + " | ".join(f"`{operation.capitalize()}`" for operation in operations) + " |",
        "|---|" + "---|" * len(operations),
    ]
    for nbytes in SIZES:
        cells = []
        for operation in operations:
            found = nearest(columns[operation], nbytes)
            cells.append(f"{number(found[0])} ({found[1] / found[0]:.2f}×)" if found else "–")
        lines.append(f"| {amount(nbytes)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shuffle_table(name: str) -> str:
    """One file of token shuffles as a table: dispatch and combine, and the best way to do each with NCCL."""
    results = read(name)
    where, first = results["environment"], results["results"][0]
    hidden, k, experts, dtype, rows_dtype = (first[key] for key in SETTING[:5])
    lines = [
        f"## Token shuffles: {where['ranks']} × {where['device'].removeprefix('NVIDIA ')}, {where['date']}",
        "",
        f"From `examples/benchmarks/results/{name}.json`, in microseconds: hidden {hidden}, top {k} of {experts} "
        f"experts chosen uniformly. Tokens are sent as {rows_dtype}, and results return as {dtype} (NCCL: {dtype} both "
        "ways). In brackets is NCCL's best method: *padded* to the largest count; *gathers*, two all-gathers there and "
        "an all-to-all of partial sums back; or an all-to-all whose counts the host knows, or reads.",
        "",
        "| Tokens a rank | dispatch | combine | NCCL there | NCCL back |",
        "|---|---|---|---|---|",
    ]
    for row in results["results"]:
        if all(row[key] == first[key] for key in SETTING):
            best = [min(WAYS, key=lambda way, half=half: row[f"{way}_{half}_us"]) for half in HALVES]
            peers = [f"{number(row[f'{way}_{half}_us'])} ({WAYS[way]})" for way, half in zip(best, HALVES, strict=True)]
            own = [number(row[f"{half}_us"]) for half in HALVES]
            lines.append(f"| {row['tokens']} | " + " | ".join([*own, *peers]) + " |")
    return "\n".join(lines)


def host_table(name: str) -> str:
    """One file of what calls cost the host as a table."""
    results = read(name)
    where = results["environment"]
    lines = [
        f"## Time of the host: {where['ranks']} × {where['device'].removeprefix('NVIDIA ')}, {where['date']}",
        "",
        f"From `examples/benchmarks/results/{name}.json`: calls from Python {where['python']}, {where['mode']}.",
        "",
        "| Call | Median, µs | 99 % of calls, µs |",
        "|---|---|---|",
    ]
    rows = results["host_time"]
    return "\n".join([*lines, *(f"| {row['call']} | {row['median_us']:.1f} | {row['p99_us']:.1f} |" for row in rows)])


def tables() -> str:
    """All tables as one page of Markdown."""
    head = "<!-- Written by docs/speed.py from examples/benchmarks/results; do not edit. -->"
    title_of_page = "# Tables of benchmarks\n\n[Benchmarks](benchmarks.md) describes what was measured, and how."
    return "\n\n".join([head, title_of_page, *_all_tables()]) + "\n"


def _all_tables() -> list[str]:
    return [
        *(table(name, kind) for name, kind in TABULATED.items()),
        *(shuffle_table(name) for name in SHUFFLES),
        *(host_table(name) for name in HOST_TIMES),
    ]


def log_position(value: float, low: float, high: float) -> float:
    """Where a value is between two others on a logarithmic axis, from 0 to 1."""
    from math import log  # noqa: PLC0415

    return log(value / low) / log(high / low)


def text(x: float, y: float, content: str, **attributes: str) -> str:
    """One piece of text in the picture."""
    written = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{written}>{escape(content)}</text>'


def panel(measured: dict[int, tuple[float, float]], name: str, corner: tuple[int, int], theme: Theme) -> list[str]:
    """One operation: how many times as fast as NCCL, over the size of the message."""
    low_size, high_size, (left, top) = 8, 128 << 20, corner
    lines = [f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" class="frame"/>']
    lines += [f'<path d="M{left} {height_of(tick, top):.1f}h{WIDTH}" class="grid"/>' for tick in range(2, MOST)]
    for nbytes in (8, 1 << 10, 128 << 10, 16 << 20):
        x = left + WIDTH * log_position(nbytes, low_size, high_size)
        lines.append(f'<path d="M{x:.1f} {top}v{HEIGHT}" class="grid"/>')
        lines.append(text(x, top + HEIGHT + 14, amount(nbytes), text_anchor="middle"))
    ours, theirs = theme.lines
    lines.append(f'<path d="M{left} {height_of(1, top):.1f}h{WIDTH}" stroke="{theirs}" stroke-width="2"/>')
    points = [
        f"{left + WIDTH * log_position(nbytes, low_size, high_size):.1f},{height_of(peer / own, top):.1f}"
        for nbytes, (own, peer) in sorted(measured.items())
    ]
    lines.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{ours}" stroke-width="2"/>')
    lines.append(text(left + WIDTH / 2, top - 8, name.capitalize(), text_anchor="middle", font_weight="bold"))
    return lines


def height_of(ratio: float, top: int) -> float:
    """Where a ratio is in a panel that begins at `top`, on a linear axis."""
    return top + HEIGHT - HEIGHT * ratio / MOST


def ticks_of_ratios(top: int) -> list[str]:
    """The numbers at the left of a row of panels."""
    return [text(LEFT - 5, height_of(tick, top) + 4, f"{tick}×", text_anchor="end") for tick in range(1, MOST + 1)]


def legend(left: int, y: int, theme: Theme) -> list[str]:
    """What each line is."""
    lines = []
    for label, colour, x in zip(LEGEND, theme.lines, (left, left + 90), strict=True):
        lines.append(f'<path d="M{x} {y}h18" stroke="{colour}" stroke-width="3"/>')
        lines.append(text(x + 23, y + 4, label))
    return lines


def picture(theme: Theme = LIGHT, columns: int = len(OPERATIONS)) -> str:
    """The picture as SVG, with its panels in some columns."""
    results, rows = read(DRAWN), len(OPERATIONS) // columns
    head = ["How many times as fast as NCCL, in a CUDA graph", f"{title(results)}, buffers in windows"]
    head = ["; ".join(head)] if rows == 1 else head
    left, font_size = (LEFT, "13") if rows == 1 else (12, "12")
    first = TOP + 18 * (len(head) - 1)
    lefts = [LEFT + column * (WIDTH + GAP_ACROSS) for column in range(columns)]
    tops = [first + row * (HEIGHT + GAP_DOWN) for row in range(rows)]
    width, height = lefts[-1] + WIDTH + 24, tops[-1] + HEIGHT + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="11" fill="{theme.text}">',
        f"<style>.frame{{fill:none;stroke:{theme.frame}}}.grid{{stroke:{theme.grid};fill:none}}</style>",
        f'<rect width="{width}" height="{height}" fill="{theme.background}"/>',
        *(text(left, 18 + 18 * number, line, font_size=font_size) for number, line in enumerate(head)),
        *legend(left, first - 29, theme),
    ]
    corners = [(x, y) for y in tops for x in lefts]
    for operation, corner in zip(OPERATIONS, corners, strict=True):
        lines += panel(by_size(results, operation), operation, corner, theme)
    lines += [line for top in tops for line in ticks_of_ratios(top)]
    lines.append(text(width / 2, height - 8, "size of the message", text_anchor="middle"))
    return "\n".join([*lines, "</svg>"]) + "\n"


def made() -> dict[Path, str]:
    """All files, and what they have to contain."""
    return {
        DOCS / "speed.svg": picture(),
        DOCS / "speed-dark.svg": picture(DARK),
        DOCS / "speed-narrow.svg": picture(columns=2),
        DOCS / "speed-narrow-dark.svg": picture(DARK, columns=2),
        TABLES: tables(),
    }


def main() -> int:
    """Write the files, or compare them with what they should be."""
    files = made()
    if "--check" not in sys.argv[1:]:
        for path, content in files.items():
            path.write_text(content)
        return 0
    stale = [path.name for path, content in files.items() if not path.exists() or path.read_text() != content]
    if stale:
        print(f"run python docs/speed.py: {', '.join(stale)} differ from the measurements", file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
