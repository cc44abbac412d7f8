"""The output of token_shuffle.py: setting, tables, times, verdict and picture."""

from __future__ import annotations

import argparse
import statistics
import textwrap
from typing import Any

import numpy as np

from common.program import sign
from pyncclx import backends

Array = np.ndarray[Any, Any]


def print_header(comm: Any, options: argparse.Namespace, tokens: Array) -> None:
    """Print where and with what the program runs. Collective."""
    devices = set(comm.allgather(backends.select().identity))
    if comm.rank != 0:
        return
    if comm.device == "host":
        where = "the host device, NumPy arrays\n  kernels are emulated on the CPU: the times mean nothing for a GPU"
    else:
        names = sorted({device.rpartition(" ")[0] for device in devices})
        where = f"{plural(len(devices), 'GPU')} ({', '.join(names)}), CuPy arrays"
    print(f"Token shuffle: {plural(comm.size, 'rank')} on {where}")
    print(f"  {options.text.name}: {plural(len(tokens), 'token')}, {len(np.unique(tokens))} different")
    print(f"  {plural(options.experts, 'expert')}, {options.k} for each token, skew {options.skew:g}")
    print(f"  rows of {options.hidden} {options.dtype} numbers, {plural(options.steps, 'step')}\n", flush=True)


def print_results(
    comm: Any,
    options: argparse.Namespace,
    first: Array,
    matrix: Array,
    seconds: list[float],
    moving: tuple[float, int],
    path: str,
) -> None:
    """Print the table, the times and the path.

    Parameters
    ----------
    first : shape (ranks + 1,)
        Rank r has the tokens from first[r] up to first[r + 1].
    matrix : shape (ranks, ranks)
        Rows that rank i sent to rank j, mean of the steps.
    seconds : list
        Seconds of each step.
    moving : seconds, rows
        Seconds of the shuffle of one step, and number of rows that changed rank.
    path : str
        How the rows were moved.
    """
    row_nbytes = options.hidden * (4 if options.dtype == "float32" else 2)
    if comm.rank == 0:
        print_table(options, first, matrix, row_nbytes)
        print_times(comm.size, seconds, *moving, row_nbytes)
        print_fact("path", path)


def print_table(options: argparse.Namespace, first: Array, matrix: Array, row_nbytes: int) -> None:
    """Print a line for each rank: means of the steps."""
    ranks = len(matrix)
    experts = np.diff(np.arange(ranks + 1) * options.experts // ranks)
    load = matrix.sum(axis=0)
    print("rank  tokens  experts  rows out   rows in   MB in  load / mean")
    for rank in range(ranks):
        print(
            f"{rank:4}  {first[rank + 1] - first[rank]:6}  {experts[rank]:7}  {matrix[rank].sum():8.0f}  "
            f"{load[rank]:8.0f}  {load[rank] * row_nbytes / 1e6:6.2f}  {load[rank] / load.mean():11.2f}"
        )
    imbalance = load.max() / load.mean()
    print(f"Rows: means of {plural(options.steps, 'step')}. Imbalance, largest load / mean: {imbalance:.2f}\n")


def print_times(ranks: int, seconds: list[float], moving: float, rows: int, row_nbytes: int) -> None:
    """Print the time of a step and of its shuffle, and their bandwidth."""
    median = as_time(statistics.median(seconds[1:] or seconds))
    print_fact("step", f"{median} (median); the first, which prepares the kernels, {as_time(seconds[0])}")
    nbytes = 2 * rows * row_nbytes
    moved = f"{as_bytes(nbytes)} from rank to rank, {as_bytes(nbytes / moving / ranks)}/s for each rank"
    print_fact("moves", f"{as_time(moving)} for there and back alone; {moved if nbytes else 'nothing changes rank'}")


def print_verdict(comm: Any, error: float, tolerance: float, arrived: int, dropped: int) -> bool:
    """Print whether the result is right, with counts of the last step. Collective."""
    arrived, dropped = comm.allreduce(arrived), comm.allreduce(dropped)
    passed = error <= tolerance and dropped == 0
    if comm.rank == 0:
        found = f"largest error {error:.2g} against NumPy without communication, {tolerance:.2g} allowed"
        print_fact("check", f"{found}; {arrived} rows arrived, {dropped} dropped: {'PASSED' if passed else 'FAILED'}")
    return passed


def print_fact(name: str, text: str) -> None:
    """Print a name and a text, on several lines if it is long."""
    print(textwrap.fill(text, 110, initial_indent=f"{name:8}", subsequent_indent=" " * 8), flush=True)


def as_time(seconds: float) -> str:
    """Return seconds as text, in a suitable unit."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} µs"


def as_bytes(nbytes: float) -> str:
    """Return bytes as text, in a suitable decimal unit."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes:.0f} B"


def plural(count: int, thing: str) -> str:
    """Return a number with a noun, in the plural if needed."""
    return f"{count} {thing}{'s' * (count != 1)}"


def draw(options: argparse.Namespace, comm: Any, matrix: Array) -> None:
    """Draw how many rows ranks send to each other, and how many each computes."""
    import matplotlib  # noqa: PLC0415  only rank 0 draws

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5), width_ratios=(1.1, 1), layout="constrained")
    experts = f"{plural(options.experts, 'expert')} on {plural(len(matrix), 'rank')}"
    title = f"Token shuffle of {options.text.name}: {experts}, {options.k} for each token, skew {options.skew:g}"
    figure.suptitle(title, fontsize=13)
    draw_matrix(left, matrix)
    draw_load(right, matrix)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    sign(figure, comm)
    figure.savefig(options.output, dpi=130)
    plt.close(figure)
    print_fact("picture", str(options.output))


def draw_matrix(panel: Any, matrix: Array) -> None:
    """Draw a square for each pair of ranks, dark for many rows."""
    image = panel.imshow(matrix, cmap="Blues", vmin=0, vmax=1.1 * matrix.max())
    for (sender, receiver), rows in np.ndenumerate(matrix):
        red, green, blue, _ = image.cmap(image.norm(rows))
        colour = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "black"
        panel.text(receiver, sender, f"{rows:.0f}", ha="center", va="center", color=colour, fontsize=9)
    panel.set(title="Rows sent in a step", xlabel="to the experts of rank", ylabel="from rank")
    panel.set(xticks=range(len(matrix)), yticks=range(len(matrix)))
    panel.spines[:].set_visible(False)


def draw_load(panel: Any, matrix: Array) -> None:
    """Draw a bar for each rank: the rows of its experts, its own and others'."""
    load, own = matrix.sum(axis=0), matrix.diagonal()
    ranks = np.arange(len(matrix))
    bottom = panel.bar(ranks, own, color="#9ecae1", label="of its own tokens")
    top = panel.bar(ranks, load - own, bottom=own, color="#2171b5", label="from other ranks")
    mean = panel.axhline(load.mean(), color="#d9480f", linestyle="--", label="mean of the ranks", zorder=0)
    # The white box keeps the line of the mean from crossing the numbers.
    white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    panel.bar_label(top, [f"{rows:.0f}" for rows in load], padding=3, fontsize=9, bbox=white)
    panel.set(title="Rows that each rank's experts compute", xlabel="rank", ylabel="rows in a step", xticks=ranks)
    panel.set(ylim=(0, 1.25 * load.max()))
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(handles=[bottom, top, mean], frameon=False, loc="best", fontsize=9)
