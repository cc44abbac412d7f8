"""python -m pyncclx bench: time an operation over message sizes, beside NCCL in the same run.

Flags and columns are those of nccl-tests; so is what "size" means: where there is a block for each rank the
whole buffer of all blocks, else the vector.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpi4py import MPI

from .. import Communicator
from . import nccl, plot, report, timing
from .cases import CASES


def add_command(commands: Any) -> None:
    """Add `bench` to the subcommands of an argument parser."""
    parser = commands.add_parser("bench", help="time an operation over message sizes", description=__doc__)
    parser.add_argument("operation", choices=sorted(CASES), nargs="+")
    parser.add_argument("-b", "--minbytes", default="8", metavar="SIZE", help="smallest size (default 8)")
    parser.add_argument("-e", "--maxbytes", default="64M", metavar="SIZE", help="largest size (default 64M)")
    parser.add_argument("-f", "--stepfactor", type=int, default=4, help="factor between sizes (default 4)")
    parser.add_argument("-n", "--iters", type=int, default=20, help="operations timed together (default 20)")
    parser.add_argument("-w", "--warmup_iters", type=int, default=5, help="operations before (default 5)")
    parser.add_argument("-d", "--datatype", default="float32", help="element type (default float32)")
    parser.add_argument("-c", "--check", type=int, default=1, help="0: do not check the results (default 1)")
    parser.add_argument("--against", choices=["nccl"], help="time NCCL too (through PyTorch) and print the ratio")
    parser.add_argument("--graph", action="store_true", help="time replays of a captured CUDA graph")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results, with device and versions")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a picture of latency and bandwidth")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Time the operations that the command line names."""
    comm = Communicator(MPI.COMM_WORLD)
    comm.select_device()
    on_host = comm.device == "host"
    if on_host and (arguments.graph or arguments.against):
        raise SystemExit("the host device has neither CUDA graphs nor NCCL; leave --graph and --against out")
    peer = nccl.Nccl(comm) if arguments.against else None
    results = []
    for operation in arguments.operation:
        if comm.rank == 0:
            report.print_header(operation, comm, arguments, on_host)
        for nbytes in sizes(arguments):
            row = measure(comm, operation, nbytes, arguments, peer)
            results.append(row)
            if comm.rank == 0:
                report.print_row(row)
    if comm.rank == 0:
        write(arguments, report.environment(comm, arguments), results)
    if peer:
        peer.close()


def sizes(arguments: argparse.Namespace) -> Iterator[int]:
    """The message sizes of a sweep, in bytes."""
    nbytes, last = report.parse_size(arguments.minbytes), report.parse_size(arguments.maxbytes)
    while nbytes <= last:
        yield nbytes
        nbytes *= arguments.stepfactor


def measure(
    comm: Any, operation: str, nbytes: int, arguments: argparse.Namespace, peer: nccl.Nccl | None
) -> dict[str, Any]:
    """Time one operation at one size, on all ranks; the slowest rank's time counts."""
    case = CASES[operation](comm, nbytes, arguments.datatype)
    iters = arguments.iters if case.nbytes < 16 << 20 else max(3, arguments.iters // 5)
    row: dict[str, Any] = {"operation": operation, "nbytes": case.nbytes, "count": case.count}
    row |= {"datatype": arguments.datatype, "redop": case.redop, "bus_factor": case.bus_factor}
    graph = arguments.graph and case.capturable
    row["time_us"] = timing.time(comm, case.run, iters, arguments.warmup_iters, graph=graph)
    row["wrong"] = int(comm.allreduce(case.wrong())) if arguments.check else None
    nccl_us = peer.time(case, iters, arguments.warmup_iters, graph=graph) if peer else None
    if nccl_us is not None:
        row["nccl_us"] = nccl_us
    return row


def write(arguments: argparse.Namespace, environment: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Write what --json and --plot ask for."""
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"environment": environment, "results": results}, indent=1) + "\n")
    if arguments.plot:
        plot.write(arguments.plot, environment, results)
    sys.stdout.flush()
