"""What moe_overlap.py moves rows with: memory that other ranks put into, two kernels between that and the experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import pyncclx
import pyncclx.device as d

Array = Any

SOURCE = """
struct alignas(16) Eight { unsigned short bits[8]; };  // numbers of type bfloat16
union Number { unsigned bits; float value; };
const unsigned kNoRow = ~0u;

// Tokens `first` and following of each of `size` ranks. The rows here of a token's k choices are its `ways`, which the
// handle of a dispatch has. A row has `length` Eights.
struct Tokens {
    long long most;               // tokens of a rank that ways has room for
    long long count, first, all;  // in this part; where they begin among a rank's; all of a rank's
    long long length;
    int size, k, me;
};

// Every token to its rows.
extern "C" __global__ void spread(const unsigned* all_ways, const Tokens tokens, const Eight* arrived, Eight* rows) {
    for (long long job = blockIdx.x; job < tokens.size * tokens.count; job += gridDim.x) {
        const long long source = job / tokens.count, token = job % tokens.count;
        const unsigned* ways = all_ways + (source * tokens.most + token) * tokens.k;
        const Eight* from = arrived + (source * tokens.all + tokens.first + token) * tokens.length;
        for (long long i = threadIdx.x; i < tokens.length; i += blockDim.x) {
            const Eight eight = from[i];
            for (int c = 0; c < tokens.k; ++c)
                if (ways[c] != kNoRow) rows[ways[c] * tokens.length + i] = eight;
        }
    }
}

// weight * result of a token's rows here, added as `combine` adds them: to `sums`, but this rank's tokens' to `own`.
extern "C" __global__ void fold(
    const unsigned* all_ways, const Tokens tokens, const Eight* results, const float* weights, Eight* sums,
    Eight* own) {
    for (long long job = blockIdx.x; job < tokens.size * tokens.count; job += gridDim.x) {
        const long long source = job / tokens.count, token = job % tokens.count;
        const unsigned* ways = all_ways + (source * tokens.most + token) * tokens.k;
        Eight* all = source == tokens.me ? own : sums;
        Eight* to = all + (source * tokens.all + tokens.first + token) * tokens.length;
        for (long long i = threadIdx.x; i < tokens.length; i += blockDim.x) {
            float total[8] = {};
            for (int c = 0; c < tokens.k; ++c) {
                if (ways[c] == kNoRow) continue;
                const float weight = weights[ways[c]];
                const Eight eight = results[ways[c] * tokens.length + i];
                for (int e = 0; e < 8; ++e) {
                    Number number;
                    number.bits = unsigned(eight.bits[e]) << 16;
                    total[e] += weight * number.value;
                }
            }
            Eight rounded;
            for (int e = 0; e < 8; ++e) {
                Number number;
                number.value = total[e];
                rounded.bits[e] = (number.bits + 0x7fff + (number.bits >> 16 & 1)) >> 16;
            }
            to[i] = rounded;
        }
    }
}
"""
_LENGTHS = [(name, "i8") for name in ("most", "count", "first", "all", "length")]
TOKENS = np.dtype([*_LENGTHS, ("size", "i4"), ("k", "i4"), ("me", "i4")], align=True)


class Inbox:
    """Rows for all ranks' tokens, on each rank: every rank has a place in those of the others.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    device : overlap.Gpu or overlap.Cpu
    count, hidden : int
        Tokens of each rank; length of a row.
    """

    def __init__(self, comm: Any, device: Any, count: int, hidden: int) -> None:
        self.comm, self.device, self.count, self.hidden = comm, device, count, hidden
        memory = comm.Alloc((comm.size * count, hidden), "i2")  # a number of type bfloat16 has 16 bits
        self.nothing, self.memory = memory[:0], device.matrix(memory)
        self.own = self.memory[comm.rank * count : (comm.rank + 1) * count]
        self.win = pyncclx.Win.Create(memory, 2, comm=comm)
        self.win.Lock_all()

    def send(self, number: int, part: slice, rows: Sequence[Array]) -> None:
        """Put part `number` of a rank's tokens, rows[peer], to its place at each peer; a stream of its own tells it."""
        device, rank = self.device, self.comm.rank
        for j in range(1, self.comm.size):  # each receives from one at a time
            peer = (rank + j) % self.comm.size
            with device.on(device.copies):
                self.win.Put(rows[peer], peer, (rank * self.count + part.start) * self.hidden)
            device.order(device.copies, device.signals)
            with device.on(device.signals):  # the next copy need not wait for this
                self.win.Put_signal(self.nothing, peer, signal=number)

    def wait(self, number: int) -> None:
        """The current stream waits until all peers have sent a part once more."""
        self.win.Wait_signal(number, self.comm.size - 1)

    def Free(self) -> None:
        """Give the window back."""
        self.win.Unlock_all()
        self.win.Free()


class Rows:
    """The rows of this rank's experts, and the sums of their results for the ranks' tokens.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    device : overlap.Gpu or overlap.Cpu
    shuffle : pyncclx.TokenShuffle
        Its handles say which rows a token has.
    count, hidden : int
        Tokens of each rank; length of a row.
    """

    def __init__(self, comm: Any, device: Any, shuffle: Any, count: int, hidden: int) -> None:
        self.comm, self.device, self.shuffle, self.count, self.hidden = comm, device, shuffle, count, hidden
        self.rows = device.put(np.zeros((shuffle.capacity, hidden), "i1"))
        self.sums = device.put(np.zeros((comm.size, count, hidden), "i1"))
        kernels = d.kernels(SOURCE, "spread", "fold")
        self._spread, self._fold = kernels["spread"], kernels["fold"]

    def spread(self, handle: Any, part: slice, arrived: Inbox) -> Array:
        """Enqueue the way of tokens that have come to their rows; returns these."""
        self._spread(*self.device.grid, [handle.ways, self._tokens(part), arrived.memory, self.rows])
        return self.rows

    def fold(self, handle: Any, part: slice, results: Array, own: Inbox) -> list[Array]:
        """Enqueue the sums of the results of each token here; returns those for each rank, of which own's are there."""
        arguments = [handle.ways, self._tokens(part), results, handle.rows.weights, self.sums, own.memory]
        self._fold(*self.device.grid, arguments)
        return [sums[part] for sums in self.sums]

    def _tokens(self, part: slice) -> Any:
        size, rank, shuffle = self.comm.size, self.comm.rank, self.shuffle
        lengths = shuffle.max_tokens, part.stop - part.start, part.start, self.count, self.hidden // 8
        return np.array((*lengths, size, shuffle.k, rank), TOKENS)[()]
