"""python -m pyncclx bench-beside: how much collectives slow down a matrix product.

Each rank multiplies square matrices of 16-bit floats on one stream, while a collective is repeated on another. The
collective runs as kernels, which take multiprocessors from the product, or on the copy engines. All buffers are in
windows.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from mpi4py import MPI

from ...collectives import copy_engine
from .. import common
from . import environment, timing
from .cases import CASES, Options
from .environment import Row
from .memory import Windows, parse_nbytes

ALGORITHMS = {"kernel": None, "copy engine": copy_engine.COPY_ENGINE}
OPERATIONS = tuple(name.lower() for name in copy_engine.OPERATIONS)
PRODUCTS = 10  # products in one measurement
LEAD = 1.3  # time of the collectives divided by the time of the products alone
COLUMNS = f"{'operation':>10} {'by':>12} {'us':>9} {'GB/s':>6} {'us beside':>10} {'product us':>11} {'slower by':>10}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("operation", nargs="*", default=list(OPERATIONS), metavar="operation", help=str(OPERATIONS))
    parser.add_argument("-b", "--bytes", default="256M", metavar="SIZE", help="size of the operation (default 256M)")
    parser.add_argument("--matrix", type=int, default=8192, metavar="N", help="rows and columns (default 8192)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a picture")


def run(arguments: argparse.Namespace) -> None:
    """Run the measurements of the command line."""
    unknown = set(arguments.operation) - set(OPERATIONS)
    if unknown:
        raise SystemExit(f"bench-beside {' '.join(unknown)}: name some of {', '.join(OPERATIONS)}")
    comm = environment.ranks_on_devices()
    if comm.device == "host":
        raise SystemExit("bench-beside: on the host device a collective runs alone; it needs GPUs")
    nbytes, product = parse_nbytes(arguments.bytes), Product(comm, arguments.matrix)
    memory = Windows(comm, nbytes + 1024)
    about = environment.describe(comm, graph=False, buffers="windows")
    what = f"product of {arguments.matrix} x {arguments.matrix} float16"
    environment.say(comm, f"# {environment.ranks(about)}, {what}", COLUMNS)
    rows = [measure(comm, product, name, by, nbytes, memory) for name in arguments.operation for by in ALGORITHMS]
    environment.write_files(comm, arguments, about | {"matrix": arguments.matrix}, rows, draw)


class Product:
    """Matrix product on its own stream."""

    def __init__(self, comm: Any, size: int) -> None:
        import cupy  # noqa: PLC0415  only where there is a GPU

        self._cupy, self.queue = cupy, timing.CupyQueue()
        left, right, self._result = (cupy.ones((size, size), "f2") for _ in range(3))
        self._factors = left, right
        cupy.cuda.Device().synchronize()
        self.alone_us = timing.time(comm, self.queue, self.multiply, PRODUCTS, 3, graph=False).slowest

    def multiply(self) -> None:
        """Enqueue one product on the current stream."""
        self._cupy.matmul(*self._factors, out=self._result)

    def elapsed_us(self) -> float:
        """Return the average microseconds of a product on this rank, over several."""
        with self.queue:
            return 1e6 * self.queue.elapsed(lambda: timing.repeat(self.multiply, PRODUCTS)) / PRODUCTS


def measure(comm: Any, product: Product, name: str, by: str, nbytes: int, memory: Windows) -> Row:
    """Time an operation on kernels or copy engines, alone and beside the product.

    Collective. Rank 0 prints the times.
    """
    case = CASES[name](comm, nbytes, Options(algorithm=ALGORITHMS[by]), memory)
    form = case.forms[0]
    call, queue = case.call(form), timing.CupyQueue()
    case.fill(form)
    alone_us = timing.time(comm, queue, call, 10, 3, graph=False).slowest
    times = math.ceil(LEAD * PRODUCTS * product.alone_us / alone_us)
    MPI.Comm.Barrier(comm)
    with queue:
        begin = queue.mark()
        timing.repeat(call, times)
        end = queue.mark()
    product_us = product.elapsed_us()
    queue.synchronize()
    mine = queue.between(begin, end) * 1e6 / times, product_us
    beside_us, product_us = (max(each) for each in zip(*MPI.Comm.allgather(comm, mine), strict=True))
    row = {"operation": name, "by": by, "nbytes": case.nbytes, "bus_factor": case.bus_factor}
    row |= {"alone_us": alone_us, "beside_us": beside_us}
    row |= {"product_alone_us": product.alone_us, "product_us": product_us}
    environment.say(comm, line(row))
    return row


def slowdown_percent(row: Row) -> float:
    """Return the slowdown of the product in percent."""
    return float(100 * (row["product_us"] / row["product_alone_us"] - 1))


def line(row: Row) -> str:
    """Format one row of the table."""
    busbw = row["nbytes"] / row["alone_us"] / 1e3 * row["bus_factor"]
    text = f"{row['operation']:>10} {row['by']:>12} {row['alone_us']:>9.1f} {busbw:>6.0f}"
    return f"{text} {row['beside_us']:>10.1f} {row['product_us']:>11.1f} {slowdown_percent(row):>8.1f} %"


def draw(path: Path, about: Row, rows: list[Row]) -> None:
    """Draw a bar for each row: the slowdown of the product."""
    figure, panel = common.pyplot().subplots(figsize=(6.5, 0.5 * len(rows) + 1.4))
    labels = [f"{row['operation']}, {row['by']}" for row in rows]
    colours = ["C0" if row["by"] == "kernel" else "C1" for row in rows]
    bars = panel.barh(labels, [slowdown_percent(row) for row in rows], color=colours)
    panel.bar_label(bars, fmt="%.0f %%", padding=3)
    panel.invert_yaxis()
    panel.margins(x=0.15)
    panel.set_xlabel("the matrix product takes longer by (%)")
    size = f"{rows[0]['nbytes'] >> 20} MB"
    panel.set_title(f"{size} beside a product, {environment.ranks(about)}, {about['date']}", fontsize=10)
    figure.tight_layout()
    common.save(figure, path)
