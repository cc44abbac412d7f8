"""Token shuffles as loops over tokens: what every rank must receive, and what must come back."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

FLOAT8_GROUP, FLOAT8_LARGEST = 128, np.float32(448)


@dataclass
class Routing:
    """Who sends what where: ids[source] has the shape (tokens, k), placement[expert] the expert's ranks."""

    ids: list[np.ndarray]
    placement: list[list[int]]
    size: int
    capacity: int
    layout: str = "expert"
    overflow: str = "raise"
    rows: list[list[tuple[int, int, int, int]]] = field(init=False)  # of each rank: (source, token, choice, local)
    row_of: dict[tuple[int, int, int], tuple[int, int]] = field(init=False)  # (source, token, choice) -> rank, row
    counts: list[np.ndarray] = field(init=False)
    dropped: np.ndarray = field(init=False)  # [rank, source]

    def __post_init__(self) -> None:
        self.local = [[e for e, on in enumerate(self.placement) if rank in on] for rank in range(self.size)]
        self.rows, self.row_of, self.counts = [], {}, []
        self.dropped = np.zeros((self.size, self.size), int)
        arriving = self.arriving()
        for rank in range(self.size):
            groups = [[row for row in arriving[rank] if self._group(row) == g] for g in range(self._groups(rank))]
            self._keep(rank, groups)

    def arriving(self) -> list[list[tuple[int, int, int, int]]]:
        """Of each rank what comes, in the order (source, token, choice)."""
        arriving: list[list[tuple[int, int, int, int]]] = [[] for _ in range(self.size)]
        for source, ids in enumerate(self.ids):
            for (token, choice), expert in np.ndenumerate(ids):
                if 0 <= expert < len(self.placement):
                    on = self.placement[expert]
                    rank = on[(source + token) % len(on)]
                    arriving[rank].append((source, token, choice, self.local[rank].index(expert)))
        return arriving

    def _group(self, row: tuple[int, int, int, int]) -> int:
        return row[0] if self.layout == "source" else row[3]

    def _groups(self, rank: int) -> int:
        return self.size if self.layout == "source" else len(self.local[rank])

    def _keep(self, rank: int, groups: list[list[tuple[int, int, int, int]]]) -> None:
        shared = self.overflow == "drop" and self.layout == "expert"
        kept: list[tuple[int, int, int, int]] = []
        counts = []
        for group in groups:
            fitting = group[: self.capacity // len(groups)] if shared else group
            fitting = fitting[: self.capacity - len(kept)]
            kept += fitting
            counts.append(len(fitting))
            for row in group[len(fitting) :]:
                self.dropped[rank, row[0]] += 1
        self.rows.append(kept)
        self.counts.append(np.array(counts, int))
        self.row_of.update({row[:3]: (rank, number) for number, row in enumerate(kept)})

    def combined(self, results: Any, weights: Any, source: int, dtype: Any, nodes: Any = None) -> np.ndarray:
        """What comes back to `source` in float32; results[source][token, choice] are the experts'.

        `nodes` has the node of each rank: what comes from the ranks of each is added up and rounded there.
        """
        nodes = nodes or [0] * self.size
        tokens, k = self.ids[source].shape
        out = np.zeros((tokens, results[source].shape[-1]), np.float32)
        for token in range(tokens):
            of_nodes = np.zeros((max(nodes) + 1, out.shape[1]), np.float32)
            for rank in range(self.size):
                part = np.zeros(out.shape[1], np.float32)
                for choice in range(k):
                    if self.row_of.get((source, token, choice), (-1, 0))[0] == rank:
                        part += weights[source][token, choice] * results[source][token, choice].astype(np.float32)
                of_nodes[nodes[rank]] += part.astype(dtype).astype(np.float32)
            for part in of_nodes:
                out[token] += part if len(of_nodes) == 1 else part.astype(dtype).astype(np.float32)
        return out


def as_float8(values: np.ndarray, float8: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows as 8-bit floats (their bytes) and scales, as a dispatch rounds them."""
    values = values.astype(np.float32)
    groups = -(-values.shape[1] // FLOAT8_GROUP)
    padded = np.zeros((len(values), groups * FLOAT8_GROUP), np.float32)
    padded[:, : values.shape[1]] = values
    grouped = padded.reshape(len(values), groups, FLOAT8_GROUP)
    largest = np.maximum(np.abs(grouped).max(axis=2), np.float32(1e-30))
    rounded = (grouped * (FLOAT8_LARGEST / largest)[:, :, None]).astype(float8).view("u1")
    return rounded.reshape(padded.shape)[:, : values.shape[1]], largest / FLOAT8_LARGEST
