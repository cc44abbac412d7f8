"""Random calls of Alltoallv with counts on the device, in all layouts and capacities, and their results."""

from dataclasses import dataclass

import numpy as np

from support.reference import labels

WIDTH = 3  # int64 elements of a row: 24 bytes, no multiple of 16
LONGEST = 400  # rows from one rank to another
POISON = np.frombuffer(b"\xa5" * 8, "i8")[0]
LAYOUTS = ("packed", "slots", "sender", "placed")


@dataclass
class Routing:
    """One call, as all ranks have drawn it."""

    number: int
    layout: str
    counts: np.ndarray  # [source, target]
    displs: np.ndarray | None  # the same; None: rows for rank 0, 1, … follow each other
    places: np.ndarray  # [target, source]: where rows are to begin, for "placed"
    capacity: int

    def sent(self, source, target):
        """Where the rows begin in sendbuf."""
        return int(self.counts[source, :target].sum() if self.displs is None else self.displs[source, target])

    def received(self, me):
        """Of each source: where its rows begin, and how many are kept."""
        found, used = [], 0
        for source, count in enumerate(self.counts[:, me].tolist()):
            begin = {"packed": used, "placed": int(self.places[me, source])}.get(self.layout, 0)
            if self.layout == "sender" and count:
                begin = self.sent(source, me)
            kept = max(0, min(count, self.capacity - begin))
            used += kept
            found.append((begin + (source * self.capacity if self.layout in ("slots", "sender") else 0), kept))
        return found


def draw(number, size):
    """Make a routing; the same number gives the same on every rank."""
    random = np.random.default_rng([size, number])
    most = int(random.choice([1, 3, 20, LONGEST], p=[0.2, 0.3, 0.4, 0.1]))
    counts = random.integers(0, most + 1, (size, size))
    kind = random.integers(5)
    if kind == 1:  # the further, the fewer
        counts = counts // (1 + (np.arange(size) + random.integers(size)) % size) ** 2
    elif kind == 2:  # all to one
        counts[:, np.arange(size) != random.integers(size)] = 0
    elif kind == 3:  # some ranks have nothing
        counts[random.random(size) < 0.5] = 0
    elif kind == 4:
        counts *= random.random((size, size)) < 0.3
    order = random.permuted(np.tile(np.arange(size), (size, 1)), axis=1)
    displs = following(counts, order) + random.integers(0, 3, (size, 1)) if random.random() < 0.5 else None
    places = following(counts.T, random.permuted(order, axis=1)) + random.integers(0, 3)
    capacity = int(random.choice([0, most // 2, most, size * most, size * most + 3], p=[0.05, 0.15, 0.2, 0.3, 0.3]))
    return Routing(number, LAYOUTS[random.integers(4)], counts, displs, places, capacity)


def following(counts, order):
    """Displacements of blocks that follow each other in a random order, each row for itself."""
    displs = np.zeros_like(counts)
    for row, places in enumerate(order):
        displs[row, places] = np.concatenate([[0], np.cumsum(counts[row, places])[:-1]])
    return displs


def expected(routing, me):
    """What a rank must have afterwards: rows, poison where none came, counts, displs, total, and rows left out."""
    slots = routing.counts.shape[0] if routing.layout in ("slots", "sender") else 1
    rows, found = np.full((slots * routing.capacity, WIDTH), POISON), routing.received(me)
    for source, (begin, kept) in enumerate(found):
        first = routing.sent(source, me) * WIDTH
        block = np.arange(first, first + kept * WIDTH) + labels(source, 1, routing.number % 2**15)
        rows[begin : begin + kept] = block.reshape(-1, WIDTH)
    begins, kept = np.array(found).T
    return {
        "rows": rows,
        "counts": kept,
        "displs": begins,
        "total": kept.sum(keepdims=True),
        "status": routing.counts[:, me] - kept,
    }
