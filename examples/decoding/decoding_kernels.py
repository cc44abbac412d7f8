"""Kernels that choose experts, and assign slots to rows.

They are written in CUDA C++ and also run on the host device, so tests without a GPU cover them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import pyncclx.device as d

Array = Any  # NumPy's or CuPy's
SOURCE = """
// The k best experts of each token, the best first, and their weights 1, 1/2, 1/4 or 1/8. A block takes one token after
// another. Of equal scores the first expert is better.
extern "C" __global__ void choose(const float* scores, int tokens, int experts, int k, float scale, int* chosen,
                                  float* weights) {
    for (int token = blockIdx.x; token < tokens; token += gridDim.x) {
        const float* row = scores + (long long)token * experts;
        for (int expert = threadIdx.x; expert < experts; expert += blockDim.x) {
            int better = 0;
            float best = row[expert];
            for (int other = 0; other < experts; ++other) {
                better += row[other] > row[expert] || (row[other] == row[expert] && other < expert);
                best = row[other] > best ? row[other] : best;
            }
            if (better >= k) continue;
            const int behind = int((best - row[expert]) * scale);
            chosen[token * k + better] = expert;
            weights[token * k + better] = 1.0f / float(1 << (behind < 3 ? behind : 3));
        }
    }
}

// Give each choice of an expert a slot, in their order. A block takes one expert after another, and each of its warps a
// part of the choices, which it first counts.
extern "C" __global__ void place(const int* chosen, int choices, int first, int experts, int capacity, int* slot_of,
                                 int* lost) {
    __shared__ int counts[32];
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int part = (choices + 32 * warps - 1) / (32 * warps) * 32, begin = warp * part;
    const int end = begin + part < choices ? begin + part : choices;
    for (int expert = blockIdx.x; expert < experts; expert += gridDim.x) {
        int count = 0;
        for (int i = begin + lane; i - lane < end; i += 32)
            count += __popc(__ballot_sync(~0u, i < end && chosen[i] == first + expert));
        if (lane == 0) counts[warp] = count;
        __syncthreads();
        int before = 0, total = 0;
        for (int each = 0; each < warps; ++each) {
            before += each < warp ? counts[each] : 0;
            total += counts[each];
        }
        for (int i = begin + lane; i - lane < end; i += 32) {
            const bool mine = i < end && chosen[i] == first + expert;
            const unsigned all = __ballot_sync(~0u, mine);
            const int at = before + __popc(all & ((1u << lane) - 1));
            if (mine && at < capacity) slot_of[i] = expert * capacity + at;
            before += __popc(all);
        }
        if (threadIdx.x == 0 && total > capacity) atomicAdd(lost, total - capacity);
        __syncthreads();
    }
}

// Give each row of an expert a slot, where those of an expert lie from offsets[expert] on.
extern "C" __global__ void spread(const long long* offsets, int experts, int capacity, int* slot_of, int* lost) {
    for (int expert = blockIdx.x; expert < experts; expert += gridDim.x) {
        const int first = int(offsets[expert]), count = int(offsets[expert + 1]) - first;
        for (int at = threadIdx.x; at < count; at += blockDim.x)
            slot_of[first + at] = at < capacity ? expert * capacity + at : -1;
        if (threadIdx.x == 0 && count > capacity) atomicAdd(lost, count - capacity);
    }
}

struct alignas(16) Word { unsigned long long half[2]; };

// Copy row i / k to slot slot_of[i], or from there; -1 is no slot. Rows are of `width` words. A block takes one row
// after another.
extern "C" __global__ void copy(Word* rows, Word* slots, const int* slot_of, int count, int k, int width, int back) {
    for (int i = blockIdx.x; i < count; i += gridDim.x) {
        if (slot_of[i] < 0) continue;
        Word* row = rows + (long long)(i / k) * width;
        Word* slot = slots + (long long)slot_of[i] * width;
        for (int n = threadIdx.x; n < width; n += blockDim.x) back ? row[n] = slot[n] : slot[n] = row[n];
    }
}
"""


@cache
def _kernels() -> dict[str, Any]:
    """Return the compiled kernels."""
    return d.kernels(SOURCE, "choose", "place", "spread", "copy")


def launch(xp: Any, name: str, items: int, threads: int, arguments: list[Any]) -> None:
    """Launch a kernel with a block for each item; on the host device with two blocks.

    On the host device threads are expensive.
    """
    grid = (2, 64) if xp is np else (items, threads)
    _kernels()[name](*grid, [np.int32(each) if isinstance(each, int) else each for each in arguments])


def choose(xp: Any, scores: Array, k: int, scale: float) -> tuple[Array, Array]:
    """Return each token's k best experts and their weights, of shape (tokens, k)."""
    tokens, experts = scores.shape
    chosen, weights = xp.empty((tokens, k), "i4"), xp.empty((tokens, k), "f4")
    numbers = tokens, experts, k, np.float32(scale)
    launch(xp, "choose", tokens, min(experts, 256), [scores.astype("f4"), *numbers, chosen, weights])
    return chosen, weights


def copy(xp: Any, rows: Array, slots: Array, slot_of: Array, k: int = 1, *, back: bool = False) -> None:
    """Copy row i // k to slot `slot_of[i]`, for each i that has a slot.

    With `back`, copy from the slots to the rows. Other rows or slots keep their values.
    """
    width = rows.shape[-1] * rows.itemsize // 16
    launch(xp, "copy", slot_of.size, 256, [rows, slots, slot_of, slot_of.size, k, width, int(back)])
