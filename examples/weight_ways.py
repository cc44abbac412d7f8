"""What the transfer of weights is compared with: a collective, and a plain copy; and how the times are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from solvers import figure
from weight_plan import views

WAYS = ("planned", "all-gather", "plain copy")


class Others:
    """Other ways for the bytes of a transfer.

    Parameters
    ----------
    transfer : weight_transfer.Transfer
        Its window and its shards are used.
    """

    def __init__(self, transfer: Any) -> None:
        self.transfer, comm = transfer, transfer.comm
        self.counts = [shard.count for shard in transfer.trained] + [0] * (comm.size - transfer.trainers)
        self.whole, self.pairs, begin = comm.Alloc(sum(self.counts), "u4"), [], 0
        for shard in transfer.trained:
            if transfer.generates:
                self.pairs += views(shard, self.whole[begin:], transfer.shard, transfer.places[0])
            begin += shard.count

    def gather(self) -> None:
        """All weights go to all ranks, and generators keep their part."""
        mine = self.transfer.weights if self.transfer.trains else self.transfer.weights[:0]
        self.transfer.comm.Allgatherv(mine, [self.whole, self.counts])
        for to, source in self.pairs:
            to[...] = source

    def copy(self) -> None:
        """A copy engine moves as many bytes from each trainer to a generator."""
        if self.transfer.trains:
            generator = self.transfer.first + self.transfer.comm.rank % self.transfer.generators
            self.transfer.win.Put(self.transfer.weights, generator, self.transfer.weights.size)


def line(hidden: int, nbytes: int, planned: float, gathered: float, copied: float) -> str:
    """What is printed of one model."""
    times = zip(WAYS, (planned, gathered, copied), strict=True)
    text = ", ".join(f"{name} {1e6 * each:.0f} µs ({nbytes / each / 1e9:.0f} GB/s)" for name, each in times)
    return f"hidden {hidden}: {nbytes / 1e6:.1f} MB from each trainer; {text}"


def draw(path: Path, points: list[tuple[int, float, float, float]]) -> None:
    """Milliseconds over what a trainer sends."""
    drawing, axes = figure(1)
    nbytes, *times = zip(*points, strict=True)
    for seconds, name in zip(times, WAYS, strict=True):
        axes.loglog([each / 1e6 for each in nbytes], [1e3 * each for each in seconds], "o-", label=name)
    axes.set_xlabel("MB from each trainer")
    axes.set_ylabel("ms for a version")
    axes.legend()
    drawing.savefig(path, dpi=120)
