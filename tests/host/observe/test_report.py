"""What `python -m pyncclx run --report` counts: each operation's calls, bytes, and what they were done by."""

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import launch

ROOT = Path(__file__).resolve().parents[3]
RANKS = 2
Rows = dict[tuple[str, str], tuple[int, str]]  # (operation, how): calls, MB
Noted = tuple[str, str, int, list[object]]  # operation, how, bytes, lines of the calls that have led to the event

# Kernels move NumPy arrays on the host device; a bytearray is a host array there, too.
DEVICE = """
import numpy as np
from mpi4py import MPI
import pyncclx
comm = MPI.COMM_WORLD
peer = 1 - comm.rank
x, y, both, host = np.ones(1000), np.zeros(1000), np.zeros(2000), bytearray(4000)

for _ in range(3):
    comm.Allreduce(x, y)
comm.Allgather(x, both)
comm.Reduce_scatter(both, y, [1000, 1000])
comm.Iallreduce(x, y).Wait()
comm.Create_cart([2], [True]).Neighbor_alltoall(both, both.copy())
comm.Bcast(host)

comm.Sendrecv(x, peer, 0, y, peer, 0)  # short, so MPI moves it
mid, long = np.ones(3000), np.ones(20_000)
for _ in range(2):  # the first message between two ranks that kernels are to move goes inside MPI's
    requests = [comm.Irecv(mid.copy(), peer, 1), comm.Isend(mid, peer, 1)]
    MPI.Request.Waitall(requests)
    comm.barrier()  # until then the peer may not have answered it
comm.Sendrecv(long, peer, 0, long.copy(), peer, 0)
if comm.rank:
    comm.Send(long, peer)
else:
    comm.Recv(long, peer)
for _ in range(5):
    if comm.rank:
        comm.Send(x, peer)
    else:
        comm.Recv(y, peer)
comm.Sendrecv_replace(y, peer, 0, peer, 0)
comm.Isendrecv(x, peer, 0, y, peer, 0).Wait()
comm.Sendrecv(host, peer, 0, bytearray(4000), peer, 0)
if comm.rank:
    for data in (x, x, host, host):
        comm.Send(data, peer)
else:
    comm.Mprobe(peer).Recv(y)
    comm.Mprobe(peer).Irecv(y).Wait()
    comm.Mprobe(peer).Recv(host)
    comm.Mprobe(peer).Irecv(host).Wait()

one, other = comm.Allreduce_init(x, y), comm.Bcast_init(x)
one.Start()
one.Wait()
MPI.Prequest.Startall([one, other])
MPI.Request.Waitall([one, other])
type(one).Startall([one])
one.Wait()
sends = comm.Send_init(host, peer)
receives = comm.Recv_init(bytearray(4000), peer)
receives.Start()
sends.Start()
MPI.Request.Waitall([sends, receives])
MPI.Prequest.Startall([receives, sends])
MPI.Request.Waitall([sends, receives])

win = MPI.Win.Allocate(8000, 8, comm=comm)
win.Fence()
win.Put(x, peer)
win.Fence()
win.Free()
win = MPI.Win.Create(comm.Alloc(1000, "f8"), 8, comm=comm)
win.Fence()
win.Get(y, peer)
win.Rput(x, peer).Wait()
win.Fence()
win.Accumulate(x, peer)
win.Fence()
win.Put_signal(x, peer)
win.Wait_signal()
win.Free()

shuffle = comm.Create_token_shuffle(2, 16, 16, "f4", k=1, max_tokens=8)
tokens, chosen = np.ones((8, 16), "f4"), np.zeros((8, 1), "i8")
rows, handle = shuffle.dispatch(tokens, chosen)
shuffle.combine_begin(rows.data, handle)
shuffle.combine_end()
shuffle.Free()

for count in (500, 50_000):  # a short array goes inside the pickle
    sending = comm.isend({"rows": np.ones(count), "step": 3}, peer)
    assert comm.recv(source=peer)["rows"].sum() == count
    sending.wait()
"""
ON_DEVICE: Rows = {
    ("Allreduce", "native"): (6, "0.048"),
    ("Allgather", "native"): (2, "0.032"),
    ("Reduce_scatter", "native"): (2, "0.032"),
    ("Iallreduce", "native"): (2, "0.016"),
    ("Neighbor_alltoall", "native"): (2, "0.032"),
    ("Bcast", "host"): (2, "0.008"),
    ("Sendrecv", "staged"): (2, "0.016"),
    ("Sendrecv", "native"): (2, "0.320"),
    ("Sendrecv", "host"): (2, "0.008"),
    ("Irecv", "native"): (5, "0.104"),
    ("Irecv", "host"): (1, "0.004"),
    ("Isend", "staged"): (2, "0.048"),
    ("Isend", "native"): (2, "0.048"),
    ("Isendrecv", "native"): (2, "0.016"),
    ("Send", "staged"): (7, "0.056"),
    ("Send", "native"): (1, "0.160"),
    ("Send", "host"): (2, "0.008"),
    ("Recv", "staged"): (6, "0.048"),
    ("Recv", "native"): (1, "0.160"),
    ("Recv", "host"): (1, "0.004"),
    ("Sendrecv_replace", "native"): (2, "0.016"),
    ("Allreduce_init", "native"): (6, "0.048"),
    ("Bcast_init", "native"): (2, "0.016"),
    ("Send_init", "host"): (4, "0.016"),
    ("Recv_init", "host"): (4, "0.016"),
    ("Put", "host"): (2, "0.016"),
    ("Get", "native"): (2, "0.016"),
    ("Rput", "native"): (2, "0.016"),
    ("Accumulate", "native"): (2, "0.016"),
    ("Put_signal", "native"): (2, "0.016"),
    ("dispatch", "native"): (2, "0.001"),
    ("combine_begin", "native"): (2, "0.002"),
    ("combine_end", "native"): (2, "0.002"),
    ("send", "staged"): (2, "0.008"),
    ("send", "native"): (2, "0.800"),
    ("recv", "native"): (2, "0.800"),
}

