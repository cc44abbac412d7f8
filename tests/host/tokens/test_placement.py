"""Placements of experts: the table for kernels against a loop over all experts, and as many as there can be."""

import numpy as np
import pytest

from pyncclx.tokens.placement import MAX_EXPERTS, Placement, place_experts


class Counted(list):
    """A list that must not be searched."""

    def index(self, *arguments):
        raise AssertionError("searched for each expert: with many experts that takes seconds")

    def __contains__(self, item):
        raise AssertionError("searched for each expert")


def words(placement):
    return np.frombuffer(placement.table(), np.uint32).reshape(len(placement.ranks), -1)


@pytest.mark.parametrize("replicas", [1, 3])
def test_table(replicas):
    given = np.random.default_rng(replicas).integers(0, 5, (40, replicas))
    placement = place_experts(given, 40, 5)
    for rank in range(5):
        assert placement.local_experts[rank] == [expert for expert in range(40) if rank in given[expert]]
    indices = [[placement.local_experts[rank].index(expert) for rank in given[expert]] for expert in range(40)]
    places = given << 16 | np.array(indices)
    with_numbers = places if replicas == 1 else np.insert(places, 0, replicas, axis=1)
    assert words(placement).tolist() == with_numbers.tolist()


def test_table_of_unequal_replicas():
    """An expert's words are the number of its ranks, and its places there; zeros fill the row."""
    placement = place_experts([[2, 0, -1], [-1, 1, -1], [0, 1, 2]], 3, 3)
    assert words(placement).tolist() == [[2, 2 << 16, 0, 0], [1, 1 << 16, 0, 0], [3, 1, 1 << 16 | 1, 2 << 16 | 1]]


def test_one_rank_each():
    """Columns of -1 add nothing to the table."""
    assert words(place_experts([[1, -1], [-1, 0]], 2, 2)).tolist() == [[1 << 16], [0]]


def test_no_search():
    placement = place_experts(None, MAX_EXPERTS, 3)
    again = Placement(placement.ranks, list(map(Counted, placement.local_experts)))
    table = words(again)[:, 0]
    assert (table >> 16 == np.arange(MAX_EXPERTS) * 3 // MAX_EXPERTS).all()
    assert (np.diff(table.astype(np.int64)) > 0).all()
