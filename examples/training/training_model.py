"""The transformer of training.py, with tensor parallel weights, and its text.

Numbers are float64, so the losses of different grids of ranks differ only by the rounding of sums in another order. A
layer makes its weights from the seed and its number, so they do not depend on the rank that makes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from pyncclx import autograd

Tensor = torch.Tensor
VOCABULARY = 128  # the characters of ASCII


class Sizes(NamedTuple):
    """Sizes of the model; `blocks` layers lie between the embedding and the head."""

    hidden: int = 32
    heads: int = 4
    blocks: int = 6
    context: int = 32
    seed: int = 0

    @property
    def layers(self) -> int:
        """The number of layers, with the embedding and the head."""
        return self.blocks + 2


class Layer(nn.Module):
    """A layer whose weights the ranks of a tensor parallel group divide.

    Parameters ---------- sizes : Sizes number : int Its place in the model, from 0 for the embedding to `sizes.layers`
    - 1 for the head. tensor : pyncclx.Intracomm or None The tensor parallel group; None: one rank has all weights.
    is_sequential : bool If true (sequence parallel), each rank has a part of each sequence between tensor parallel
    regions. A region then begins with an all-gather and ends with a reduce-scatter. Otherwise each rank has whole
    sequences, and a region ends with a sum.
    """

    def __init__(self, sizes: Sizes, number: int, tensor: Any = None, *, is_sequential: bool = False) -> None:
        super().__init__()
        self.sizes, self.tensor, self.is_sequential = sizes, tensor, is_sequential
        self.random = torch.Generator().manual_seed(1000 * sizes.seed + number)
        self.make()

    def make(self) -> None:
        """Make the weights."""
        raise NotImplementedError

    def matrix(self, *shape: int, divided: int | None = None) -> nn.Parameter:
        """Return this rank's part of a random matrix; all of it if `divided` is None."""
        whole = torch.randn(shape, generator=self.random, dtype=torch.float64) * shape[-2] ** -0.5
        if divided is None or self.tensor is None:
            return nn.Parameter(whole)
        return nn.Parameter(whole.chunk(self.tensor.size, divided)[self.tensor.rank].clone())

    def norm(self) -> nn.Parameter:
        """Return the weights of a norm, which all ranks have."""
        return nn.Parameter(torch.ones(self.sizes.hidden, dtype=torch.float64))

    def enter(self, x: Tensor) -> Tensor:
        """Return the input of a tensor parallel region, on all its ranks."""
        if self.tensor is None:
            return x
        return autograd.all_gather(x, self.tensor, 1) if self.is_sequential else autograd.copy(x, self.tensor)

    def leave(self, x: Tensor) -> Tensor:
        """Return the sum of the ranks' results of a tensor parallel region."""
        if self.tensor is None:
            return x
        return autograd.reduce_scatter(x, self.tensor, 1) if self.is_sequential else autograd.reduce(x, self.tensor)


class Embedding(Layer):
    """The layer from tokens to rows."""

    def make(self) -> None:
        self.tokens = self.matrix(VOCABULARY, self.sizes.hidden)
        self.places = self.matrix(self.sizes.context, self.sizes.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens[tokens] + self.places
        return autograd.scatter(x, self.tensor, 1) if self.tensor is not None and self.is_sequential else x


class Block(Layer):
    """Attention and a feed-forward network; ranks divide heads and hidden numbers."""

    def make(self) -> None:
        hidden, heads = self.sizes.hidden, self.sizes.heads
        self.norms = nn.ParameterList([self.norm(), self.norm()])
        self.qkv = self.matrix(3, heads, hidden, hidden // heads, divided=1)
        self.out = self.matrix(heads, hidden // heads, hidden, divided=0)
        self.up = self.matrix(hidden, 4 * hidden, divided=1)
        self.down = self.matrix(4 * hidden, hidden, divided=0)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.leave(self.attend(self.enter(self.normalize(x, self.norms[0]))))
        return x + self.leave(F.gelu(self.enter(self.normalize(x, self.norms[1])) @ self.up) @ self.down)

    def normalize(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the rows scaled to mean square 1, times weights."""
        if self.tensor is not None and self.is_sequential:
            weight = autograd.copy(weight, self.tensor)  # each rank has a part of the rows
        return F.rms_norm(x, weight.shape, weight)

    def attend(self, x: Tensor) -> Tensor:
        """Return the results of this rank's heads, which attend to earlier tokens."""
        query, key, value = torch.einsum("bth,knhd->kbntd", x, self.qkv)
        read = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return torch.einsum("bntd,ndh->bth", read, self.out)


class Head(Layer):
    """The layer from rows to logarithms of the next tokens' probabilities."""

    def make(self) -> None:
        self.last, self.out = self.norm(), self.matrix(self.sizes.hidden, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        if self.tensor is not None and self.is_sequential:
            x = autograd.gather(x, self.tensor, 1)
        return F.rms_norm(x, self.last.shape, self.last) @ self.out


def make_layer(sizes: Sizes, number: int, *group: Any, **options: Any) -> Layer:
    """Make the layer with a number."""
    kind = Embedding if number == 0 else Head if number == sizes.layers - 1 else Block
    return kind(sizes, number, *group, **options)


def loss_of(scores: Tensor, targets: Tensor, batch: int) -> Tensor:
    """Return these sequences' part of a batch's mean cross entropy.

    The batch has `batch` sequences.
    """
    rows = scores.flatten(0, 1)
    return F.cross_entropy(rows, targets.flatten(), reduction="sum") / (batch * targets.shape[1])


def read_text(folder: Path) -> np.ndarray[Any, Any]:
    """Return the characters of all pages in a folder."""
    pages = sorted(folder.rglob("*.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    return np.frombuffer(text.encode("ascii", "ignore"), "u1").astype("i8")


def batch_of(text: np.ndarray[Any, Any], sizes: Sizes, step: int, batch: int) -> Tensor:
    """Return a step's inputs and targets.

    Each sequence has one token more than the context; the targets begin one token later than the inputs.
    """
    starts = np.random.default_rng([sizes.seed, step]).integers(0, len(text) - sizes.context - 1, batch)
    return torch.from_numpy(text[starts[:, None] + np.arange(sizes.context + 1)])
