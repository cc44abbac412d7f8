"""A stage of a pipeline: runs micro-batches through its layers in 1F1B order.

1F1B: a stage first runs as many forwards as there are later stages. Then it alternates between one forward and one
backward. So it keeps the activations of few micro-batches, however many there are. The stage times each layer.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import pyncclx
from training_model import Sizes, Tensor, loss_of

_FORWARD, _BACKWARD = range(2)  # directions; also message tags


class Clock:
    """Seconds of each layer on this rank, which can be made slow.

    Parameters ---------- least : float Least seconds of a layer, forward or backward, so that ranks that share a
    processor have the times of ranks with a device each. device : torch.device
    """

    def __init__(self, least: float, device: torch.device) -> None:
        self.least, self.device, self.slowness = least, device, 1.0
        self.taken: dict[tuple[int, int], list[float]] = defaultdict(list)

    @contextlib.contextmanager
    def of(self, layer: int, direction: int) -> Iterator[None]:
        """Time a layer, forward or backward; a slow rank takes longer."""
        begin = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        taken = time.perf_counter() - begin
        wanted = max(taken, self.least) * self.slowness
        time.sleep(wanted - taken)
        self.taken[layer, direction].append(wanted)

    def seconds(self, layers: int) -> list[float]:
        """Return each layer's time for a micro-batch; 0 for layers on other ranks.

        The times are medians since the last call.
        """
        medians = {key: statistics.median(each) for key, each in self.taken.items()}
        self.taken.clear()
        return [medians.get((layer, _FORWARD), 0.0) + medians.get((layer, _BACKWARD), 0.0) for layer in range(layers)]


class Stage:
    """The layers of a pipeline's segment on this rank.

    Parameters
    ----------
    pipe : pyncclx.Intracomm
        The stages, in order.
    layers : dict of int to training_model.Layer
        This stage's layers by their numbers.
    sizes : training_model.Sizes
    clock : Clock
    """

    def __init__(self, pipe: Any, layers: dict[int, Any], sizes: Sizes, clock: Clock) -> None:
        self.pipe, self.layers, self.sizes, self.clock = pipe, layers, sizes, clock
        self.is_first, self.is_last = pipe.rank == 0, pipe.rank == pipe.size - 1
        layer = next(iter(layers.values()))
        self.length = sizes.context // (layer.tensor.size if layer.tensor is not None and layer.is_sequential else 1)

    def run(self, sequences: Sequence[Tensor], batch: int) -> float:
        """Run micro-batches forward and backward.

        Parameters
        ----------
        sequences : sequence of Tensor
            Tokens of each micro-batch.
        batch : int
            Sequences of all replicas.

        Returns
        -------
        float
            On the last stage, the micro-batches' part of the batch's loss; 0 on other stages.
        """
        self.batch, self.loss = batch, 0.0
        self.open: deque[list[tuple[int, Tensor, Tensor]]] = deque()
        self.requests: list[Any] = []
        warm = self.pipe.size - 1 - self.pipe.rank
        for turn in range(len(sequences) + warm):
            if turn < len(sequences):
                self.forward(sequences[turn])
            if turn >= warm:
                self.backward()
        pyncclx.Request.Waitall(self.requests)
        return self.loss

    def forward(self, tokens: Tensor) -> None:
        """Run a micro-batch through this stage's layers, and send the result on."""
        x = tokens[:, :-1] if self.is_first else self.receive(len(tokens), self.pipe.rank - 1, _FORWARD)
        saved = []
        for number, layer in self.layers.items():
            with self.clock.of(number, _FORWARD):
                inputs = x.requires_grad_() if x.is_floating_point() else x
                outputs = layer(inputs)
                if number == self.sizes.layers - 1:
                    outputs = loss_of(outputs, tokens[:, 1:], self.batch)
            saved.append((number, inputs, outputs))
            x = outputs.detach()
        self.open.append(saved)
        if self.is_last:
            self.loss += float(x)
        else:
            self.requests.append(self.pipe.Isend(x.contiguous(), self.pipe.rank + 1, _FORWARD))

    def backward(self) -> None:
        """Run the oldest open micro-batch backward, and send its gradient back."""
        saved = self.open.popleft()
        gradient = None if self.is_last else self.receive(len(saved[-1][2]), self.pipe.rank + 1, _BACKWARD)
        for number, inputs, outputs in reversed(saved):
            with self.clock.of(number, _BACKWARD):
                outputs.backward(gradient)
            gradient = inputs.grad
        if not self.is_first:
            self.requests.append(self.pipe.Isend(gradient.contiguous(), self.pipe.rank - 1, _BACKWARD))

    def receive(self, sequences: int, source: int, tag: int) -> Tensor:
        """Receive the rows of a micro-batch, or their gradients."""
        shape = sequences, self.length, self.sizes.hidden
        x = torch.empty(shape, dtype=torch.float64, device=self.clock.device)
        self.pipe.Recv(x, source, tag)
        return x
