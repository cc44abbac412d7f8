"""CONTRIBUTING.md says how an operation is added. Two are, in a copy of the sources, and they run.

Runsum is a copy of Scan, with a file of its own over nodes. Rotate moves blocks, and is in the file of exchanges.
mpi4py has neither.
"""

import re
import shutil
from pathlib import Path

import pytest

import launch

ROOT = Path(__file__).resolve().parents[3]
TOPS = "pyncclx", "mpi_bootstrap", "cuda"

ROTATE_KERNEL = """#include "exchange/exchange.cuh"

template <bool kLong>
__global__ void __launch_bounds__(kMaxThreads, 1) rotate(const __grid_constant__ MoveArgs args) {
    const int me = args.team.rank, size = args.team.size;
    const Span nothing{args.recv, 0, 0};
    exchange_all<kLong>(
        args.team,
        [&](int rank) { return rank == (me + 1) % size ? part_of(args.send, args.nbytes) : nothing; },
        [&](int rank) { return me == (rank + 1) % size ? part_of(args.recv, args.nbytes) : nothing; });
}
"""
ROTATE = """from ..memory.parameters import MoveArgs
from .arguments import resolve_pair
from ..arrays.places import on_host
from .calls import move_call
from .lowering import lowered_by
from .transports import choose_spans

choose = choose_spans("rotate")


def _lower(comm, given):
    send, recv = given
    args = MoveArgs(send=send.address, recv=recv.address, nbytes=recv.nbytes, root=0)
    return move_call("Rotate", choose, args, (send, recv))


@lowered_by(_lower)
def rotate(comm, sendbuf, recvbuf):
    return None if on_host(sendbuf, recvbuf) else resolve_pair("Rotate", sendbuf, recvbuf)
"""
ROTATE_OVER_NODES = """HOW["rotate"] = "each rank sends to the next"


def rotate(comm, given):
    send, recv = given
    blocks = lambda peer: [send.nbytes if rank == peer % comm.size else 0 for rank in range(comm.size)]
    zeros = [0] * comm.size
    return to_each("Rotate", FixedCounts(send, recv, blocks(comm.rank + 1), zeros, blocks(comm.rank - 1), zeros))


"""
ROTATE_METHOD = """    @or_staged
    def Rotate(self, sendbuf, recvbuf):
        if not by_kernel(self, rotate, sendbuf, recvbuf):
            raise NotSupported("Rotate: host arrays; pass device arrays")

    Irotate = nonblocking(rotate)
    Rotate_init = persistent(rotate)

"""


def of_scan(path, begin="", end=""):
    """A part of a file about Scan, of Runsum instead."""
    text = (ROOT / path).read_text()
    text = text[text.index(begin) :]
    text = text[: text.index(end)] + end if end else text
    return text.replace("Scan", "Runsum").replace("scan", "runsum")


