# ruff: noqa: RUF001  the multiplication sign and the dash are meant
"""The tables that docs/measured.py writes: functions that yield the lines of a table, the head first.

Each reads files of examples/benchmarks/results. `TABLES` has them by name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from speed import DOCS, RESULTS, SIZES, amount, by_size, number, read, times

sys.path.append(str(DOCS.parent / "examples" / "benchmarks"))
from rows import rows

Line = Sequence[str]
Cell = Callable[[dict[str, Any]], str]
TABLES: dict[str, Callable[[], Iterable[Line]]] = {}


def table(function: Callable[[], Iterable[Line]]) -> Callable[[], Iterable[Line]]:
    """Register the function of a table."""
    TABLES[function.__name__] = function
    return function


def link(name: str, text: str = "results") -> str:
    """Return a link to a file of results."""
    return f"[{text}](results/{name}.json)"


def methods(names: Iterable[str]) -> list[str]:
    """Return the names of methods for the head of a table."""
    return [f"`{name.capitalize()}`" for name in names]


def own(row: dict[str, Any]) -> float:
    """Return the time of pyncclx, out of place where there is this form."""
    return (row["out_of_place"] or row["in_place"])["time_us"]  # type: ignore[no-any-return]


@table
def cold() -> Iterator[Line]:
    runs = read("h200-cold")["runs"]
    yield "", *(f"{run['ranks']} ranks" for run in runs if run["ready"])
    for ready, kernels in ((False, "empty cache"), (True, "ready-made kernels")):
        chosen = [run for run in runs if run["ready"] == ready]
        first = [run["seconds"]["Allreduce float32 SUM, 4 KB"] for run in chosen]
        yield f"first `Allreduce` of 4 KB, {kernels}", *(f"{seconds:.2f}" for seconds in first)
        yield f"twelve operations, {kernels}", *(f"{run['total']:.2f}" for run in chosen)


def ahead(name: str) -> str:
    """Return in how many rows pyncclx is faster, of how many."""
    ratios = [row.ratio for row in rows(read(name)["results"])]
    return f"{sum(ratio >= 1 for ratio in ratios)} of {len(ratios)}"


@table
def rows_ahead() -> Iterator[Line]:
    yield "GPUs", "Arrays", "Datatype", "Date", "Peer", "Faster"
    for gpus, name in (("4 × H200", "h200-x4"), ("2 × H200", "h200-x2"), ("2 × H100", "h100-x2")):
        for arrays in ("windows", "windows-bfloat16", "ordinary"):
            about, (kind, _, datatype) = read(f"{name}-{arrays}")["environment"], arrays.partition("-")
            cells = about["date"], about["peers"]["nccl"], link(f"{name}-{arrays}", ahead(f"{name}-{arrays}"))
            yield gpus, kind, datatype or "float32", *cells


def slower(names: dict[str, str]) -> Iterator[Line]:
    """Yield a table of the operations of some files in which NCCL is faster, with sizes and ratios."""
    yield "GPUs", "Operation", "Sizes", "Ratio"
    for gpus, name in names.items():
        found: dict[str, list[tuple[int, float]]] = {}
        for row in rows(read(name)["results"]):
            if row.ratio < 0.995:
                found.setdefault(row.operation, []).append((row.nbytes, row.ratio))
        for operation, each in found.items():
            sizes, ratios = sorted({nbytes for nbytes, _ in each}), [f"{ratio:.2f}" for _, ratio in each]
            extremes = dict.fromkeys((min(ratios), max(ratios)))
            yield gpus, f"`{operation.capitalize()}`", ", ".join(map(amount, sizes)), " to ".join(extremes)


@table
def slower_windows() -> Iterator[Line]:
    yield from slower({"4 × H200": "h200-x4-windows", "2 × H200": "h200-x2-windows", "2 × H100": "h100-x2-windows"})


@table
def slower_ordinary() -> Iterator[Line]:
    names = {"8 × H200": "h200-x8-ordinary", "4 × H200": "h200-x4-ordinary"}
    yield from slower(names | {"2 × H200": "h200-x2-ordinary", "2 × H100": "h100-x2-ordinary"})


@table
def windows_of_8() -> Iterator[Line]:
    """Return what was printed: the time, and the ratio to NCCL or to its symmetric windows."""
    columns: dict[str, dict[int, str]] = {}
    for line in (RESULTS / "h200-x8-windows.txt").read_text().splitlines():
        if found := re.match(r"# (\w+), 8 ranks", line):
            column = columns.setdefault(found[1], {})
        elif (words := line.split()) and words[0].isdecimal():
            # Columns of the time, and of both peers' ratios. Operations that are in place only have "n/a" elsewhere.
            further = (4, 2, 2) if words[5] == "n/a" else (0, 0, 0)
            time, *ratios = (words[place + more] for place, more in zip((5, 14, 18), further, strict=True))
            column.setdefault(int(words[0]), f"{number(float(time))} ({min(map(float, ratios)):.2f}×)")
    yield "Size", *methods(columns)
    for nbytes in (32, *SIZES[1:]):
        yield amount(nbytes), *(column.get(nbytes, "–") for column in columns.values())


@table
def call_times() -> Iterator[Line]:
    us = read("cpu-call-times")["cpu_us"]
    yield "µs of CPU", "enqueued", "where the host waits"
    for call in (call for call in us["now"] if not call.endswith(", blocking")):
        pairs = [(us["now"][name], us["before"][name]) for name in (call, f"{call}, blocking")]
        yield call, *(f"{now:.1f} ({before:.1f})" for now, before in pairs)


@table
def hops() -> Iterator[Line]:
    yield "Hop", "µs"
    for hop, microseconds in read("host-hops")["microseconds"].items():
        yield hop, f"{microseconds:.2f}"


def beside_peer(row: dict[str, Any]) -> str:
    """Return the time of an operation, and how many times as long the best peer takes."""
    own, peer = times(row)
    return f"{number(own)} ({peer / own:.2f}×)"


def by_operation(
    name: str, sizes: Sequence[int], cell: Callable[[dict[str, Any]], str] = beside_peer
) -> Iterator[Line]:
    """Yield a table of one file, with a column for each operation."""
    columns: dict[str, dict[int, str]] = {}
    for row in read(name)["results"]:
        columns.setdefault(row["operation"], {})[row["nbytes"]] = cell(row)
    yield "Size", *methods(columns)
    for nbytes in sizes:
        # The smallest size of operations with blocks is 16 bytes, not 8.
        yield amount(nbytes), *(column.get(nbytes) or column.get(2 * nbytes, "–") for column in columns.values())


@table
def over_nodes() -> Iterator[Line]:
    yield from by_operation("h200-x2-nodes-graph", (8, 2 << 10, 32 << 10, 128 << 10, 2 << 20, 32 << 20))


@table
def node_messages() -> Iterator[Line]:
    yield from by_operation("h200-x2-node-messages", (8, 2 << 10, 32 << 10, 512 << 10, 8 << 20, 128 << 20))


@table
def shared_eager() -> Iterator[Line]:
    yield from by_operation("h200-x2-shared-eager", (512, 8 << 10, 128 << 10, 2 << 20, 32 << 20))


@table
def shared() -> Iterator[Line]:
    yield from by_operation("h200-x2-shared", (32, 8 << 10, 128 << 10, 2 << 20, 32 << 20), lambda row: number(own(row)))


@table
def creation() -> Iterator[Line]:
    yield (
        *("ranks, 8 on a node", "simulated", "rounds", "messages of one rank, at most", "bytes it sends, at most"),
        *("NCCLX, published", "NCCL, published"),
    )
    for each in {each["ranks"]: each for each in read("simulated-creation")["simulated"]}.values():
        rounds, messages, nbytes = (
            sum(stage[key] for stage in each["stages"]) for key in ("rounds", "messages", "nbytes")
        )
        published = [f"{each['published_s'][name]:.3g} s" if each["published_s"] else "" for name in ("NCCLX", "NCCL")]
        made = f"{each['seconds']:.2f} s", str(rounds), str(messages), f"{nbytes / 1e6:.1f} MB"
        yield str(each["ranks"]), *made, *published


@table
def nodes_found() -> Iterator[Line]:
    """The first part of what `simulate --measure` measures, and the model's."""
    runs = read("cpu-creation")["runs"]
    parts = [(run["measured"][0], run["simulated"][0]["stages"][0]) for run in runs]
    yield "ranks", *(str(run["simulated"][0]["ranks"]) for run in runs)
    yield "measured (ms)", *(f"{measured['seconds'] * 1e3:.2g}" for measured, _ in parts)
    yield "processors' time of all ranks (ms)", *(f"{measured['cpu_seconds'] * 1e3:.2g}" for measured, _ in parts)
    yield "model (ms)", *(f"{(stage['network_s'] + stage['computed_s']) * 1e3:.2g}" for _, stage in parts)


