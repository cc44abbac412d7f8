"""Divide a pipeline's layers into segments, by measured times of the layers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from common.program import share
from training_pipeline import Clock

LEAST_GAIN = 0.1  # least share by which the slowest stage must become faster for layers to move


def even(layers: int, stages: int) -> list[range]:
    """Return segments with equal numbers of layers."""
    parts = (share(layers, stages, stage) for stage in range(stages))
    return [range(begin, begin + count) for begin, count in parts]


def cut(costs: Sequence[float], slowness: Sequence[float]) -> list[range]:
    """Return the segments with the least time of the slowest stage.

    Parameters
    ----------
    costs : sequence of float
        Time of each layer on a rank that is not slow.
    slowness : sequence of float
        For each stage, the factor by which a layer takes longer there.
    """
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [0])}  # key: number of layers in the stages so far
    for factor in slowness:
        longer = dict[int, tuple[float, list[int]]]()
        for end in range(1, len(costs) + 1):
            ways = [
                (max(most, factor * sum(costs[begin:end])), [*ends, end])
                for begin, (most, ends) in best.items()
                if begin < end
            ]
            if ways:
                longer[end] = min(ways)
        best = longer
    ends = best[len(costs)][1]
    return [range(*each) for each in itertools.pairwise(ends)]


class Balance:
    """Decides about the segments. All ranks decide the same, from the same times.

    Parameters
    ----------
    layers : int
        Layers of the model.
    """

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.costs: list[float] | None = None

    def measured(self, comm: Any, clock: Clock) -> list[float]:
        """Return each layer's time since the last call, on its slowest rank. Collective."""
        return [max(each) for each in zip(*comm.allgather(clock.seconds(self.layers)), strict=True)]

    def moved(self, comm: Any, segments: list[range], clock: Clock) -> list[range] | None:
        """Return new segments if they are much faster; None otherwise. Collective.

        The first times show what each layer costs. Later times show how much slower each stage has become.
        """
        times = self.measured(comm, clock)
        now = [sum(times[layer] for layer in segment) for segment in segments]
        if self.costs is None:
            self.costs, slowness = times, [1.0] * len(segments)
        else:
            before = [sum(self.costs[layer] for layer in segment) for segment in segments]
            slowness = [after / each for after, each in zip(now, before, strict=True)]
        wanted = cut(self.costs, slowness)
        parts = zip(wanted, slowness, strict=True)
        then = max(factor * sum(self.costs[layer] for layer in segment) for segment, factor in parts)
        return wanted if then < (1 - LEAST_GAIN) * max(now) else None
