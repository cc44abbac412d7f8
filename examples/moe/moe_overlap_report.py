"""Time moe_overlap.py, and show the times: lines, a picture and a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.overlap_report import Times, draw_panel, link_us, panels_of
from common.program import sign


class Divided(NamedTuple):
    """Microseconds of a layer and a batch, with bounds for divided multiprocessors.

    Attributes
    ----------
    times : overlap_report.Times
    blocks : int or None
        Multiprocessors for communication; None if no overlap was faster.
    products, communication : float
        Products alone, without these multiprocessors; communication alone, on these.
    """

    times: Times
    blocks: int | None
    products: float
    communication: float

    @property
    def bound(self) -> float:
        """Return the time with overlap if neither side slowed down the other."""
        return max(self.products, self.communication)

    def line(self) -> str:
        """Return the line to print."""
        alone = f"{self.products:.1f} µs without {self.blocks} multiprocessors, {self.communication:.1f} on them"
        return f"{self.times.line()}; " + ("nothing was divided" if self.blocks is None else f"alone {alone}")

    def row(self) -> dict[str, float | None]:
        """Return the row to write."""
        beside = {"products_divided_us": self.products, "communication_divided_us": self.communication}
        return {**self.times.row(), "multiprocessors": self.blocks, **beside}


def measure(layers: Any, blocks: Sequence[int]) -> Divided:
    """Return times without overlap, and with the fastest division. Collective."""
    # The first number is tried twice, to warm up.
    tried = {number: _us(layers, number, "overlapped") for number in (blocks[0], *blocks)}
    products, communication, serial = (_us(layers, None, way) for way in ("products", "communication", "serial"))
    best = min(tried, key=lambda number: tried[number])
    if tried[best] >= serial:
        times = Times(products, communication, serial, serial, _link_us(layers))
        return Divided(times, None, products, communication)
    overlapped, *alone = (_us(layers, best, way) for way in ("overlapped", "products", "communication"))
    return Divided(Times(products, communication, serial, overlapped, _link_us(layers)), best, *alone)


def _us(layers: Any, blocks: int | None, way: str) -> float:
    """Return the microseconds of a layer and a batch, for a division. Collective."""
    if blocks != layers.blocks:
        layers.divide(blocks)
        with layers.device.on(layers.device.main):
            # Some of the parts need its results.
            layers.serial()
    return float(1e6 * layers.device.seconds(layers.comm, getattr(layers, way), 1) / len(layers.steps))


def _link_us(layers: Any) -> float:
    """Return the microseconds that the links need for a rank's tokens and results."""
    comm, inputs = layers.comm, layers.batches[0].inputs
    ranks = inputs.rank_of(inputs.ids)
    tokens = sum(int((ranks == peer).any(axis=1).sum()) for peer in range(comm.size) if peer != comm.rank)
    # An element of type bfloat16 has 2 bytes.
    return link_us(comm, 2 * 2 * layers.hidden * max(comm.allgather(tokens)))


def draw(path: Path, comm: Any, points: dict[str, dict[int, Divided]]) -> None:
    """Draw the times over the tokens for each kind of layer."""
    drawing, panels = panels_of(len(points))
    for panel, (title, found) in zip(panels, points.items(), strict=True):
        draw_panel(panel, title, [*found], [each.times for each in found.values()], ("experts", "dispatch and combine"))
        panel.plot([*found], [each.bound for each in found.values()], "k--", label="the longer of both when divided")
        panel.set_xlabel("tokens")
    drawing.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    sign(drawing, comm)
    drawing.savefig(path, dpi=100)
