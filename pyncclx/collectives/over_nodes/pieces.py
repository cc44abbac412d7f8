"""How vectors are cut for reductions over nodes."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from ...memory.layout import PACK_NBYTES
from ...operators import bound_op

ALIGNMENT = 256  # of the vectors that a node's rank folds


class Span(NamedTuple):
    """A part of a vector, in bytes."""

    begin: int
    nbytes: int

    def cut(self, parts: int, unit: int) -> list[Span]:
        """Cut it into parts of whole units, of about the same length; the last ones may be empty."""
        each = -(-self.nbytes // (parts * unit)) * unit
        begins = [min(part * each, self.nbytes) for part in range(parts + 1)]
        return [Span(self.begin + a, b - a) for a, b in itertools.pairwise(begins)]


def blocks(nbytes: int, count: int) -> list[Span]:
    """Return spans of one length that follow each other."""
    return [Span(number * nbytes, nbytes) for number in range(count)]


def aligned(nbytes: int) -> int:
    """Round a length up to where the next vector may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def unit_of(template: tuple[str, ...], itemsize: int) -> int:
    """Return the bytes of the shortest part that kernels fold by itself without a loss of speed: whole elements."""
    operator = bound_op.named(template)
    return operator.group_nbytes if operator is not None else math.lcm(itemsize, PACK_NBYTES)
