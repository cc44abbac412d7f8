"""Measure, print, draw and write the times of decoding.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.program import figure, sign
from decoding_steps import prepare

PARTS = ("attention", "experts", "exchange")
COLOURS = ("#c6dbef", "#6baed6", "#d9480f")


class Point(NamedTuple):
    """Microseconds of a step by one exchange, with `batch` sequences a rank.

    Attributes
    ----------
    way : str
        Name of the exchange.
    how : {"graph", "eager"}
    step, experts, exchange : float
        Times of the whole step, of all layers' experts alone, and of all layers' exchanges alone.
    """

    batch: int
    way: str
    how: str
    step: float
    experts: float
    exchange: float

    @property
    def parts(self) -> tuple[float, float, float]:
        """Return the µs a token for attention and the rest, for experts, and for exchange."""
        rest = max(0.0, self.step - self.experts - self.exchange)
        return rest / self.batch, self.experts / self.batch, self.exchange / self.batch

    def faster(self, ours: Point) -> float:
        """Return by how many per cent a step of `ours` is faster than a step of this one."""
        return 100 * (self.step / ours.step - 1)

    def row(self, ours: Point) -> dict[str, Any]:
        """Return the row of the JSON file."""
        parts = {f"{name}_us_a_token": part for name, part in zip(PARTS, self.parts, strict=True)}
        shares = {"exchange_share": self.exchange / self.step, "pyncclx_faster_percent": self.faster(ours)}
        return {**self._asdict(), "us_a_token": self.step / self.batch, **parts, **shares}


def measure(decoder: Any, step: Any, repeat: int) -> Point:
    """Time a step, then its experts and its exchanges alone. Collective."""
    exchange, layers = decoder.exchange, decoder.model.layers
    whole = step.seconds(repeat)
    decoder.step()  # a graph may keep the last rows in its own memory
    decoder.exchange.comm.synchronize()
    rows, sent, results = decoder.received, decoder.sent, decoder.results

    def experts() -> None:
        for layer in layers:
            decoder.compute(layer, rows)

    def move() -> None:
        for _ in layers:
            exchange.dispatch(*sent)
            exchange.combine(results)

    parts = [prepare(decoder.xp, exchange, work).seconds(repeat) for work in (experts, move)]
    return Point(len(decoder.places), exchange.name, step.how, *(1e6 * seconds for seconds in (whole, *parts)))


def print_table(points: Sequence[Point]) -> None:
    """Print the points of one batch; the first one is pyncclx's."""
    ours = points[0]
    print(f"\n{sequences(ours.batch)}; µs a token")
    print(f"  {'':36} {'step':>9}" + "".join(f"{name:>11}" for name in PARTS) + "    pyncclx is faster by")
    for point in points:
        parts = "".join(f"{part:11.2f}" for part in point.parts)
        faster = "" if point is ours else f"{point.faster(ours):+20.0f} %"
        print(f"  {point.way + ' (' + point.how + ')':36} {point.step / point.batch:9.2f}{parts}{faster}", flush=True)


def sequences(batch: int) -> str:
    """Return the size of a batch in words."""
    return f"{batch} sequence{'s' * (batch != 1)} a rank"


def draw(path: Path, comm: Any, title: str, tables: Sequence[Sequence[Point]]) -> None:
    """Draw the parts of µs a token, and how much faster pyncclx is, for each batch."""
    columns = min(3, len(tables) + 1)
    drawing, panels = figure(columns, -(-(len(tables) + 1) // columns))
    emulated = "\nEMULATED on the CPU: these times mean nothing" if comm.device == "host" else ""
    drawing.suptitle(f"Decoding, {title}{emulated}", fontsize=11)
    used = [*np.ravel(panels)]
    for panel, points in zip(used, tables, strict=False):
        draw_batch(panel, points)
    draw_percents(used[len(tables)], tables)
    for unused in used[len(tables) + 1 :]:
        unused.set_visible(False)
    drawing.legend(*used[0].get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    sign(drawing, comm)
    drawing.savefig(path, dpi=130)


def draw_batch(panel: Any, points: Sequence[Point]) -> None:
    """Draw a bar of three parts for each exchange."""
    left, places = np.zeros(len(points)), np.arange(len(points))[::-1]
    for part, (name, colour) in enumerate(zip(PARTS, COLOURS, strict=True)):
        widths = np.array([point.parts[part] for point in points])
        panel.barh(places, widths, left=left, color=colour, edgecolor="0.3", linewidth=0.4, label=name)
        left += widths
    panel.set_yticks(places, [point.way.replace(", ", ",\n") for point in points], fontsize=8)
    panel.set_title(sequences(points[0].batch), fontsize=10)
    panel.set_xlabel("µs a token", fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def draw_percents(panel: Any, tables: Sequence[Sequence[Point]]) -> None:
    """Draw a line over the batches for each exchange except pyncclx's."""
    batches = [str(points[0].batch) for points in tables]
    for points in zip(*(table[1:] for table in tables), strict=True):
        percents = [point.faster(table[0]) for point, table in zip(points, tables, strict=True)]
        panel.plot(batches, percents, "o-", label=points[0].way)
    panel.axhline(0, color="0.5", linewidth=0.8)
    panel.set_yscale("symlog", linthresh=10)  # mpi4py's values are hundreds of times NCCL's
    panel.yaxis.set_major_formatter("{x:g}")
    panel.set_title("a step with pyncclx is faster than with", fontsize=10)
    panel.set_ylabel("per cent", fontsize=8)
    panel.set_xlabel("sequences a rank", fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize=8, frameon=False)
