"""The benchmark over pretend nodes: every case passes its own check, and results have nodes and engine."""

import json

import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.tools.bench import operations, peers, sweep
from pyncclx.tools.bench.cases import CASES, Options
from pyncclx.tools.bench.memory import Ordinary, Windows
from pyncclx.tools.bench.peers import nccl
from pyncclx.tools.cli import parse
from support import fake_nccl
from support.arrays import host_only

SIZE, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
LAYOUTS = {"halves": 2 * RANK // SIZE, "in turn": RANK % 2, "unequal": min(RANK, 1)}  # this rank's node
# Element type, operator, bytes: short and long ones, and types that are rounded once more between nodes.
KINDS = [("float32", "sum", 1000), ("bfloat16", "avg", 130), ("float16", "sum", 70_000), ("int8", "prod", 77)]
NAMES = [name for name, kind in CASES.items() if not kind.windows_only]
pytestmark = pytest.mark.ranks(3)


@pytest.fixture(scope="module", params=LAYOUTS)
def comm(request):
    """A communicator over two pretend nodes.

    The memory for messages is made before, on the real node: a process has it once, for all tests that follow.
    """
    _ = pyncclx.Communicator().endpoint
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYNCCLX_NODE", str(LAYOUTS[request.param]))
        comm = pyncclx.Communicator().Dup()
        assert comm.spanning.places.count == 2
        yield comm
        comm.Free()


def cases(comm, operation, memory):
    """Cases of an operation, each with a form and a name."""
    for datatype, op, nbytes in KINDS:
        case = CASES[operation](comm, nbytes, Options(datatype, op, comm.size - 1), memory)
        for in_place in case.forms:
            yield case, in_place, f"{datatype} {op} {nbytes} {'in place' if in_place else 'out of place'}"


@pytest.mark.parametrize("operation", NAMES)
@pytest.mark.parametrize("windows", [False, True], ids=["anywhere", "windows"])
def test_ours_is_right(comm, operation, windows):
    memory = Windows(comm, 1 << 17) if windows else Ordinary(comm)
    wrong = {}
    for case, in_place, name in cases(comm, operation, memory):
        wrong[name] = sweep.count_wrong(peers.Ours(comm), case, case.call(in_place), in_place)
        idle = sweep.count_wrong(peers.Ours(comm), case, lambda: None, in_place)
        assert idle, name
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize("operation", ["allreduce", "reduce_scatter", "scan", "alltoall"])
def test_staging_is_right(comm, operation):
    """Within what the order of a fold changes."""
    peer, wrong = peers.Staged(comm), {}
    for case, in_place, name in cases(comm, operation, Ordinary(comm)):
        call = peer.call(case, in_place)
        if call is not None:
            wrong[name] = sweep.count_wrong(peer, case, call, in_place)
    assert wrong
    assert not any(wrong.values()), wrong


@host_only
@pytest.mark.parametrize("operation", ["allreduce", "gather", "sendrecv"])
def test_nccl_is_called_rightly(comm, operation):
    library, _ = fake_nccl.library(comm)
    peer, wrong = nccl.Nccl(comm, nccl.Library(library)), {}
    for case, in_place, name in cases(comm, operation, Ordinary(comm)):
        call = peer.call(case, in_place)
        wrong[name] = sweep.count_wrong(peer, case, call, in_place)
    peer.close()
    assert not any(wrong.values()), wrong


def arguments(*words):
    return parse(["bench", *words])


def test_a_sweep(comm, tmp_path, capsys):
    """From the command line to the files."""
    pytest.importorskip("matplotlib")
    words = ["allreduce", "alltoall", "-b", "64", "-e", "1K", "-f", "16", "-n", "2", "-w", "1", "--against", "mpi"]
    operations.time(comm, arguments(*words, f"--json={tmp_path / 'found.json'}", f"--plot={tmp_path / 'found.png'}"))
    if RANK:
        return
    found = json.loads((tmp_path / "found.json").read_text())
    engine = comm.spanning.rails.engine_name
    assert (found["environment"]["ranks"], found["environment"]["nodes"]) == (SIZE, 2)
    assert found["environment"]["engine"] == engine
    assert f"{SIZE} ranks on 2 nodes (engine: {engine}), " in capsys.readouterr().out
    rows = [(row["operation"], row["nbytes"]) for row in found["results"]]
    assert [operation for operation, _ in rows] == ["allreduce"] * 2 + ["alltoall"] * 2
    assert [nbytes for _, nbytes in rows[:2]] == [64, 1024]
    for row in found["results"]:
        assert row["out_of_place"]["wrong"] == row["in_place"]["wrong"] == 0
        assert row["peers"]["mpi"]["out_of_place"]["wrong"] == row["peers"]["mpi"]["in_place"]["wrong"] == 0
    assert (tmp_path / "found.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("put_signal --windows", "signals work inside one node, and the ranks are on 2"),
        ("allreduce --algorithm one_shot", "names a kernel inside one node"),
        ("alltoallv --graph", "graph"),
    ],
)
def test_what_works_inside_one_node_is_said(comm, words, text):
    with pytest.raises(SystemExit, match=text):
        operations.time(comm, arguments(*words.split()))