# There is no kernel for arrays of this GPU, which is made up: MPI works on host copies of all of them.
STAGED = """
import pytest
from mpi4py import MPI
from support.fake_gpu import Array, installed, ramp
installed(pytest.MonkeyPatch())
comm = MPI.COMM_WORLD
peer = 1 - comm.rank
x, y = Array(ramp(comm, 1000)), Array(ramp(comm, 1000))
comm.Allreduce(x, y)
MPI.Request.Waitall([comm.Iallreduce(x, y)])
comm.Sendrecv(x, peer, 0, y, peer, 0)
request = comm.Allreduce_init(x, y)
request.Start()
request.Wait()
MPI.Prequest.Startall([request])
MPI.Request.Waitall([request])
win = MPI.Win.Allocate(8000, 8, comm=comm)
win.Fence()
win.Put(x, peer)
win.Fence()
win.Free()
raise SystemExit(0)
"""
ON_COPIES: Rows = {
    ("Allreduce", "staged"): (2, "0.016"),
    ("Iallreduce", "staged"): (2, "0.016"),
    ("Sendrecv", "staged"): (2, "0.016"),
    ("Allreduce_init", "staged"): (4, "0.032"),
    ("Put", "staged"): (2, "0.016"),
}

# Each rank on a node of its own.
SPANNING = """
import os
import numpy as np
from mpi4py import MPI
os.environ["PYNCCLX_NODE"] = str(MPI.COMM_WORLD.rank)
comm = MPI.COMM_WORLD
x, y = np.ones(1000), np.zeros(1000)
for _ in range(3):
    comm.Allreduce(x, y)
"""
OVER_NODES: Rows = {("Allreduce", "native"): (6, "0.048")}

# Blocking calls that match nonblocking ones, as in torch.distributed.
MATCHING = """
import numpy as np
from mpi4py import MPI
from pyncclx.communicator.methods import launch_as_nonblocking
comm = MPI.COMM_WORLD
comm.state.first_calls, comm.staging = launch_as_nonblocking, False
x, y = np.ones(1000), np.zeros(1000)
for _ in range(3):
    comm.Allreduce(x, y)
comm.Iallreduce(x, y).Wait()
"""
ON_MATCHING: Rows = {("Allreduce", "native"): (6, "0.048"), ("Iallreduce", "native"): (2, "0.016")}


