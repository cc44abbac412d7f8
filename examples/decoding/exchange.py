"""The interface of exchanges between rows and experts, and one for a single rank."""

from __future__ import annotations

from typing import Any, NamedTuple

from decoding_kernels import copy, launch
from decoding_numbers import add_up

Array = Any  # NumPy's or CuPy's
# least rows for which an expert has room, if so many may arrive: with few rows, reading its weights takes most time
LEAST = 64


class Shape(NamedTuple):
    """Rows of a rank, choices of a row, elements of a row, and experts of all ranks."""

    tokens: int
    k: int
    hidden: int
    experts: int
    dtype: str
    room: float = 1.0  # room for rows of an expert, as a multiple of what random choices need


def room(rows: float, groups: int, most: int, least: int = 0) -> int:
    """Return how many rows a group needs room for, if choices are nearly random."""
    mean = rows / groups
    return min(most, max(least, -(-int(1.25 * mean + 6 * mean**0.5 + 3) // 4) * 4))


class Exchange:
    """Moves rows to their experts, and weighted sums of results back. Collective.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    xp : module
        numpy or cupy.
    shape : Shape
        The number of experts is a multiple of the number of ranks.

    Attributes
    ----------
    capacity : int
        Number of rows that fit for each expert of this rank.
    experts : range
        The experts of this rank.
    lost : array, shape (1,)
        Number of choices so far that did not fit.
    kept : list
        Objects of the last dispatches that a graph must keep alive. The caller clears it.
    """

    name = "?"
    is_capturable = True  # whether a CUDA graph can hold its calls

    def __init__(self, comm: Any, xp: Any, shape: Shape) -> None:
        self.comm, self.xp, self.shape = comm, xp, shape
        self.experts = experts_of(shape.experts, comm.size, comm.rank)
        tokens = comm.size * shape.tokens
        self.capacity = room(shape.room * tokens * shape.k, shape.experts, tokens, least=LEAST)
        self.lost = xp.zeros(1, "i4")
        self.kept: list[Any] = []

    def dispatch(self, x: Array, chosen: Array, weights: Array) -> Array:
        """Return rows for this rank's experts, of shape (experts, capacity, hidden).

        The last rows of an expert may be unused.

        Parameters
        ----------
        x : array, shape (tokens, hidden)
        chosen : array, shape (tokens, k), int32
            Different experts for each row.
        weights : array, shape (tokens, k), float32
        """
        raise NotImplementedError

    def combine(self, results: Array) -> Array:
        """Return the weighted sum of results for each row of the last dispatch."""
        raise NotImplementedError

    def free(self) -> None:
        """Release memory and connections. Collective."""


class Alone(Exchange):
    """No communication: copy rows to slots of local experts, and add up results.

    Parameters
    ----------
    comm, xp, shape
        See `Exchange`.
    tokens : int, optional
        Rows of each dispatch, if their number differs from the shape's.
    experts : range, optional
        Experts that get slots, if they are not this rank's.
    capacity : int, optional
        Slots of each expert.
    """

    name = "one rank alone"

    def __init__(
        self,
        comm: Any,
        xp: Any,
        shape: Shape,
        *,
        tokens: int | None = None,
        experts: range | None = None,
        capacity: int | None = None,
    ) -> None:
        super().__init__(comm, xp, shape)
        self.experts, self.capacity = experts or self.experts, capacity or self.capacity
        self.slot_of = xp.empty((tokens or shape.tokens, shape.k), "i4")
        self.slots = xp.zeros((len(self.experts), self.capacity, shape.hidden), shape.dtype)

    def dispatch(self, x: Array, chosen: Array, weights: Array) -> Array:
        self.weights = weights
        self.slot_of.fill(-1)
        experts = self.experts.start, len(self.experts)
        made = self.slot_of, self.lost
        launch(self.xp, "place", experts[1], 256, [chosen, chosen.size, *experts, self.capacity, *made])
        copy(self.xp, x, self.slots, self.slot_of, self.shape.k)
        return self.slots

    def combine(self, results: Array) -> Array:
        return add_up(self.xp, results, self.slot_of, self.weights)


def experts_of(experts: int, ranks: int, rank: int) -> range:
    """Return the experts of a rank; each rank has the same number."""
    each = experts // ranks
    return range(rank * each, (rank + 1) * each)