REFUSED = 'raise NotSupported("Runsum: host arrays; pass device arrays")'
RUNSUM_METHOD = of_scan("pyncclx/communicator/reductions.py", "    @or_staged\n    def Scan(", "persistent(scan)\n")
# Of each operation, by file: what is added, and the lines before which it is. A new file has none.
EDITS = {
    "Runsum": {
        "pyncclx/operations.py": [
            ('    yield Operation("Runsum", "runsum", op=2, has_one_length=True)\n', '    yield Operation("Alltoallw"')
        ],
        "cuda/collectives/runsum.cu": of_scan("cuda/collectives/scan.cu"),
        "pyncclx/launch/sources.py": [
            (of_scan("pyncclx/launch/sources.py", '    "collectives/scan.cu"', "\n"), '    "collectives/gather.cu"')
        ],
        "pyncclx/collectives/runsum.py": of_scan("pyncclx/collectives/scan.py"),
        "pyncclx/collectives/over_nodes/runsum.py": of_scan("pyncclx/collectives/over_nodes/scan.py"),
        "pyncclx/communicator/reductions.py": [
            ("from ..collectives.runsum import runsum\n", "from ..collectives.scan import"),
            ("from ..errors import NotSupported\n", "from ..launch.run import"),
            (re.sub(r"super\(\)\..*", REFUSED, RUNSUM_METHOD) + "\n", "    @or_staged\n    def Exscan("),
        ],
    },
    "Rotate": {
        "pyncclx/operations.py": [('    yield Operation("Rotate", "rotate")\n', '    yield Operation("Alltoallw"')],
        "cuda/collectives/rotate.cu": ROTATE_KERNEL,
        "pyncclx/launch/sources.py": [
            ('    "collectives/rotate.cu": Source(("rotate", "rotate_long")),\n', '    "collectives/gather.cu"')
        ],
        "pyncclx/collectives/rotate.py": ROTATE,
        "pyncclx/collectives/over_nodes/exchanges.py": [(ROTATE_OVER_NODES, "def barrier(")],
        "pyncclx/communicator/collectives.py": [
            ("from ..collectives.rotate import rotate\n", "from ..collectives.rooted import"),
            ("from ..errors import NotSupported\n", "from ..launch.run import"),
            (ROTATE_METHOD, "    def Barrier("),
        ],
    },
}
HOW = {"Runsum": "each vector goes to all ranks above its own", "Rotate": "each rank sends to the next"}
PROGRAM = """
import os, sys
from mpi4py import MPI
if sys.argv[1]:
    os.environ["PYNCCLX_NODE"] = sys.argv[1].split(",")[MPI.COMM_WORLD.rank]
import numpy as np
import pyncclx

def contribution(rank, call):
    return (np.arange(COUNT) % 97 + 1000 * call + 100 * rank).astype("f4")

def expected(name, call):
    if name == "Rotate":
        return contribution((comm.rank - 1) % comm.size, call)
    return sum(contribution(rank, call) for rank in range(comm.rank + 1))

comm = pyncclx.Communicator(MPI.COMM_WORLD)
for COUNT in (1001, 0, 1):
    x, y = np.zeros(COUNT, "f4"), np.zeros(COUNT, "f4")
    for name in ("Runsum", "Rotate"):
        blocking, begin, init = (getattr(comm, form) for form in (name, "I" + name.lower(), name + "_init"))
        request = init(x, y)
        def start():
            request.Start()
            request.Wait()
        for call, act in enumerate([lambda: blocking(x, y), lambda: begin(x, y).Wait(), start, start]):
            x[:], y[:] = contribution(comm.rank, call), -1
            act()
            comm.synchronize()
            np.testing.assert_array_equal(y, expected(name, call), f"{name}, call {call} of {COUNT}")
        request.Free()
        for form in (blocking, begin, init):
            for error, send in ((pyncclx.NotSupported, bytearray(4)), (ValueError, np.zeros(COUNT + 1, "f4"))):
                try:
                    form(send, bytearray(4) if type(send) is bytearray else y)
                except error as refusal:
                    assert name.lower() in str(refusal).lower(), refusal
                else:
                    raise AssertionError((form, error))
        blocking(x, y)
        comm.synchronize()
        np.testing.assert_array_equal(y, expected(name, 3))
for name in ("Runsum", "Rotate"):
    print(f"{name} is", comm.explain(name, 4004))
"""


def add(root, edits):
    """Add an operation to a copy of the sources; return the files that this touches."""
    for name, change in edits.items():
        path = root / name
        assert path.exists() == (not isinstance(change, str)), name
        if isinstance(change, str):
            path.write_text(change)
            continue
        text = path.read_text()
        for added, before in change:
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, added + before)
        path.write_text(text)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The sources with both operations."""
    root = tmp_path_factory.mktemp("tree")
    for top in TOPS:
        shutil.copytree(ROOT / top, root / top, ignore=shutil.ignore_patterns("__pycache__"))
    for edits in EDITS.values():
        add(root, edits)
    return root


@pytest.mark.parametrize("nodes", ["", "a,a,b"])
def test_they_run(tree, nodes):
    settings = {"PYTHONPATH": str(tree), "PYNCCLX_HEAP": "4M"}
    done = launch.job(3, "-c", PROGRAM, nodes, cwd=tree, seconds=150, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, how in HOW.items():
        assert done.stdout.count(f"{name} is native: ") == 3
        assert done.stdout.count(how) == (3 if nodes else 0), done.stdout


def test_a_missing_step_is_named(tree):
    """Without its lowering over nodes, an operation is named by the error of the import."""
    path = tree / "pyncclx/collectives/over_nodes/runsum.py"
    text = path.read_text()
    try:
        path.write_text("")
        done = launch.job(1, "-c", "import pyncclx.communicator.communicator", cwd=tree, PYTHONPATH=str(tree))
    finally:
        path.write_text(text)
    error = "Runsum: no file of pyncclx.collectives.over_nodes defines the function runsum"
    assert done.returncode != 0
    assert error in done.stderr + done.stdout


def steps():
    """The steps of the guide, by number."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Adding an operation")[2].partition("\n## ")[0]
    return re.findall(r"^\d\. (.*?)(?=^\d\. |^$)", text, re.MULTILINE | re.DOTALL), text


@pytest.mark.parametrize("name", EDITS)
def test_the_files_touched_are_those_of_the_guide(name):
    """Each step names its files; some name two to choose from. `PROGRAM` is what the file of the last step tests."""
    listed, text = steps()
    touched = [f"tests/ranks/collectives/test_{name.lower()}.py", *EDITS[name]]
    touched = {path.replace(name.lower(), "NAME").removeprefix("pyncclx/") for path in touched}
    of_steps = [set(re.findall(r"`([\w/]+\.(?:py|cu))`", step)) & touched for step in listed]
    assert [len(files) for files in of_steps] == [1, 2, 1, 1, 1, 1]
    assert set().union(*of_steps) == touched
    assert len(touched) == 7
    assert "These seven files" in text
