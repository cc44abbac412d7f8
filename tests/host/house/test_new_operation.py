"""CONTRIBUTING.md says where an operation is added. Here Shift is, in a copy of the sources, and it runs."""

import shutil
from pathlib import Path

import pytest

import launch

ROOT = Path(__file__).resolve().parents[3]

KERNEL = """#include "exchange/exchange.cuh"

template <bool kLong>
__global__ void __launch_bounds__(kMaxThreads, 1) shift(const __grid_constant__ MoveArgs args) {
    const int me = args.team.rank, size = args.team.size;
    const Span nothing{args.recv, 0, 0};
    exchange_all<kLong>(
        args.team,
        [&](int rank) { return rank == (me + 1) % size ? part_of(args.send, args.nbytes) : nothing; },
        [&](int rank) { return me == (rank + 1) % size ? part_of(args.recv, args.nbytes) : nothing; });
}
"""
FUNCTION = """from ..memory.parameters import MoveArgs
from .arguments import resolve_pair
from .calls import move_call
from .lowering import lowered_by
from .transports import choose_spans

choose = choose_spans("shift")


def _lower(comm, given):
    send, recv = given
    args = MoveArgs(send=send.address, recv=recv.address, nbytes=recv.nbytes, root=0)
    return move_call("Shift", choose, args, (send, recv))


@lowered_by(_lower)
def shift(comm, sendbuf, recvbuf):
    return resolve_pair("Shift", sendbuf, recvbuf)
"""
OVER_NODES = """

def shift(comm, given):
    send, recv = given
    blocks = lambda peer: [send.nbytes if rank == peer % comm.size else 0 for rank in range(comm.size)]
    zeros = [0] * comm.size
    return to_each("Shift", FixedCounts(send, recv, blocks(comm.rank + 1), zeros, blocks(comm.rank - 1), zeros))
"""
METHOD = """    def Shift(self, sendbuf, recvbuf):
        from ..collectives.shift import shift
        assert by_kernel(self, shift, sendbuf, recvbuf)

"""
# By file: what is added, and the line before which it is; a new file has none.
EDITS = {
    "cuda/collectives/shift.cu": (KERNEL, None),
    "pyncclx/launch/sources.py": (
        '    "collectives/shift.cu": Source(("shift", "shift_long")),\n', '    "collectives/gather.cu"'
    ),
    "pyncclx/operations.py": ('    yield Operation("Shift", "shift")\n', '    yield Operation("Alltoallw"'),
    "pyncclx/collectives/shift.py": (FUNCTION, None),
    "pyncclx/collectives/over_nodes/exchanges.py": (OVER_NODES, ""),
    "pyncclx/communicator/collectives.py": (METHOD, "    def Barrier("),
}
PROGRAM = """
import os, sys
from mpi4py import MPI
if sys.argv[1]:
    os.environ["PYNCCLX_NODE"] = sys.argv[1].split(",")[MPI.COMM_WORLD.rank]
import numpy as np
import pyncclx
comm = pyncclx.Communicator(MPI.COMM_WORLD)
x, y = np.full(1001, comm.rank, "f4"), np.full(1001, -1, "f4")
comm.Shift(x, y)
comm.synchronize()
assert (y == (comm.rank - 1) % comm.size).all(), y
print("shifted", comm.explain("Shift", 4004).split(":")[0])
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The sources with the operation."""
    root = tmp_path_factory.mktemp("tree")
    for top in ("pyncclx", "mpi_bootstrap", "cuda"):
        shutil.copytree(ROOT / top, root / top, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (text, before) in EDITS.items():
        path = root / name
        assert path.exists() == (before is not None)
        old = path.read_text() if path.exists() else ""
        assert before is None or before == "" or old.count(before) == 1, name
        path.write_text(old.replace(before, text + before) if before else old + text)
    return root


@pytest.mark.parametrize("nodes", ["", "a,a,b"])
def test_it_runs(tree, nodes):
    settings = {"PYTHONPATH": str(tree), "PYNCCLX_HEAP": "4M"}
    done = launch.job(3, "-c", PROGRAM, nodes, cwd=tree, seconds=150, **settings)
    assert done.stdout.count("shifted native") == 3, done.stdout + done.stderr


def test_the_steps_are_those_of_the_guide():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    steps = text.partition("## Adding an operation")[2].partition("\n## ")[0]
    names = {name.replace("shift", "NAME") for name in EDITS}
    missing = [name for name in names if name.removeprefix("pyncclx/") not in steps]
    assert missing == []
