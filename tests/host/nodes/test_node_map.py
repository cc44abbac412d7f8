"""NodeMap: any assignment of ranks to nodes, in a table of a few bytes a rank."""

import pytest

from pyncclx.nodes.rails import NodeMap

LAYOUTS = [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 2], [0, 1, 1, 2, 2, 2], [0, 1, 1, 0, 2, 0], [0] * 5 + [1]]


def of_nodes(nodes):
    """The ranks of each node."""
    return [[rank for rank, each in enumerate(nodes) if each == node] for node in range(max(nodes) + 1)]


@pytest.mark.parametrize("nodes", LAYOUTS)
def test_every_rank_is_on_its_node(nodes):
    for rank, node in enumerate(nodes):
        places = NodeMap(nodes, rank)
        own = [each for each, other in enumerate(nodes) if other == node]
        assert list(places.ranks_of(node)) == own
        assert (places.node, places.local_rank, places.local_size) == (node, own.index(rank), len(own))
        assert [places.local_of(each) for each in own] == list(range(len(own)))
        assert [places.node_of(each) for each in range(len(nodes))] == nodes
        assert sorted([*places.other_nodes, node]) == list(range(places.count))
        lanes = {each: own_of.index(each) for own_of in of_nodes(nodes) for each in own_of}
        for lane in range(max(lanes.values()) + 1):
            assert list(places.ranks_with(lane)) == [each for each in range(len(nodes)) if lanes[each] == lane]
        assert places.lanes == min(map(nodes.count, nodes))
        assert places.is_even == (len(set(map(nodes.count, nodes))) == 1)
        assert places.in_rank_order == (nodes == sorted(nodes))
        assert all(nodes[places.peer_on(other, lane)] == other for other in range(places.count) for lane in range(8))


def test_the_table_is_small():
    nodes = [rank // 8 for rank in range(4096)]
    places = NodeMap(nodes, 77)
    arrays = [value for value in vars(places).values() if hasattr(value, "itemsize")]
    assert sum(len(array) * array.itemsize for array in arrays) <= 16 * len(nodes)
    assert not any(isinstance(value, (list, dict, tuple)) for value in vars(places).values())
