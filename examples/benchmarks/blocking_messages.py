"""Time short blocking messages beside a program's own copies to the host.

    mpiexec -n 2 python examples/benchmarks/blocking_messages.py --json blocking-messages.json
    PYNCCLX_DEVICE=host mpiexec -n 2 python examples/benchmarks/blocking_messages.py

Two ranks each make calls on device arrays (`comm.blocking = "host"`). They also make the same calls on host arrays, and
copy these to and from the device themselves. A time is in microseconds: of one message of a ping-pong, of a `Sendrecv`,
or of a halo of two messages in each direction. It is the median of several rounds, taken in turn, on the slower rank.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder with common/
import pyncclx
from common.overlap_report import warn_if_emulated, write_json
from common.program import array_module

SIZES = (8, 1024, 8192, 32768, 65536, 131072)  # bytes
CALLS, ROUNDS = 200, 7


class Arrays:
    """Device arrays, and pinned host arrays of the same length."""

    def __init__(self, xp: Any, count: int) -> None:
        self.xp, self.device = xp, [xp.zeros(count, "f4") for _ in range(4)]
        self.host = [self._pinned(count) for _ in range(4)]

    def _pinned(self, count: int) -> Any:
        if self.xp is np:
            return np.zeros(count, "f4")
        return np.frombuffer(self.xp.cuda.alloc_pinned_memory(4 * count), "f4", count)

    def download(self, *which: int) -> None:
        """Copy device arrays to the host, and wait."""
        for index in which:
            if self.xp is np:
                self.host[index][:] = self.device[index]
            else:
                self.device[index].get(out=self.host[index])

    def upload(self, *which: int) -> None:
        """Copy host arrays to the device, and wait."""
        for index in which:
            if self.xp is np:
                self.device[index][:] = self.host[index]
            else:
                self.device[index].set(self.host[index])
        if self.xp is not np:
            self.xp.cuda.get_current_stream().synchronize()


def ping_pong(comm: Any, send: Callable[[], object], receive: Callable[[], object]) -> None:
    """Send a message and receive one; rank 0 begins."""
    for call in (send, receive) if comm.rank == 0 else (receive, send):
        call()


def calls(comm: Any, arrays: Arrays, *, by_hand: bool) -> dict[str, Callable[[], object]]:
    """Return the calls by their names, on device arrays or by hand."""
    a, b, c, d = arrays.host if by_hand else arrays.device
    other = 1 - comm.rank

    def copying(download: tuple[int, ...], call: Callable[[], object], upload: tuple[int, ...]) -> Callable[[], object]:
        def with_copies() -> None:
            arrays.download(*download)
            call()
            arrays.upload(*upload)

        return with_copies if by_hand else call

    def halo() -> None:
        requests = [comm.Irecv(a, other, 1), comm.Irecv(b, other, 2), comm.Isend(c, other, 1), comm.Isend(d, other, 2)]
        pyncclx.Request.Waitall(requests)

    send = copying((2,), lambda: comm.Send(c, other), ())
    receive = copying((), lambda: comm.Recv(a, other), (0,))
    return {
        "ping-pong": lambda: ping_pong(comm, send, receive),
        "Sendrecv": copying((2,), lambda: comm.Sendrecv(c, other, 0, a, other, 0), (0,)),
        "halo": copying((2, 3), halo, (0, 1)),
    }


def microseconds(comm: Any, call: Callable[[], object]) -> float:
    """Return the time of a call on the slower rank."""
    MPI.Comm.Barrier(comm)
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return float(MPI.Comm.allreduce(comm, (time.perf_counter() - began) / CALLS * 1e6, MPI.MAX))


def main() -> None:
    """Time all calls, and print and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, with device and versions")
    options = parser.parse_args()
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    if comm.size != 2:
        raise SystemExit("blocking_messages.py needs two ranks")
    xp, rows = array_module(comm, "float32"), []
    comm.blocking = "host"
    for nbytes in SIZES:
        arrays = Arrays(xp, nbytes // 4)
        ways = [calls(comm, arrays, by_hand=by_hand) for by_hand in (False, True)]
        for name in ways[0]:
            times = [[microseconds(comm, way[name]) for way in ways] for _ in range(ROUNDS)]
            share = 0.5 if name == "ping-pong" else 1.0
            ours, by_hand = (share * statistics.median(each) for each in zip(*times, strict=True))
            rows.append({"call": name, "nbytes": nbytes, "microseconds": ours, "by_hand": by_hand})
            if comm.rank == 0:
                print(f"{name:10} {nbytes:6} bytes {ours:8.1f} µs, by hand {by_hand:8.1f}", flush=True)
    write_json(options.json, comm, rows)
    warn_if_emulated(comm)


if __name__ == "__main__":
    main()
