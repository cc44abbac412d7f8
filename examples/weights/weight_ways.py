"""Other ways to transfer weights, the generators' work, and a report of the times."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from common.overlap import device_of
from common.overlap_report import Times, draw_panel, link_us
from common.program import figure, sign
from common.weight_plan import views

WAYS = ("planned", "all-gather", "plain copy")
TOGETHER = 10  # versions in a graph


class Point(NamedTuple):
    """Figures of a model: bytes of a trainer, seconds of each way, and beside work."""

    hidden: int
    nbytes: int
    seconds: tuple[float, ...]
    times: Times

    def line(self) -> str:
        """Return the line to print."""
        ways = zip(WAYS, self.seconds, strict=True)
        text = ", ".join(f"{name} {1e6 * each:.0f} µs ({self.nbytes / each / 1e9:.0f} GB/s)" for name, each in ways)
        alone = f"hidden {self.hidden}: {self.nbytes / 1e6:.1f} MB from each trainer; {text}"
        return f"{alone}\n  used: {self.times.line()}"

    def row(self) -> dict[str, Any]:
        """Return the row to write."""
        names = (f"{name.replace(' ', '_').replace('-', '_')}_us" for name in WAYS)
        alone = dict(zip(names, (1e6 * each for each in self.seconds), strict=True))
        return {"hidden": self.hidden, "nbytes": self.nbytes, **alone, "used": self.times.row()}


def measure(transfer: Any, hidden: int) -> Point:
    """Time a transfer, other ways for its bytes, and versions in use. Collective."""
    others, use = Others(transfer), Use(transfer, hidden)
    seconds = tuple(map(use.seconds, (transfer.step, others.gather, others.copy)))
    nbytes = transfer.comm.bcast(transfer.nbytes)
    return Point(hidden, nbytes, seconds, use.times(seconds[0], nbytes))


class Others:
    """Other ways to move the bytes of a transfer.

    Parameters
    ----------
    transfer : weight_transfer.Transfer
        It provides the window and the shards.
    """

    def __init__(self, transfer: Any) -> None:
        self.transfer, comm = transfer, transfer.comm
        self.counts = [shard.count for shard in transfer.trained] + [0] * (comm.size - transfer.trainers)
        self.whole, self.pairs, begin = comm.Alloc(sum(self.counts), "u4"), [], 0
        for shard in transfer.trained:
            if transfer.generates:
                self.pairs += views(shard, self.whole[begin:], transfer.shard, transfer.memory[0])
            begin += shard.count

    def gather(self) -> None:
        """Send all weights to all ranks; generators keep their part."""
        mine = self.transfer.weights if self.transfer.trains else self.transfer.weights[:0]
        self.transfer.comm.Allgatherv(mine, [self.whole, self.counts])
        for to, source in self.pairs:
            to[...] = source

    def copy(self) -> None:
        """Copy as many bytes from each trainer to a generator, by a copy engine."""
        if self.transfer.trains:
            generator = self.transfer.first + self.transfer.comm.rank % self.transfer.generators
            self.transfer.win.Put(self.transfer.weights, generator, self.transfer.weights.size)


class Use:
    """A generator's work with a version: matrix products.

    They take about as long as the transfer of a version.

    Parameters
    ----------
    transfer : weight_transfer.Transfer
    hidden : int
        Rows and columns of the matrices.
    """

    def __init__(self, transfer: Any, hidden: int) -> None:
        self.transfer, self.device, self.products = transfer, device_of(transfer.comm), 1
        random, shape = np.random.default_rng(hidden), (hidden, hidden)
        self.left, self.right = (self.device.put(random.integers(-100, 101, shape, "i1")) for _ in range(2))
        self.out = self.device.matrix(transfer.xp.empty(shape, "i2"))

    def times(self, seconds: float, nbytes: int) -> Times:
        """Return the times of the generators' work, of a transfer, and of both.

        Both are timed with places for one version and for two. `seconds` is the time of a transfer.
        """
        self.products = max(1, round(self.products * seconds / self.seconds(self.work)))
        all_of_them = self.seconds(self.work), seconds, self._both(places=1), self._both(places=2)
        return Times(*(1e6 * each for each in all_of_them), link_us(self.transfer.comm, nbytes))

    def work(self) -> None:
        """Enqueue a generator's products."""
        for _ in range(self.products * self.transfer.generates):
            self.device.multiply(self.left, self.right, self.out)

    def seconds(self, way: Any) -> float:
        """Return the time of one of several calls in a CUDA graph, on the slowest rank."""
        return self.device.seconds(self.transfer.comm, way, TOGETHER)

    def _both(self, places: int) -> float:
        self.transfer.places = places
        return self.seconds(lambda: self.transfer.step(self.work))


def draw(path: Path, comm: Any, points: list[Point]) -> None:
    """Draw bandwidth, and the time of a version in use, over a trainer's bytes."""
    drawing, (alone, used) = figure(2)
    drawing.set_figheight(5)
    megabytes = [each.nbytes / 1e6 for each in points]
    names = WAYS[0], "all-gather, of which each keeps a part", "bound: plain copy"
    for way, (name, style) in enumerate(zip(names, ("o-", "o-", "k:"), strict=True)):
        alone.semilogx(megabytes, [each.nbytes / each.seconds[way] / 1e9 for each in points], style, base=2, label=name)
    alone.set_xticks(megabytes, [f"{each:.0f}" for each in megabytes])
    alone.set(title="transfer alone", ylabel="GB/s from each trainer", ylim=(0, None))
    work_and_transfer = "generators' work", "transfer"
    draw_panel(used, "weights that are used", megabytes, [each.times for each in points], work_and_transfer)
    used.set_xticks(megabytes, [f"{each:.0f}" for each in megabytes])
    for panel in (alone, used):
        panel.set_xlabel("MB from each trainer")
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
    sign(drawing, comm)
    drawing.savefig(path, dpi=100)
