"""Token shuffles over pretend nodes, whatever the assignment of ranks to them; and how much crosses.

The tests of tests/ranks/tokens run over pretend nodes, too: `python tests/run.py nodes`.
"""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.nodes.failures_elsewhere import WORD_NBYTES
from pyncclx.nodes.mpi_engine import MpiEngine
from pyncclx.nodes.program import Program
from pyncclx.tokens.over_nodes import programs
from support.arrays import put
from support.everywhere import assert_everywhere
from support.reference import comparing
from support.sample import some
from support.token_case import Case, generator

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
LAYOUTS = {  # the node of each rank
    "halves": [2 * rank // SIZE for rank in range(SIZE)],
    "in turn": [rank % 2 for rank in range(SIZE)],
    "one rank each": list(range(SIZE)),
    "unequal": [min(rank, 1) for rank in range(SIZE)],
    "unequal, in turn": [int(rank % 3 > 0) for rank in range(SIZE)],
}
K, HIDDEN = 3, 32
ROW_NBYTES = 4 * HIDDEN
pytestmark = pytest.mark.ranks(2)


@pytest.fixture(scope="module", params=some(LAYOUTS, 2))
def nodes(request):
    """The node of each rank."""
    return LAYOUTS[request.param]


@pytest.fixture(scope="module")
def comm(nodes):
    """A communicator over pretend nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYNCCLX_NODE", str(nodes[RANK]))
        comm = pyncclx.Communicator().Dup()
        assert comm.spanning.places.count == len(set(nodes))
        yield comm
        comm.Free()


@pytest.fixture(params=["padded", "counted"])
def crossing(request, monkeypatch):
    """How rows cross."""
    monkeypatch.setattr(programs, "PADDED_NBYTES", (1 << 20) * (request.param == "padded"))
    return request.param


def case_of(comm, nodes, **options):
    case = Case(comm, generator(comm), k=K, hidden=HIDDEN, **options)
    case.nodes = nodes
    return case


def sent(comm, call, *args, **options):
    """Bytes that this rank sends to other nodes in a call."""
    found, original = [], MpiEngine.exchange

    def exchange(engine, step, sends, *others):
        found.extend(each.nbytes for each in sends)
        original(engine, step, sends, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MpiEngine, "exchange", exchange)
        call(*args, **options)
        comm.synchronize()
    return sum(found)


def going(case, nodes, source):
    """By node: how many tokens of a rank have experts there."""
    found = [{nodes[case.placement[expert][0]] for expert in ids if expert >= 0} for ids in case.routing.ids[source]]
    return {node: sum(node in each for each in found) for node in set(nodes)}


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["expert", "source"])
def test_round_trips(comm, nodes, crossing, layout):
    case = case_of(comm, nodes, layout=layout, tokens=9)
    with case.shuffle, comparing() as compare:
        for number in range(3):
            case.draw().round_trip(compare, f"routing {number}")


def test_handles_of_several_dispatches(comm, nodes, crossing):
    """Each has the ways of its own routing; results of the first come back after the second dispatch."""
    case = case_of(comm, nodes)
    with case.shuffle, comparing() as compare:
        kept = []
        for _ in range(3):
            _, handle = case.draw().dispatch()
            kept.append((handle, case.routing, case.weights, case.results))
        for number, (handle, *inputs) in enumerate(kept):
            case.routing, case.weights, case.results = inputs
            case.check_sums(compare, case.shuffle.combine(case.expert_out(), handle), f"handle {number}")


def word_nbytes(comm):
    """Bytes of the word that goes along to each rank: only kernels with peers on their node can give up."""
    return WORD_NBYTES if comm.spanning.places.local_size > 1 else 0


def test_a_token_crosses_once_to_each_node(comm, nodes, monkeypatch):
    """However many of its experts are there; and one sum comes back."""
    monkeypatch.setattr(programs, "PADDED_NBYTES", 0)
    case = case_of(comm, nodes, tokens=20)
    with case.shuffle:
        for counts, experts in ((None, None), ([20] * SIZE, lambda shape: np.full(shape, case.experts - 1))):
            case.draw(counts, experts)
            _, handle = case.dispatch()
            away = {node: count for node, count in going(case, nodes, RANK).items() if node != nodes[RANK] and count}
            there = sent(comm, case.shuffle.dispatch, put(case.values[RANK]), handle=handle)
            copies = sum(away.values()) * ROW_NBYTES + len(away) * word_nbytes(comm)
            assert_everywhere(comm, there == copies, f"{there} bytes there, {copies} in one copy for each node")
            back = sent(comm, case.shuffle.combine, case.expert_out(), handle)
            rows = [WORLD.allreduce(nbytes // ROW_NBYTES) for nbytes in (there, back)]  # words are shorter than a row
            assert_everywhere(comm, rows[0] == rows[1], f"{back} bytes back")


def test_padded_rows(comm, nodes, monkeypatch):
    """As many bytes cross for every routing, so that they need no look."""
    monkeypatch.setattr(programs, "PADDED_NBYTES", 20 * ROW_NBYTES)
    case = case_of(comm, nodes, tokens=20)
    others = len(set(nodes)) - 1
    with case.shuffle:
        for experts in (lambda shape: np.full(shape, -1), lambda shape: np.full(shape, case.experts - 1)):
            _, handle = case.draw([20] * SIZE, experts).dispatch()
            found = sent(comm, case.shuffle.dispatch, put(case.values[RANK]), handle=handle)
            assert_everywhere(comm, found == others * (20 * ROW_NBYTES + word_nbytes(comm)), f"{found} bytes")
        assert "all 20 rows" in case.shuffle.explain()
        monkeypatch.setattr(programs, "PADDED_NBYTES", 20 * ROW_NBYTES - 1)
        assert "the host counts" in case.shuffle.explain()


def test_rows_are_padded_in_captures(comm, nodes, monkeypatch):
    """However long they are: a look of the host could not be captured, and a replay has another routing."""
    monkeypatch.setattr(programs, "PADDED_NBYTES", 0)
    case, device = case_of(comm, nodes, tokens=20), type(comm.spanning.team.device)
    padded = (len(set(nodes)) - 1) * (20 * ROW_NBYTES + word_nbytes(comm))
    with case.shuffle, comparing() as compare:
        case.draw([20] * SIZE).round_trip(compare, "before")
        _, handle = case.dispatch()
        with monkeypatch.context() as patch:
            patch.setattr(device, "is_capturing", lambda _device, _stream: True)
            patch.setattr(Program, "check_graph", lambda _program: None)  # it refuses steps of MPI's
            found = sent(comm, case.shuffle.dispatch, put(case.values[RANK]), handle=handle)
            case.draw([7] * SIZE).round_trip(compare, "as in a capture")
        assert_everywhere(comm, found == padded, f"{found} bytes")