# Placed before a program: notes each event and the lines of the calls that have led to it.
NOTES = """
import atexit, json, sys
from pyncclx import events
noted = []
def noting(operation, how, nbytes, began, original=events.emit, **options):
    frame, lines = sys._getframe(1), []
    while frame and len(lines) < 3:
        lines.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    noted.append((operation, how, nbytes, lines))
    original(operation, how, nbytes, began, **options)
events.emit = noting
atexit.register(lambda: open(f"NOTED{MPI.COMM_WORLD.rank}", "w").write(json.dumps(noted)))
"""
EMITTERS = ("emit", "_emit", "emit_starts")


def report(folder: Path, program: str) -> Rows:
    """Run a program with --report and read the table."""
    path = folder / "program.py"
    path.write_text(program)
    done = launch.job(RANKS, "-m", "pyncclx", "run", "--report", str(path), PYNCCLX_HEAP="2M")
    assert done.returncode == 0, done.stderr
    _, _, table = done.stdout.partition("operation")
    rows: Rows = {}
    for line in table.splitlines()[1:]:
        if ":" not in line:
            operation, how, calls, megabytes, seconds = line.split()
            assert float(seconds) >= 0
            rows[operation, how] = int(calls), megabytes
    assert all(f"\n{how}: " in table for how in {how for _, how in rows})
    return rows


CASES = {
    "device": (DEVICE, ON_DEVICE),
    "staged": (STAGED, ON_COPIES),
    "over nodes": (SPANNING, OVER_NODES),
    "matching": (MATCHING, ON_MATCHING),
}


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Rows, list[Noted]]]:
    """Of each program: the table, and the events of all ranks; each runs once."""
    found = {}
    for name, (program, _) in CASES.items():
        folder = tmp_path_factory.mktemp("report")
        rows = report(folder, program.replace("comm =", NOTES.replace("NOTED", f"{folder}/noted") + "comm =", 1))
        noted = [event for rank in range(RANKS) for event in json.loads((folder / f"noted{rank}").read_text())]
        found[name] = rows, noted
    return found


@pytest.mark.parametrize("name", CASES)
def test_rows(name: str, reported: dict[str, tuple[Rows, list[Noted]]]) -> None:
    assert reported[name][0] == CASES[name][1]


def test_an_event_that_is_not_emitted_is_missed(tmp_path: Path) -> None:
    planted = "from pyncclx.messages import calls\ncalls.emit = lambda *_: None\n"
    assert report(tmp_path, planted + DEVICE) != ON_DEVICE


def sites() -> Iterator[tuple[str, int]]:
    """The lines that emit an event, but for those of functions that only help to."""
    for path in (ROOT / "pyncclx").rglob("*.py"):
        tree = ast.parse(path.read_text())
        helpers = {node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in EMITTERS}
        helping = {node for helper in helpers for node in ast.walk(helper)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node not in helping:
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in EMITTERS:
                    yield str(path), node.lineno


def test_each_line_that_emits_makes_a_difference(reported: dict[str, tuple[Rows, list[Noted]]]) -> None:
    """Without the events of any one line the table would not be what is expected."""
    emitting = set(sites())
    idle = set(emitting)
    for name, (_, expected) in CASES.items():
        _, noted = reported[name]
        found = {site for *_, lines in noted for site in map(tuple, lines)} & emitting
        assert rows_of(noted) == expected
        for site in found:
            assert rows_of([event for event in noted if list(site) not in event[-1]]) != expected
        idle -= found
    assert len(emitting) > 20
    assert idle == set()


def rows_of(noted: list[Noted]) -> Rows:
    calls: dict[tuple[str, str], list[int]] = defaultdict(list)
    for operation, how, nbytes, _ in noted:
        calls[operation, how].append(nbytes)
    return {key: (len(each), f"{sum(each) / 1e6:.3f}") for key, each in calls.items()}
