"""The benchmark: every case passes its own check, which finds wrong results; peers do the same work."""

import json

import numpy as np
import pytest

from pyncclx.tools.bench import host_time, operations, peers, sweep, timing
from pyncclx.tools.bench.cases import CASES, Options
from pyncclx.tools.bench.memory import Ordinary, Windows
from pyncclx.tools.bench.peers import nccl
from pyncclx.tools.cli import parse
from support import fake_nccl, sample
from support.arrays import gpu_only, host_only

every_case = pytest.mark.parametrize("operation", CASES)
pytestmark = pytest.mark.parametrize("comm", ["dup"], indirect=True)

# Element type, operator, bytes: lengths that are no multiple of 16, types that round and types that wrap.
KINDS = [
    ("float32", "sum", 1000),
    ("bfloat16", "avg", 130),
    ("int8", "prod", 77),
    ("float16", "sum", 1),
    ("double", "max", 5000),
]
# NCCL 2.28.9 gathers blocks of odd bytes in place of its symmetric windows, and elements are wrong.
WRONG_IN_NCCL = "allgather int8 prod 77 in place", "allgatherv int8 prod 77 in place"


def cases(comm, operation, memory=None):
    """Cases of an operation, each with a form."""
    if memory is None:
        memory = Windows(comm, 8192) if CASES[operation].windows_only else Ordinary(comm)
    for datatype, op, nbytes in sample.some(KINDS, 3):
        options = Options(datatype, op, comm.size - 1)
        case = CASES[operation](comm, nbytes, options, memory)
        for in_place in case.forms:
            yield case, in_place, f"{datatype} {op} {nbytes} {'in place' if in_place else 'out of place'}"


@every_case
@pytest.mark.parametrize("windows", [False, True], ids=["anywhere", "windows"])
def test_ours_is_right(comm, operation, windows):
    memory = Windows(comm, 8192) if windows else None
    wrong = {}
    for case, in_place, name in cases(comm, operation, memory):
        wrong[name] = sweep.count_wrong(peers.Ours(comm), case, case.call(in_place), in_place)
    assert not any(wrong.values()), wrong


@every_case
def test_the_check_sees_what_is_wrong(comm, operation):
    for case, in_place, name in cases(comm, operation):
        target = case.target(in_place)
        nothing = sweep.count_wrong(peers.Ours(comm), case, lambda: None, in_place)
        assert nothing or comm.size == 1, name  # one rank alone may have its result already
        call = case.call(in_place)

        def last_bit(call=call, target=target, case=case):
            call()
            if target is not None and case.is_root:
                target.view(case.elements.bits)[-1:] ^= 1

        found = sweep.count_wrong(peers.Ours(comm), case, last_bit, in_place)
        assert (found > 0) == (comm.allreduce(target is not None and case.is_root) > 0), name


def test_the_check_compares_the_ranks_bits(comm):
    """What all ranks expect may be wrong alike; that they differ is seen by itself."""
    case = CASES["allreduce"](comm, 400, Options(), Ordinary(comm))
    call = case.call(False)
    case.expected = lambda: case.recv  # whatever there is

    def other_on_last():
        call()
        if comm.rank == comm.size - 1:
            case.recv.view("u4")[:3] ^= 1

    assert sweep.count_wrong(peers.Ours(comm), case, other_on_last, False) == (3 if comm.size > 1 else 0)


@host_only
@every_case
@pytest.mark.parametrize("kind", [nccl.Nccl, nccl.SymmetricNccl])
def test_nccl_is_called_rightly(comm, operation, kind):
    library, fake = fake_nccl.library(comm)
    peer = kind(comm, nccl.Library(library))
    wrong = wrong_of(peer, comm, operation)
    peer.close()
    assert not any(fake.made.values()), fake.made
    assert not any(wrong.values()), wrong
    assert bool(wrong) == (CASES[operation].kind not in ("scan", "exscan", "send"))


