# ruff: noqa: RUF001  the multiplication sign is meant
"""The tables that docs/measured.py writes of token shuffles, and of programs that overlap communication."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from measured_tables import Line, table
from speed import HALVES, WAYS, number, read


def there_and_back(row: dict[str, Any], way: str = "") -> str:
    """Return the times of a dispatch and of a combine."""
    return " / ".join(number(row[f"{way}{half}_us"]) for half in HALVES)


@table
def shuffles() -> Iterator[Line]:
    yield (
        *("Tokens a rank", "`dispatch` / `combine`", "known routing", "padded to the largest count"),
        *("two all-gathers / all-to-all", "all-to-all-v, counts known", "counts read back by the host"),
    )
    for row in read("h200-x4-token-shuffle")["results"]:
        ways = [there_and_back(row, f"{way}_") for way in WAYS]
        yield str(row["tokens"]), there_and_back(row), number(row["again_us"]), *ways


@table
def shuffle_settings() -> Iterator[Line]:
    yield "GPUs", "Tokens", "hidden", "Top", "Routing", "Multiprocessors", "Mode", "pyncclx", "NCCL"
    for gpus in (4, 2):
        for row in read(f"h200-x{gpus}-token-shuffle-settings")["results"]:
            if row["tokens"] in (128, 4096) and row["experts"] == 256 and row["blocks"] in (None, 16, 32):
                names = {way: there_and_back(row, f"{way}_") for way in WAYS if f"{way}_dispatch_us" in row}
                best = min(names, key=lambda way: sum(row[f"{way}_{half}_us"] for half in HALVES), default="")
                theirs = f"{names[best]} ({WAYS[best]})" if best else ""
                values = (row[key] or "all" for key in ("tokens", "hidden", "k", "routing", "blocks", "mode"))
                yield f"{gpus} × H200", *map(str, values), there_and_back(row), theirs


@table
def beside_all_gathers() -> Iterator[Line]:
    """The setting of NCCLX's dynamic all-to-all."""
    yield (
        "H200",
        "Top",
        "Tokens",
        "pyncclx",
        "two all-gathers / all-to-all",
        "less",
        "padded to the largest count",
        "less",
    )
    for gpus in (4, 2):
        for row in read(f"h200-x{gpus}-token-shuffle-settings")["results"]:
            if row["k"] < 8 and row["tokens"] in (128, 256):
                mine, *theirs = (sum(row[f"{way}{half}_us"] for half in HALVES) for way in ("", "gathers_", "padded_"))
                less = [f"{1 - mine / each:.0%}".replace("%", " %") for each in theirs]
                cells = there_and_back(row, "gathers_"), less[0], there_and_back(row, "padded_"), less[1]
                yield str(gpus), str(row["k"]), str(row["tokens"]), there_and_back(row), *cells


@table
def shuffle_floor() -> Iterator[Line]:
    yield (
        *("Tokens", "a kernel of nothing", "`Alltoall` of 16 B", "copying the rows here"),
        *("`dispatch` / `combine` of one rank alone", "of both"),
    )
    for row in read("h200-x2-shuffle-floor")["results"]:
        alone, both = (f"{row[f'dispatch{of}']:.1f} / {row[f'combine{of}']:.1f}" for of in ("_alone", ""))
        yield str(row["tokens"]), *(f"{row[key]:.1f}" for key in ("launch", "trip", "copy")), alone, both


def speed_up(row: dict[str, Any]) -> str:
    """Return by how much overlap is faster, and how much of the communication it hides."""
    ratio, hidden = row["serial_us"] / row["overlapped_us"], row["hidden_share"]
    return f"{ratio:.2f} ({hidden:.0%})".replace("%", " %") if ratio >= 1.015 else f"{ratio:.2f}"


def overlap(name: str, keys: tuple[str, str], head: Callable[[Any, Any], str]) -> Iterator[Line]:
    """Yield a table of speed-ups by tokens, with a column for each pair of values of two keys."""
    found = {(row[keys[0]], row[keys[1]], row["tokens"]): row for row in read(name)["results"]}
    columns = list(dict.fromkeys((first, second) for first, second, _ in found))
    yield "Tokens", *(head(*column) for column in columns)
    for tokens in dict.fromkeys(tokens for _, _, tokens in found):
        yield str(tokens), *(speed_up(found[(*column, tokens)]) for column in columns)


@table
def tensor_parallel() -> Iterator[Line]:
    yield from overlap("h200-x4-tensor-parallel", ("step", "hidden"), lambda step, hidden: f"{step}, hidden {hidden}")


@table
def experts() -> Iterator[Line]:
    yield from overlap(
        "h200-x2-moe-overlap", ("hidden", "inner"), lambda hidden, inner: f"hidden {hidden}, inner {inner}"
    )


@table
def jacobi() -> Iterator[Line]:
    yield "Plate", "one kernel", "the same without neighbours", "array operations of jacobi.py in a graph"
    for row in read("h200-x4-jacobi")["results"]:
        yield f"{row['size']}²", *(number(row[key]) for key in ("kernel_us", "kernel_alone_us", "array_operations_us"))
