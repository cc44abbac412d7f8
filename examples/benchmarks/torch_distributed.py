"""Time torch.distributed with pyncclx and with NCCL: on the host, and in all.

    mpiexec -n 2 python examples/benchmarks/torch_distributed.py --json torch_distributed.json

Each process has one GPU. The backends take turns, twice. The result of a backend is the smaller of its two medians, on
the slowest rank. The time of a call is that of 50 consecutive calls, measured by events, divided by 50.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

import pyncclx
import pyncclx.torch
from pyncclx.tools.bench import environment

WORLD = MPI.COMM_WORLD
SIZES = 1 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20  # bytes
CALLS, TOGETHER, REPEATS = 200, 50, 7


def calls_of(nbytes: int, group: Any) -> dict[str, Callable[[], Any]]:
    """Return the calls of a group on float32, by name."""
    count, size = nbytes // 4, dist.get_world_size()
    x, y = torch.zeros(count, device="cuda"), torch.empty(count, device="cuda")
    gathered, block = torch.empty(count * size, device="cuda"), torch.empty(count // size, device="cuda")
    return {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(gathered, x, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(block, x, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(y, x, group=group),
        "broadcast": lambda: dist.broadcast(x, 0, group=group),
    }


def host_us(call: Callable[[], Any]) -> float:
    """Return the median of the host's time for one call."""
    times = []
    for index in range(CALLS + TOGETHER):
        if index % TOGETHER == 0:
            torch.cuda.synchronize()
            WORLD.Barrier()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return float(WORLD.allreduce(statistics.median(times[TOGETHER:]), MPI.MAX)) * 1e6


def call_us(call: Callable[[], Any]) -> float:
    """Return the median time of one of several consecutive calls."""
    times, begin, end = [], torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(REPEATS):
        WORLD.Barrier()
        begin.record()
        for _ in range(TOGETHER):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / TOGETHER * 1e3)
    return float(WORLD.allreduce(statistics.median(times), MPI.MAX))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the figures to this file, too")
    options = parser.parse_args()
    comm = pyncclx.Communicator()
    torch.cuda.set_device(comm.select_device())
    dist.init_process_group("pyncclx")
    groups, rows = {"pyncclx": dist.group.WORLD, "nccl": dist.new_group(backend="nccl")}, []
    for nbytes in SIZES:
        calls = {backend: calls_of(nbytes, group) for backend, group in groups.items()}
        for name in calls["nccl"]:
            row: dict[str, Any] = {"call": name, "nbytes": nbytes}
            for backend in (*calls, *calls):
                for kind, measure in (("host_us", host_us), ("us", call_us)):
                    key, found = f"{backend}_{kind}", measure(calls[backend][name])
                    row[key] = min(found, row.get(key, found))
            rows.append(row)
            line = "{call:24}{nbytes:>10} B   host {pyncclx_host_us:6.1f} : {nccl_host_us:6.1f} µs"
            environment.say(comm, (line + "   call {pyncclx_us:6.1f} : {nccl_us:6.1f} µs").format_map(row))
    if comm.rank == 0 and options.json:
        about = {"gpu": torch.cuda.get_device_name(), "ranks": comm.size, "date": time.strftime("%Y-%m-%d")}
        about |= {"torch": torch.__version__, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
        about["pyncclx"] = pyncclx.__version__
        Path(options.json).write_text(json.dumps({"environment": about, "torch_distributed": rows}, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
