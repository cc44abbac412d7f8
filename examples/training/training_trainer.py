"""One rank of the training: its place in the grid, a step, and moves of layers."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from common.program import share
from training_cut import Balance, even
from training_model import Layer, Sizes, batch_of, make_layer
from training_pipeline import Clock, Stage
from training_zero import Shard, Tensor, Zero, move, shard

Part = tuple[Shard, Tensor]


class Trainer:
    """A rank of a grid of data parallel x tensor parallel x pipeline parallel ranks.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    text : array of int64
    options : argparse.Namespace
    device : torch.device

    Attributes
    ----------
    losses : list of float
        Loss of each step.
    seconds : dict of int to float
        Seconds of each step, including moves after it.
    events : list of (int, str)
        Steps before which something changed, with a description.
    """

    def __init__(self, comm: Any, text: Any, options: argparse.Namespace, device: torch.device) -> None:
        self.text, self.options, self.device = text, options, device
        self.sizes: Sizes = options.sizes
        self.clock, self.balance = Clock(options.least / 1e3, device), Balance(self.sizes.layers)
        self.losses: list[float] = []
        self.seconds: dict[int, float] = {}
        self.events: list[tuple[int, str]] = []
        self.history: dict[int, list[range]] = {}
        self.arrange(comm, options.grid)
        self.place(even(self.sizes.layers, self.pipe.size))
        own = {number: sum(each.numel() for each in layer.parameters()) for number, layer in self.stage.layers.items()}
        counts = {number: count for part in self.pipe.allgather(own) for number, count in part.items()}
        self.counts = [counts[number] for number in range(self.sizes.layers)]

    def arrange(self, comm: Any, grid: tuple[int, int, int]) -> None:
        """Make a grid of the ranks, and this rank's groups. Collective."""
        self.comm, self.cart = comm, comm.Create_cart(grid)
        dimensions = (True, False, False), (False, True, False), (False, False, True), (True, False, True)
        self.groups = [self.cart.Sub(each) for each in dimensions]
        self.data, self.tensor, self.pipe, self.plane = self.groups

    def free(self) -> None:
        """Free the communicators of `arrange`, and their memory. Collective."""
        for group in (*self.groups, self.cart):
            group.Free()

    def place(self, segments: list[range]) -> None:
        """Make this rank's layers, with weights from the seed."""
        self.segments = segments
        layers = {number: self.layer(number) for number in segments[self.pipe.rank]}
        self.stage = Stage(self.pipe, layers, self.sizes, self.clock)
        self.zero = Zero(self.data, layers.values(), self.device)

    def layer(self, number: int) -> Layer:
        """Make this rank's part of a layer."""
        group = self.tensor if self.tensor.size > 1 else None
        return make_layer(self.sizes, number, group, is_sequential=self.options.sequence_parallel).to(self.device)

    def step(self) -> None:
        """Make a step with this replica's share of the batch. Collective."""
        begin, step, batch = time.perf_counter(), len(self.losses), self.options.batch
        first, count = share(batch, self.data.size, self.data.rank)
        tokens = batch_of(self.text, self.sizes, step, batch)[first : first + count].to(self.device)
        own = self.stage.run(tokens.split(self.options.micro), batch)
        loss = self.cart.allreduce(own if self.tensor.rank == 0 else 0.0)
        self.zero.step(step + 1)
        self.data.synchronize()
        self.losses.append(loss)
        self.history[step] = self.segments
        if len(self.losses) % self.options.every == 0:
            self.rebalance()
        self.seconds[step] = time.perf_counter() - begin

    def rebalance(self) -> None:
        """Move layers if that makes the pipeline's slowest stage faster. Collective."""
        segments = self.balance.moved(self.cart, self.segments, self.clock)
        if segments is not None:
            self.resplit(segments)
            self.events.append((len(self.losses), "the cut moves"))

    def resplit(self, segments: list[range]) -> None:
        """Move layers to other stages, with weights and Adam's state. Collective."""
        have = [(self.part(self.plane.rank), self.zero.state)]
        self.place(segments)
        self.fill(have)

    def part(self, rank: int) -> Shard:
        """Return the parts of all layers that a rank of the plane has."""
        replica, stage = self.plane.Get_coords(rank)
        return shard(self.counts, self.segments[stage], self.data.size, replica)

    def fill(self, have: list[Part]) -> None:
        """Restore weights and Adam's state from parts that the ranks have. Collective."""
        self.zero.state = move(self.plane, have, [self.part(rank) for rank in range(self.plane.size)])
        self.zero.share_weights()
