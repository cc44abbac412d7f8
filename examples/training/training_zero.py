"""ZeRO stage 1: replicas divide the state of Adam, and update parts of weights.

`move` sends weights and state to other ranks, when layers change their stage or the number of replicas changes. A plan
from both divisions lists the bytes to send; each rank puts its bytes into windows of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from mpi4py import MPI

import pyncclx
from common.program import share
from common.weight_plan import Box, Matrix, Shard, plan

Tensor = torch.Tensor
KINDS = 3  # weights, and Adam's means of the gradients and of their squares
ITEM = 8  # bytes of a number
RATE, DECAYS, TINY = 3e-3, (0.9, 0.99), 1e-8


class Zero:
    """A stage's weights, equal on all replicas, and this rank's part of Adam's state.

    Parameters
    ----------
    data : pyncclx.Intracomm
        The replicas.
    layers : sequence of torch.nn.Module
        Their parameters and gradients become views of two long tensors.
    device : torch.device

    Attributes
    ----------
    state : Tensor, shape (KINDS, count)
        This rank's part: weights, and Adam's two means.
    """

    def __init__(self, data: Any, layers: Iterable[Any], device: torch.device) -> None:
        self.data = data
        parameters = [each for layer in layers for each in layer.parameters()]
        count = sum(each.numel() for each in parameters)
        self.weights, self.gradients = (torch.zeros(count, dtype=torch.float64, device=device) for _ in range(2))
        begin = 0
        for each in parameters:
            part = slice(begin, begin + each.numel())
            self.weights[part] = each.detach().flatten()
            each.data, each.grad = (whole[part].view_as(each) for whole in (self.weights, self.gradients))
            begin = part.stop
        self.counts = [share(count, data.size, rank)[1] for rank in range(data.size)]
        begin = sum(self.counts[: data.rank])
        self.part = slice(begin, begin + self.counts[data.rank])
        self.state = torch.zeros(KINDS, self.counts[data.rank], dtype=torch.float64, device=device)
        self.state[0] = self.weights[self.part]

    def step(self, number: int) -> None:
        """Update the weights by the summed gradients; `number` counts from 1."""
        own = torch.empty_like(self.state[0])
        self.data.Reduce_scatter(self.gradients, own, self.counts)
        adam(self.state, own, number)
        self.gradients.zero_()
        self.share_weights()

    def share_weights(self) -> None:
        """Gather all replicas' parts of the weights on each replica."""
        self.data.Allgatherv(self.state[0], [self.weights, self.counts])


def adam(state: Tensor, gradient: Tensor, number: int) -> None:
    """Update some weights and their means in place."""
    weights, mean, square = state
    mean.lerp_(gradient, 1 - DECAYS[0])
    square.lerp_(gradient * gradient, 1 - DECAYS[1])
    first, second = (1 - decay**number for decay in DECAYS)
    weights -= RATE * (mean / first) / ((square / second).sqrt() + TINY)


def shard(counts: Sequence[int], segment: range, replicas: int, replica: int) -> Shard:
    """Return a replica's part of each layer's weights and means.

    Parameters
    ----------
    counts : sequence of int
        Number of weights of each layer of the model.
    segment : range
        The layers that the replicas share.
    replicas, replica : int
    """
    first, count = share(sum(counts[layer] for layer in segment), replicas, replica)
    boxes, begin = [], 0
    for layer, length in enumerate(counts):
        here = length if layer in segment else 0
        start, end = (min(max(place - begin, 0), here) for place in (first, first + count))
        boxes.append(Box(0, 1, start, end - start))
        begin += here
    return Shard([Matrix(1, length, None) for length in counts] * KINDS, boxes * KINDS)


def move(plane: Any, have: Sequence[tuple[Shard, Tensor]], shards: Sequence[Shard]) -> Tensor:
    """Return this rank's part of the state in a new division. Collective.

    Parameters
    ----------
    plane : pyncclx.Intracomm
        All stages of all replicas.
    have : sequence of (Shard, Tensor)
        Parts that this rank sends, in the old division. All ranks together send each number once.
    shards : sequence of Shard
        The parts of all ranks in the new division.
    """
    nbytes = ITEM * shards[plane.rank].count
    window = pyncclx.Win.Allocate(nbytes, 1, MPI.Info.Create({"pyncclx_memory": "device"}), plane)
    window.Fence()
    for mine, state in have:
        numbers = state.flatten().view(torch.uint8)
        for run in plan(mine, shards, 0, 0, 0, ITEM, longest=1 << 30):
            begin, length = int(run["source"]), int(run["nbytes"])
            window.Put(numbers[begin : begin + length], int(run["peer"]), int(run["to"]))
    window.Fence()
    moved = torch.from_dlpack(window.tomemory()).view(torch.float64).clone().view(KINDS, -1)
    window.Free()
    return moved
