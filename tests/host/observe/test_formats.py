"""What others read: PyTorch's dumps, Chrome's traces, Prometheus' text, a picture; and ranges of NVTX."""

import json
import pickle
import types
from pathlib import Path

import pytest

import launch
from pyncclx.events import END, START, Event
from pyncclx.recording.nvtx_ranges import Ranges
from pyncclx.tools.observe import status, timeline, torch_format
from support import flight_records
from support.records import FakeRank, job_of, well

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def job():
    ranks = well(2, 3)
    ranks[0].message("Send", 1, 7, ended=True)
    ranks[1].message("Recv", 0, 7)
    ranks[0].call("Bcast", datatype="float32", elements=10, nbytes=40, ended=True, algorithm="bcast_chain")
    ranks[0].progress(2)
    return job_of(ranks)


def test_torch(job, tmp_path):
    torch_format.write(job, tmp_path)
    first, second = (pickle.loads((tmp_path / f"pyncclx_rank_{rank}").read_bytes()) for rank in range(2))
    assert first["version"] == "2.10"
    assert first["pg_config"] == {"0": {"name": "0", "desc": "MPI.COMM_WORLD", "ranks": "[0, 1]"}}
    names = [entry["profiling_name"] for entry in first["entries"]]
    assert names == ["nccl:all_reduce"] * 3 + ["nccl:send 0->1", "nccl:broadcast"]
    assert [entry["state"] for entry in first["entries"][:3]] == ["completed", "completed", "started"]
    assert second["entries"][3]["profiling_name"] == "nccl:recv 1<-0"
    assert [entry["collective_seq_id"] for entry in first["entries"]] == [1, 2, 3, 0, 4]
    assert first["entries"][0]["frames"] == [{"name": "step", "filename": "/home/me/train.py", "line": 88}]
    assert (first["entries"][4]["input_sizes"], first["entries"][4]["input_dtypes"]) == ([[10]], ["Float"])
    assert first["pg_status"]["0"] == {
        "last_enqueued_collective": 4,
        "last_started_collective": 3,
        "last_completed_collective": 2,
    }


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda ranks: None, []),
        (
            lambda ranks: [
                rank.call(name, elements=elements)
                for rank in ranks
                for name, elements in [("Allgather", 7), ("Reduce_scatter_block", 5), ("Scan", 3), ("Alloc", 0)]
            ],
            [],  # two have names, two are left out
        ),
        (lambda ranks: [rank.call("Bcast") for rank in ranks[:2]], ["call 4 of group 0: not made by ranks [2]"]),
        (
            lambda ranks: [rank.call("Bcast" if rank.number else "Reduce") for rank in ranks],
            ["call 4 of group 0: differs between ranks [0, 1, 2]"],
        ),
        (
            lambda ranks: [rank.call("Allreduce", elements=5 + rank.number // 2) for rank in ranks],
            ["call 4 of group 0: differs between ranks [0, 1, 2]"],
        ),
        (
            lambda ranks: [rank.call("Barrier", ended=rank.number != 1) for rank in ranks if not rank.progress(3)],
            ["call 4 of group 0: completed on some ranks alone"],
        ),
    ],
    ids=["well", "names and lengths", "missing call", "other operation", "other size", "not completed"],
)
def test_torch_finds(tmp_path, change, found):
    """PyTorch's analyser, as support/flight_records.py has it, finds what is wrong, and nothing where all is well."""
    ranks = well(3, 3)
    for rank in ranks:
        rank.progress(3)
        rank.message("Send", (rank.number + 1) % 3, 7)
    change(ranks)
    torch_format.write(job_of(ranks), tmp_path)
    assert flight_records.findings(tmp_path, torch_format.PREFIX) == found


def test_chrome(job, tmp_path):
    timeline.write_trace(job, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    calls = [event for event in events if event["ph"] == "X"]
    assert [(event["name"], event["pid"]) for event in calls] == [
        *[("Allreduce", 0)] * 3,
        *(("Send", 0), ("Bcast", 0)),
        *[("Allreduce", 1)] * 3,
        ("Recv", 1),
    ]
    assert calls[1]["ts"] - calls[0]["ts"] == calls[0]["dur"] == 10_000  # until the next
    assert calls[3]["dur"] == 1  # to its own end
    assert calls[4]["args"]["nbytes"] == 40
    assert {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "rank 1"}} in events


def test_prometheus_counts_nodes():
    ranks = [FakeRank(number, 2, host="ab"[number]) for number in range(2)]
    for rank in ranks:
        rank.call(ended=True, nbytes=40)
    assert status.metrics(job_of(ranks)).count('n_nodes="2"') == 4


def test_prometheus(job, tmp_path):
    status.write_metrics(job, tmp_path / "metrics.prom")
    lines = (tmp_path / "metrics.prom").read_text().splitlines()
    labels = 'node="a",rank="0",comm_name="MPI.COMM_WORLD",nranks="2"'
    call = f'{labels},n_nodes="1",collective="Bcast",message_size="40",algo_proto="bcast_chain"'
    assert f"nccl_collective_exec_time_microseconds{{{call}}} 1" in lines
    assert f"nccl_bus_bandwidth_gbs{{{call}}} 0.04" in lines
    assert f"pyncclx_last_call_number{{{labels}}} 4" in lines
    assert 'pyncclx_calls{node="a",rank="1",collective="Allreduce",kind="collective"} 3' in lines
    assert "# TYPE nccl_bus_bandwidth_gbs gauge" in lines
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.prom"]


def test_picture(job, tmp_path):
    timeline.draw(job, tmp_path / "timeline.png", 1.0)
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_ranges_of_nvtx():
    """Each start begins a range; an end also ends those of calls that have raised inside."""
    seen = []
    nvtx = types.SimpleNamespace(
        start_range=lambda message, domain: seen.append(("start", message, domain)) or message,
        end_range=lambda number: seen.append(("end", number)),
    )
    ranges = Ranges(nvtx)
    for kind, operation in ((START, "Sendrecv"), (START, "Recv"), (END, "Sendrecv"), (END, "Bcast")):
        ranges.take(Event(operation=operation, how="", nbytes=0, began=0.0, ended=0.0, kind=kind))
    assert seen == [
        ("start", "Sendrecv", "pyncclx"),
        ("start", "Recv", "pyncclx"),
        *(("end", "Recv"), ("end", "Sendrecv")),
    ]


def test_a_profiler_gets_ranges(tmp_path):
    """A process that a profiler has started, with a package that prints in the place of nvtx."""
    (tmp_path / "nvtx.py").write_text(
        "def start_range(message, domain):\n    print('start', message, domain)\n    return 7\n"
        "def end_range(number):\n    print('end', number)\n"
    )
    program = tmp_path / "program.py"
    program.write_text(
        "import pyncclx\nfrom mpi4py import MPI\ncomm = pyncclx.Communicator(MPI.COMM_WORLD)\n"
        "x = comm.Alloc(4)\ncomm.Allreduce(MPI.IN_PLACE, x)\n"
    )
    profiled = {"NVTX_INJECTION64_PATH": "/some/profiler.so", "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = launch.job(1, str(program), **profiled)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["start Allreduce pyncclx", "end 7"]), done.stderr
