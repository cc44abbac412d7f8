"""The decoder: its sizes, its weights from a seed, and a step that makes tokens.

All numbers are small integers, as in a quantised model: weights are -1, 0 or 1, rows have numbers from -7 to 7, and
each sum is rounded to such a row. Weights of attention and of experts are powers of two. So all sums are exact in
float16, in any order, as long as they stay below 2048. Then every exchange must give the same bits as one rank alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from decoding_kernels import choose
from decoding_numbers import halves, multiply, snap

Array = Any  # NumPy's or CuPy's
EXACT = {"float16": 2048, "float32": 1 << 24}  # whole numbers up to here are exact
SPREAD = 3.0  # standard deviation of the numbers in a row, approximately
REQUESTS = 64  # sequences that each place of a batch decodes, one after the other


class Preset(NamedTuple):
    """Sizes of a model: `heads` queries share `groups` keys; at most `context` tokens."""

    hidden: int
    experts: int
    k: int
    inner: int
    layers: int
    heads: int
    groups: int
    size: int  # numbers in a head
    vocabulary: int
    context: int

    def layer_nbytes(self, itemsize: int) -> int:
        """Return the bytes of a layer with all experts."""
        attention = self.hidden * self.size * (2 * self.heads + 2 * self.groups)
        return itemsize * (attention + self.hidden * (self.experts + 2 * self.experts * self.inner))


PRESETS = {
    "scout": Preset(5120, 16, 1, 8192, 4, 40, 8, 128, 4096, 256),
    "deepseek": Preset(7168, 256, 8, 2048, 4, 56, 8, 128, 4096, 256),
    "tiny": Preset(64, 12, 2, 32, 2, 4, 2, 16, 512, 8),
}


class Layer(NamedTuple):
    """Weights of a layer; `up` and `down` are those of this rank's experts."""

    qkv: Array
    out: Array
    router: Array
    up: Array
    down: Array


@dataclass
class Model:
    """The weights on a rank: all but those of the other ranks' experts."""

    xp: Any
    sizes: Preset
    embedding: Array
    head: Array
    layers: list[Layer]

    def part(self, first: int, end: int) -> Model:
        """Return the model with some of its experts; the memory is shared."""
        layers = [each._replace(up=each.up[first:end], down=each.down[first:end]) for each in self.layers]
        return Model(self.xp, self.sizes, self.embedding, self.head, layers)


def make_model(xp: Any, sizes: Preset, dtype: str, seed: int, experts: range) -> Model:
    """Make weights from the seed; each expert's depend only on seed and number."""
    hidden, heads = sizes.hidden, sizes.heads * sizes.size

    def matrix(key: int, *shape: int) -> Array:
        return signs(xp, shape, seed * 1_000_003 + key, dtype)

    def stack(key: int, *shape: int) -> Array:
        made = xp.empty((len(experts), *shape), dtype)
        for place, expert in enumerate(experts):
            made[place] = matrix(key + 2 * expert, *shape)
        return made

    def layer(key: int) -> Layer:
        qkv, out = matrix(key, hidden, heads + 2 * sizes.groups * sizes.size), matrix(key + 1, heads, hidden)
        up, down = stack(key + 3, hidden, sizes.inner), stack(key + 4, sizes.inner, hidden)
        return Layer(qkv, out, matrix(key + 2, hidden, sizes.experts), up, down)

    embedding = 4 * matrix(1, sizes.vocabulary, hidden)
    layers = [layer(10_000 * number) for number in range(1, sizes.layers + 1)]
    return Model(xp, sizes, embedding, matrix(2, hidden, sizes.vocabulary), layers)