@table
def objects() -> Iterator[Line]:
    found = read("h200-x2-objects")["objects"]
    names = list(dict.fromkeys(each["method"] for each in found))
    cells = {(each["object"], each["method"]): f"{number(each['us'])} ({number(each['mpi4py_us'])})" for each in found}
    yield "", *(f"`{name}`" for name in names)
    for kind in dict.fromkeys(each["object"] for each in found):
        yield kind, *(cells.get((kind, name), "–") for name in names)


@table
def put_signal() -> Iterator[Line]:
    files = ("2 × H100", "h100-x2-put-signal"), ("2 × H200", "h200-x2-put-signal")
    columns = {gpus: by_size(read(name), "put_signal") for gpus, name in files}
    yield "Size", *(head for gpus in columns for head in (gpus, "NCCL's send and receive"))
    for nbytes in (8, 2 << 10, 32 << 10, 512 << 10, 8 << 20, 128 << 20):
        yield amount(nbytes), *(number(value) for column in columns.values() for value in column[nbytes])


@table
def operators() -> Iterator[Line]:
    files = {
        "4 × H200": "h200-x4-operators",
        "4 × H200, windows": "h200-x4-operators-windows",
        "2 × H200": "h200-x2-operators",
    }
    columns = [read(name)["operators"] for name in files.values()]
    yield "Operator", "Bytes", *files
    for same in zip(*columns, strict=True):
        yield same[0]["operator"], str(same[0]["itemsize"]), *(f"{each['of_sum']:.2f}" for each in same)


@table
def in_python() -> Iterator[Line]:
    built_in = {(row["operation"], row["nbytes"]): own(row) for row in read("h200-x2-built-in")["results"]}
    yield from by_operation(
        "h200-x2-numba",
        [16 << shift for shift in range(0, 28, 4)],
        lambda row: f"{own(row) / built_in[row['operation'], row['nbytes']]:.2f} ({number(own(row))})",
    )
