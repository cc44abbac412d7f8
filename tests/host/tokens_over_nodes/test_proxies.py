"""Proxies: each rank has one on every node, and both sides agree who it is."""

import pytest

from pyncclx.nodes.rails import NodeMap
from pyncclx.tokens.placement import Proxies

LAYOUTS = [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 2], [0, 1, 1, 2, 2, 2], [0, 1, 1, 0, 2, 0], [0] * 5 + [1]]


@pytest.mark.parametrize("nodes", LAYOUTS)
def test_both_sides_agree(nodes):
    places = [NodeMap(nodes, rank) for rank in range(len(nodes))]
    proxies = [Proxies(each) for each in places]
    for rank, own in enumerate(proxies):
        assert own.sources[0] == rank
        assert [own.slot_of[source] for source in own.sources] == list(range(len(own.sources)))
        assert set(own.elsewhere) == set(nodes) - {nodes[rank]}
        for node, proxy in own.elsewhere.items():
            there = [other for other in range(len(nodes)) if nodes[other] == node]
            assert [other for other in there if rank in proxies[other].sources] == [proxy]
        of_node = [proxies[other] for other in range(len(nodes)) if nodes[other] == nodes[rank]]
        assert sorted(source for each in of_node for source in each.sources) == list(range(len(nodes)))
        assert {each.slots for each in of_node} == {max(len(each.sources) for each in of_node)}
        assert all((each.of, each.slot_of) == (own.of, own.slot_of) for each in of_node)


@pytest.mark.parametrize("nodes", [[0, 0, 1, 1], [0, 1, 0, 1, 2, 2]])
def test_of_even_nodes_tokens_cross_on_rails(nodes):
    for rank in range(len(nodes)):
        places = NodeMap(nodes, rank)
        assert all(places.local_of(proxy) == places.local_rank for proxy in Proxies(places).elsewhere.values())
