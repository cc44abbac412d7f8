"""python -m pyncclx status: show where the ranks of a running job are.

It reads the flight recorders of the processes on this host while they run, and says what is wrong. Without a job's
name, exactly one job must be running; otherwise the command lists the jobs. With --prometheus it writes a file for the
node exporter's textfile collector. Metrics have the names of NCCL's inspector if it has the same metric.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...operations import COLLECTIVES
from ...recording import folders
from .analysis import analyse, report
from .job import CALLS, Comm, Job, Rank, load
from .verdict import Words

_METRICS = {
    "nccl_collective_exec_time_microseconds": ("gauge", "time of the last call that has an end, from its beginning"),
    "nccl_bus_bandwidth_gbs": ("gauge", "bandwidth of that call by which NCCL's tests compare: bytes, times a factor"),
    "pyncclx_calls": ("gauge", "calls in the flight recorder, which keeps the last 2048"),
    "pyncclx_last_call_number": ("counter", "collective calls made on a communicator so far"),
    "pyncclx_waits_seconds": ("gauge", "how long a rank has waited on the host; 0: it does not wait"),
    "pyncclx_process_is_there": ("gauge", "1 while the process is there"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("job", nargs="?", help="its name, or its folder; default: the one that runs")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="print again and again")
    parser.add_argument("--prometheus", type=Path, metavar="FILE", help="write metrics, and print nothing")


def run(arguments: argparse.Namespace) -> None:
    """Print the state of the job, once or repeatedly."""
    folder = _folder(arguments.job)
    while True:
        try:
            job = load(folder)
        except FileNotFoundError:
            raise SystemExit(f"{folder} has ended") from None
        if arguments.prometheus is not None:
            write_metrics(job, arguments.prometheus)
        else:
            print(report(job, analyse(job)), flush=True)
        if arguments.every is None:
            return
        time.sleep(arguments.every)


def _folder(name: str | None) -> Path:
    """Return the folder of a job."""
    if name is not None:
        return Path(name) if Path(name).is_dir() else folders.base() / name
    running = [folder for folder in folders.jobs() if folders.is_running(folder)]
    if len(running) == 1:
        return running[0]
    print("no job runs here" if not running else "several jobs run here:", file=sys.stderr)
    for folder in folders.jobs():
        print(f"  {folder.name}{'' if folder in running else ' (over)'}", file=sys.stderr)
    raise SystemExit(2)


def write_metrics(job: Job, path: Path) -> None:
    """Write a job's metrics to a file for Prometheus' textfile collector.

    The collector needs whole files, so this replaces the file in one step.
    """
    part = path.with_suffix(".part")
    part.write_text(metrics(job))
    part.replace(path)


def metrics(job: Job) -> str:
    """Return all metrics of a job in the text format."""
    samples: dict[str, list[str]] = defaultdict(list)
    words = Words(job)
    for rank in job:
        for name, labels, value in _samples(job, rank, words):
            listed = ",".join(f'{key}="{_escaped(str(what))}"' for key, what in labels.items())
            samples[name].append(f"{name}{{{listed}}} {value:g}")
    parts = []
    for name, (kind, help_text) in _METRICS.items():
        if samples[name]:
            parts += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *samples[name]]
    return "\n".join(parts) + "\n"


def _samples(job: Job, rank: Rank, words: Words) -> Iterator[tuple[str, dict[str, Any], float]]:
    own = {"node": rank.host, "rank": rank.number}
    yield "pyncclx_process_is_there", own, float(not rank.is_dead and rank.record["state"] != "ended")
    waited_ns = rank.at_ns - rank.live["since_ns"] if rank.live else 0
    yield "pyncclx_waits_seconds", own, waited_ns / 1e9
    for (operation, kind), count in Counter((e["operation"], e["kind"]) for e in rank.entries).items():
        yield "pyncclx_calls", own | {"collective": operation, "kind": kind}, float(count)
    for comm in rank.calls:
        named = own | {"comm_name": words.comm_name(comm), "nranks": len(comm.world)}
        yield "pyncclx_last_call_number", named, float(rank.last(comm))
        hosts = len({member.host for member in job.of(comm)})
        yield from _timed(rank, named | {"n_nodes": hosts}, comm)


def _timed(rank: Rank, labels: dict[str, Any], comm: Comm) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Yield duration and bandwidth of the last call of each operation and size.

    Only calls on `comm` whose end is recorded are included.
    """
    last = {}
    for entry in rank.entries:
        if entry["kind"] in CALLS and entry["comm"] == comm and entry["ended_ns"] is not None and entry["nbytes"]:
            last[entry["operation"], entry["nbytes"]] = entry
    for (operation, nbytes), entry in last.items():
        about = labels | {"collective": operation, "message_size": nbytes, "algo_proto": entry["algorithm"]}
        microseconds = max((entry["ended_ns"] - entry["began_ns"]) / 1e3, 1e-3)
        yield "nccl_collective_exec_time_microseconds", about, microseconds
        yield "nccl_bus_bandwidth_gbs", about, nbytes * _factor(operation, labels["nranks"]) / microseconds / 1e3


def _factor(operation: str, size: int) -> float:
    """Return the share of a call's bytes on each link, as NCCL's tests count it."""
    if operation == "Allreduce":
        return 2 * (size - 1) / size
    row = COLLECTIVES.get(operation)
    is_of_blocks = row is not None and row.blocks and row.has_one_length and not row.on_all_ranks
    return (size - 1) / size if is_of_blocks else 1.0


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
