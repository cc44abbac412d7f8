"""ZeRO stage 1: the replicas of some layers share the state of Adam, and each steps its part of the weights.

`move` brings weights and state to other ranks, when layers change their stage or the number of replicas changes. Which
bytes go where is planned from both divisions, and each rank puts what it has into windows of the others.
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
KINDS = 3  # weights, and Adam's means of gradients and of their squares
ITEM = 8  # bytes of a number
RATE, DECAYS, TINY = 3e-3, (0.9, 0.99), 1e-8


class Zero:
    """The weights of a stage, all of which each replica has, and this rank's part of Adam's state.

    Parameters
    ----------
    data : pyncclx.Intracomm
        The replicas.
    layers : sequence of torch.nn.Module
        Their parameters, and the gradients of these, become parts of two long tensors.
    device : torch.device

    Attributes
    ----------
    state : Tensor, shape (KINDS, count)
        Of this rank's part: weights, and Adam's two means.
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
        """Step the weights by the sum of all replicas' gradients; `number` counts from 1."""
        own = torch.empty_like(self.state[0])
        self.data.Reduce_scatter(self.gradients, own, self.counts)
        adam(self.state, own, number)
        self.gradients.zero_()
        self.share_weights()

    def share_weights(self) -> None:
        """Let all replicas have the weights of all parts."""
        self.data.Allgatherv(self.state[0], [self.weights, self.counts])


def adam(state: Tensor, gradient: Tensor, number: int) -> None:
    """Step some weights and their means in place."""
    weights, mean, square = state
    mean.lerp_(gradient, 1 - DECAYS[0])
    square.lerp_(gradient * gradient, 1 - DECAYS[1])
    first, second = (1 - decay**number for decay in DECAYS)
    weights -= RATE * (mean / first) / ((square / second).sqrt() + TINY)


def shard(counts: Sequence[int], segment: range, replicas: int, replica: int) -> Shard:
    """Return what a replica of a segment has of each layer's weights and means.

    Parameters
    ----------
    counts : sequence of int
        Numbers of the weights of each layer of the model.
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
    """Return this rank's part of the state when it is divided otherwise. Collective.

    Parameters
    ----------
    plane : pyncclx.Intracomm
        All stages of all replicas.
    have : sequence of (Shard, Tensor)
        What this rank sends: parts of the state as they were. All ranks together send each number once.
    shards : sequence of Shard
        The parts of all ranks as they will be.
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
