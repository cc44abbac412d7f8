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
    return np.frombuffer(placement.table(), np.uint32).reshape(-1, placement.replicas)


@pytest.mark.parametrize("replicas", [1, 3])
def test_table(replicas):
    given = np.random.default_rng(replicas).integers(0, 5, (40, replicas))
    placement = place_experts(given, 40, 5)
    for rank in range(5):
        assert placement.local_experts[rank] == [expert for expert in range(40) if rank in given[expert]]
    indices = [[placement.local_experts[rank].index(expert) for rank in given[expert]] for expert in range(40)]
    assert (words(placement) == given << 16 | np.array(indices)).all()


def test_no_search():
    placement = place_experts(None, MAX_EXPERTS, 3)
    again = Placement(placement.ranks, list(map(Counted, placement.local_experts)))
    table = words(again)[:, 0]
    assert (table >> 16 == np.arange(MAX_EXPERTS) * 3 // MAX_EXPERTS).all()
    assert (np.diff(table.astype(np.int64)) > 0).all()
