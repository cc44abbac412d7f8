"""Compare the host's time of calls in this checkout with that in another one.

    python examples/benchmarks/call_times.py                       # this checkout
    python examples/benchmarks/call_times.py --against ../before --json call_times.json

The time is the CPU time of the calling thread. The program runs on the host device, on one rank that sends to itself:
nothing waits for a peer. It includes the emulator's kernels, which take as long in both checkouts. The checkouts are
measured in turn. A time is the least of many means, over all rounds.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COUNT, CALLS, MEANS = 256, 100, 12  # elements of float32: 1 KB
Calls = dict[str, Callable[[], Any]]


def calls_of(comm: Any) -> Calls:
    """Return the calls, by name."""
    import numpy as np  # noqa: PLC0415  in the processes that measure

    import pyncclx  # noqa: PLC0415

    a, b, c, d = (np.zeros(COUNT, "f4") for _ in range(4))
    wait, start = pyncclx.Request.Waitall, pyncclx.Prequest.Startall
    prepared = [comm.Recv_init(a, 0, 5), comm.Recv_init(b, 0, 6), comm.Send_init(c, 0, 5), comm.Send_init(d, 0, 6)]
    window = pyncclx.Win.Create(comm.Alloc(COUNT, "f4"), 4, comm=comm)
    window.Lock_all()
    shuffle = comm.Create_token_shuffle(num_experts=8, capacity=64, hidden=32, dtype="float32", k=1, max_tokens=8)
    tokens, weights, ids = np.zeros((8, 32), "f4"), np.ones((8, 1), "f4"), np.arange(8).reshape(8, 1)

    def send_and_receive() -> None:
        comm.Send(a, 0, 1)
        comm.Recv(b, 0, 1)

    def persistent_halo() -> None:
        start(prepared)
        wait(prepared)

    return {
        "Allreduce": lambda: comm.Allreduce(a, b),
        "Sendrecv": lambda: comm.Sendrecv(a, 0, 0, b, 0, 0),
        "Send, Recv": send_and_receive,
        "Irecv, Isend, Waitall": lambda: wait([comm.Irecv(b, 0, 3), comm.Isend(a, 0, 3)]),
        "halo of 4": lambda: wait(
            [comm.Irecv(a, 0, 1), comm.Irecv(b, 0, 2), comm.Isend(c, 0, 1), comm.Isend(d, 0, 2)]
        ),
        "persistent halo of 4": persistent_halo,
        "Put": lambda: window.Put(a, 0),
        "dispatch": lambda: shuffle.dispatch(tokens, ids, weights),
    }


def mean(call: Callable[[], Any]) -> float:
    """Return the microseconds of CPU time of one call."""
    begin = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - begin) / CALLS * 1e6


def measure() -> dict[str, float]:
    """Return the least mean of each call, without and with blocking."""
    from mpi4py import MPI  # noqa: PLC0415

    import pyncclx  # noqa: PLC0415

    times = {}
    for blocking in ("stream", "host"):
        comm = pyncclx.Communicator(MPI.COMM_SELF).Dup()
        comm.blocking = blocking
        for name, call in calls_of(comm).items():
            mean(call)
            times[f"{name}, blocking" if blocking == "host" else name] = min(mean(call) for _ in range(MEANS))
    return times


def measured_in(checkout: Path) -> dict[str, float]:
    """Measure a checkout in a process of its own, and return the result."""
    variables = {**os.environ, "PYTHONPATH": str(checkout), "PYNCCLX_DEVICE": "host"}
    command = [sys.executable, "-m", "mpi4py", __file__, "--here"]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def commit_of(checkout: Path) -> str:
    """Return the abbreviated commit of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure()))
        os._exit(0)  # skip the release of resources
    checkouts = {"now": ROOT, **({"before": options.against.resolve()} if options.against else {})}
    least: dict[str, dict[str, float]] = {label: {} for label in checkouts}
    for _ in range(options.rounds):
        for label, checkout in checkouts.items():
            for name, microseconds in measured_in(checkout).items():
                least[label][name] = min(microseconds, least[label].get(name, microseconds))
    print(f"{'CPU µs of a call':32}" + "".join(f"{label:>10}" for label in least))
    for name in least["now"]:
        print(f"{name:32}" + "".join(f"{times[name]:10.1f}" for times in least.values()))
    if options.json:
        date = time.strftime("%Y-%m-%d")
        commits = {label: commit_of(checkout) for label, checkout in checkouts.items()}
        where = {"python": platform.python_version(), "processor": platform.machine(), "date": date, **commits}
        options.json.write_text(json.dumps({"environment": where, "cpu_us": least}, indent=1) + "\n")


if __name__ == "__main__":
    main()