def signs(xp: Any, shape: tuple[int, ...], key: int, dtype: str) -> Array:
    """Make numbers -1, 0 and 1 by a hash of their indices, equal on every device."""
    bits = xp.arange(int(np.prod(shape)), dtype="u4")
    bits += np.uint32(key * 0x9E3779B1 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits ^= bits >> np.uint32(shift)
        bits *= np.uint32(factor)
    bits ^= bits >> np.uint32(16)
    return ((bits % np.uint32(3)).astype("i1") - np.int8(1)).astype(dtype).reshape(shape)


def scale(terms: int, square: float = SPREAD**2 * 2 / 3) -> float:
    """Return the power of two that scales a sum of `terms` products to a row's spread."""
    return float(2.0 ** np.rint(np.log2(SPREAD / (terms * square) ** 0.5)))


class Requests(NamedTuple):
    """First tokens and final lengths of a rank's sequences; shape (places, REQUESTS)."""

    first: Array
    length: Array


def make_requests(sizes: Preset, places: int, seed: int, rank: int) -> Requests:
    """Draw the sequences of a rank, which end at different steps."""
    random, shape = np.random.default_rng([seed, rank]), (places, REQUESTS)
    first = random.integers(0, sizes.vocabulary, shape, "i4")
    return Requests(first, random.integers(sizes.context // 2, sizes.context, shape, "i4", endpoint=True))


class Decoder:
    """A rank's batch of sequences; when one ends, the next one takes its place.

    Parameters
    ----------
    model : Model
    exchange : exchange.Exchange
    requests : Requests
    """

    def __init__(self, model: Model, exchange: Any, requests: Requests) -> None:
        self.model, self.exchange, self.xp = model, exchange, model.xp
        xp, sizes, places = model.xp, model.sizes, len(requests.first)
        self.requests = Requests(*map(xp.asarray, requests))
        self.places, self.positions = xp.arange(places), xp.arange(sizes.context, dtype="i4")
        self.tokens, self.lengths, self.serials = (xp.zeros(places, "i4") for _ in range(3))
        self.rows = xp.zeros((places, sizes.hidden), model.embedding.dtype)  # after the last layer
        shape, dtype = (places, sizes.groups, sizes.size, sizes.context), model.embedding.dtype
        # Keys have the positions last, and values the numbers, so that no product needs a transposed copy.
        self.keys = [xp.zeros(shape, dtype) for _ in model.layers]
        self.values = [xp.zeros((*shape[:2], *shape[:1:-1]), dtype) for _ in model.layers]
        self.largest: Array | None = None  # set it to an array to record the largest sum
        self.reset()

    def reset(self) -> None:
        """Start again with the first sequences, in the same memory."""
        self.serials[...] = self.lengths[...] = 0
        self.tokens[...] = self.requests.first[:, 0]

    def step(self) -> None:
        """Make the next token of each sequence, on the device."""
        x = self.model.embedding[self.tokens]
        for number, layer in enumerate(self.model.layers):
            x = self.attend(number, layer, x)
            x = self.consult(layer, x)
        self.rows[...] = x
        self.advance(self.product(x, self.model.head).argmax(axis=1))

    def attend(self, number: int, layer: Layer, x: Array) -> Array:
        """Add to each row the result of attention to its sequence's earlier tokens."""
        xp, sizes, places = self.xp, self.model.sizes, len(x)
        heads, groups, size = sizes.heads, sizes.groups, sizes.size
        made = snap(xp, self.product(x, layer.qkv), scale(sizes.hidden))
        query = made[:, : heads * size].reshape(places, groups, heads // groups, size)
        key, value = made[:, heads * size :].reshape(places, 2, groups, size).swapaxes(0, 1)
        self.keys[number][self.places, :, :, self.lengths] = key
        self.values[number][self.places, :, self.lengths] = value
        scores = xp.rint(multiply(xp, query, self.keys[number]).astype("f4") * np.float32(scale(size, SPREAD**4) / 4))
        scores = xp.where(self.positions <= self.lengths[:, None, None, None], scores, np.float32(-99))
        weights = halves(xp, scores, scores.max(axis=-1, keepdims=True), x.dtype)
        total = weights.sum(axis=-1, keepdims=True, dtype="f4")
        read = snap(xp, multiply(xp, weights, self.values[number]), 2.0, by=total).reshape(places, heads * size)
        return snap(xp, x + snap(xp, self.product(read, layer.out), scale(heads * size)), 0.75)

    def consult(self, layer: Layer, x: Array) -> Array:
        """Add to each row the results of its experts, which may be on any rank."""
        xp, sizes = self.xp, self.model.sizes
        self.sent = x, *choose(xp, self.product(x, layer.router), sizes.k, scale(sizes.hidden))
        self.received = self.exchange.dispatch(*self.sent)
        self.results = self.compute(layer, self.received)
        return snap(xp, x + self.exchange.combine(self.results), 0.75)

    def compute(self, layer: Layer, rows: Array) -> Array:
        """Return the results of this rank's experts for rows (experts, capacity, hidden)."""
        sizes = self.model.sizes
        inner = snap(self.xp, self.product(rows, layer.up), scale(sizes.hidden), low=0)
        return snap(self.xp, self.product(inner, layer.down), scale(sizes.inner, SPREAD**2 / 3))

    def product(self, x: Array, matrix: Array) -> Array:
        """Return a product with weights; record its largest sum if `largest` is set."""
        sums = multiply(self.xp, x, matrix)
        if self.largest is not None:
            self.largest[...] = self.xp.maximum(self.largest, abs(sums).max())
        return sums

    def advance(self, chosen: Array) -> None:
        """Append the tokens; replace complete sequences by the next ones."""
        xp, requests = self.xp, self.requests
        self.lengths += 1
        ended = self.lengths >= requests.length[self.places, self.serials]
        self.serials[...] = (self.serials + ended) % REQUESTS
        self.lengths *= ~ended
        self.tokens[...] = xp.where(ended, requests.first[self.places, self.serials], chosen)