@every_case
def test_mpi_is_called_rightly(comm, operation):
    wrong = wrong_of(peers.Staged(comm), comm, operation)
    assert wrong
    assert not any(wrong.values()), wrong


def wrong_of(peer, comm, operation):
    wrong = {}
    for case, in_place, name in cases(comm, operation):
        theirs = peer.adopt(case)
        call = peer.call(theirs, in_place)
        if call is not None:
            wrong[name] = sweep.count_wrong(peer, theirs, call, in_place)
            idle = sweep.count_wrong(peer, theirs, lambda: None, in_place)
            assert idle or comm.size == 1, name
    return wrong


@host_only
def test_old_nccl_has_no_windows(comm):
    library, _ = fake_nccl.library(comm, 22602)
    assert str(nccl.Library(library)) == "NCCL 2.26.2"
    with pytest.raises(SystemExit, match=r"2\.27 or newer, here is NCCL 2\.26\.2"):
        nccl.SymmetricNccl(comm, nccl.Library(library))


@gpu_only
@pytest.mark.parametrize("name", ["nccl", "nccl-symmetric", "torch"])
def test_gpu_peers_are_called_rightly(comm, name):
    try:
        peer = peers.PEERS[name](comm)
    except (ImportError, OSError) as error:
        pytest.skip(str(error))
    wrong = {operation: wrong_of(peer, comm, operation) for operation in CASES}
    peer.close()
    assert wrong["allreduce"]
    bad = [f"{operation} {case}: {n}" for operation, found in wrong.items() for case, n in found.items() if n]
    assert not [text for text in bad if not (name == "nccl-symmetric" and text.startswith(WRONG_IN_NCCL))], bad


@gpu_only
@pytest.mark.parametrize("name", ["nccl", "nccl-symmetric", "torch"])
@pytest.mark.parametrize("operation", ["allreduce", "alltoall"])
def test_a_graph_beside_a_peer(comm, name, operation, capsys):
    words = f"-b 64 -e 1M -f 128 -n 2 -w 1 --graph --windows --against {name}".split()
    try:
        operations.time(comm, arguments(operation, *words))
    except (ImportError, OSError) as error:
        pytest.skip(str(error))
    if comm.rank == 0:
        assert "# Wrong elements     : 0 OK" in capsys.readouterr().out


def arguments(*words):
    return parse(["bench", *words])


def test_a_sweep(comm, tmp_path, capsys):
    """From the command line to the files; rank 0 writes."""
    words = ["-b", "64", "-e", "1K", "-f", "4", "-n", "2", "-w", "1", "-d", "double", "--against", "mpi", "-r", "0"]
    files = [f"--json={tmp_path / 'found.json'}", f"--plot={tmp_path / 'found.png'}"]
    pytest.importorskip("matplotlib")
    operations.time(comm, arguments("allreduce", "bcast", *words, *files))
    output = capsys.readouterr().out
    if comm.rank:
        assert output == ""
        return
    assert (tmp_path / "found.png").stat().st_size > 1000
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["environment"]["ranks"] == comm.size
    assert [row["nbytes"] for row in found["results"]] == [64, 256, 1024] * 2
    for row in found["results"]:
        assert row["in_place"]["wrong"] == row["peers"]["mpi"]["in_place"]["wrong"] == 0
        assert row["in_place"]["time_us"] >= row["in_place"]["average_us"] >= row["in_place"]["least_us"] > 0
        assert (row["out_of_place"] is None) == (row["operation"] == "bcast")
    assert output.count("# Wrong elements     : 0 OK") == 2


def test_what_was_measured_is_kept(comm, tmp_path, monkeypatch):
    """A run that ends in its second operation leaves the rows of the first."""
    monkeypatch.setattr(CASES["bcast"], "call", lambda case, in_place: 1 / 0)
    words = ["-b", "64", "-e", "256", "-n", "1", "-w", "0", f"--json={tmp_path / 'found.json'}"]
    with pytest.raises(ZeroDivisionError):
        operations.time(comm, arguments("allreduce", "bcast", *words))
    if comm.rank == 0:
        found = json.loads((tmp_path / "found.json").read_text())["results"]
        assert [(row["operation"], row["nbytes"]) for row in found] == [("allreduce", 64), ("allreduce", 256)]


