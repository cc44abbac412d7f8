"""Cut vectors for reductions over nodes."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from ...memory.layout import PACK_NBYTES
from ...operators import bound_op
from ..arguments import Blocks

ALIGNMENT = 256  # bytes; vectors that a rank folds start at multiples


class Span(NamedTuple):
    """A part of a vector, in bytes."""

    begin: int
    nbytes: int

    def cut(self, parts: int, unit: int) -> list[Span]:
        """Cut the span into parts of whole units; the last parts may be empty."""
        each = -(-self.nbytes // (parts * unit)) * unit
        begins = [min(part * each, self.nbytes) for part in range(parts + 1)]
        return [Span(self.begin + a, b - a) for a, b in itertools.pairwise(begins)]


def blocks(nbytes: int, count: int) -> list[Span]:
    """Return `count` contiguous spans of equal length."""
    return [Span(number * nbytes, nbytes) for number in range(count)]


def spans_of(blocks: Blocks) -> list[Span]:
    """Return the spans of the ranks' blocks."""
    return [Span(begin, nbytes) for begin, nbytes in zip(blocks.begins, blocks.nbytes, strict=True)]


def aligned(nbytes: int) -> int:
    """Round a length up to the alignment of vectors."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def unit_of(template: tuple[str, ...], itemsize: int) -> int:
    """Return the length in bytes to whose multiples a vector to reduce is cut.

    Kernels reduce such parts at full speed. The length is a multiple of `itemsize`, so elements stay whole.
    """
    operator = bound_op.named(template)
    return operator.group_nbytes if operator is not None else math.lcm(itemsize, PACK_NBYTES)