@pytest.mark.parametrize("operation", ["alltoall", "allreduce"])
def test_osu_sizes_are_those_of_one_message(comm, operation, capsys):
    operations.time(comm, arguments(operation, *["-b", "64", "-e", "256", "-n", "1", "-w", "0", "--osu"]))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line and not line.startswith("#")]
    assert [line[0] for line in lines] == ([] if comm.rank else ["64", "256"])


def test_a_wrong_result_is_the_exit_status(comm, monkeypatch, capsys):
    monkeypatch.setattr(CASES["allgather"], "expected", lambda case: case.recv ^ 1)
    with pytest.raises(SystemExit) as raised:
        operations.time(comm, arguments("allgather", *["-b", "64", "-e", "64", "-n", "1", "-w", "0", "-d", "int32"]))
    assert raised.value.code == 1
    if comm.rank == 0:
        assert "FAILED" in capsys.readouterr().out


def test_an_algorithm_ends_where_its_messages_end(comm, capsys):
    most = comm.team.layout.packet_nbytes
    words = f"-b 64 -e {4 * most} -f 4 -n 1 -w 0 --algorithm one_shot".split()
    operations.time(comm, arguments("allreduce", *words))
    if comm.rank == 0:
        assert "algorithm='one_shot' moves at most" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("sendrecv --algorithm one_shot", "has no choice of algorithms"),
        ("allreduce -r 99", "the ranks are 0 to"),
        ("allreduce -d int32 -o avg", "no average"),
        ("allreduce -d complex64", "give one of"),
        ("allreduce -b 64 -e 8", "sizes must grow"),
        ("allreduce -e 1X", "no size"),
        ("allreduce --against nix", "give one or more of nccl,nccl-symmetric,torch,mpi"),
        ("", "name one or more"),
        ("allreduce nix", "bench nix: name one or more"),
    ],
)
def test_what_cannot_be_is_said(comm, words, text):
    with pytest.raises(SystemExit, match=text):
        operations.time(comm, arguments(*words.split()))


def test_host_time(comm, monkeypatch, capsys):
    monkeypatch.setattr(host_time, "CALLS", 4)
    monkeypatch.setattr(host_time, "BATCH", 2)
    operations.time(comm, arguments("--host-time", "--against", "mpi"))
    if comm.rank == 0:
        lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
        driver = [lines.pop(0) for _ in range(2)] if comm.device == "gpu" else []
        assert all("driver: cu" in line for line in driver)
        assert [line.split()[0] for line in lines][:3] == ["Allreduce", "Iallreduce", "Allreduce_init"]
        assert all(0 < float(median) <= float(p99) for *_, median, p99 in map(str.split, lines))


class Queue(timing.Queue):
    """A clock by which two operations take 2 µs on rank 0, 4 µs on rank 1 and so on; a graph is a list of calls."""

    def __init__(self, rank, repeats):
        self.seconds, self.replays = 2e-6 * (rank + 1) * repeats, 0

    def elapsed(self, work):
        work()
        return self.seconds

    def capture(self, work):
        work()

        def replay():
            self.replays += 1

        return replay


@pytest.mark.parametrize("graph", [False, True])
def test_the_slowest_rank_counts(comm, graph):
    queue, called = Queue(comm.rank, timing.REPLAYS if graph else 1), []
    times = timing.time(comm, queue, lambda: called.append(1), 2, 3, graph=graph)
    assert len(called) == 3 + 2 + (0 if graph else 2)
    assert queue.replays == (1 + timing.REPLAYS if graph else 0)
    assert np.allclose(times, (1, (comm.size + 1) / 2, comm.size))
