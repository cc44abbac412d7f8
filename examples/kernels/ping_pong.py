"""Ping-pong between kernels of two ranks, in Python and in CUDA C++.

    mpiexec -n 2 python -m mpi4py examples/kernels/ping_pong.py [--cxx] [--blocks N] [--nbytes N] [--rounds N]

A kernel on each rank stores a message in the other rank's memory, and waits for it to come back. The hosts take no
part. One thread sends a short message as packets, which have their own flags. Of a long message each block moves a part
and signals; no block continues before all parts have arrived, so the links carry one direction at a time. The program
prints latency and bandwidth in one direction. On a GPU with Numba installed, the kernels are the Python functions
below. Otherwise, or with --cxx, they are in C++, line by line the same. PYNCCLX_DEVICE=host runs the C++ on the CPU,
where the times mean nothing.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import pyncclx
import pyncclx.device as d

CXX = """
#include "pyncclx.cuh"

extern "C" __global__ void with_signals(pyncclx_team team, char* inbox, const char* data, long long part,
                                        long long nbytes, long long rounds, long long seen) {
    const int me = pyncclx_rank(team), peer = 1 - me;
    const long long begin = blockIdx.x * part, length = max(min(part, nbytes - begin), 0ll);
    const char* source = me == 0 ? data : inbox;
    for (long long round = 0; round < rounds; ++round) {
        seen += gridDim.x;
        if (me == 1 && !pyncclx_wait_until_block(team, 0, seen)) return;
        pyncclx_put_block(team, inbox + begin, source + begin, length, peer);
        __syncthreads();
        if (threadIdx.x == 0) pyncclx_signal_add(team, peer, 0, 1);
        if (me == 0 && !pyncclx_wait_until_block(team, 0, seen)) return;
    }
}

extern "C" __global__ void with_packets(pyncclx_team team, char* inbox, char* slot, const char* data,
                                        long long nbytes, long long rounds, long long seen) {
    __shared__ long long message[16];
    const int me = pyncclx_rank(team), peer = 1 - me;
    if (me == 0) pyncclx_copy_thread(message, data, nbytes);
    for (long long round = 0; round < rounds; ++round) {
        seen += 1;
        if (me == 1 && !pyncclx_receive_packets_thread(team, message, slot, nbytes, unsigned(seen))) return;
        pyncclx_put_packets_thread(team, slot, message, nbytes, peer, unsigned(seen));
        if (me == 0 && !pyncclx_receive_packets_thread(team, message, slot, nbytes, unsigned(seen))) return;
    }
    pyncclx_copy_thread(inbox, message, nbytes);
}
"""
SHORT = 128  # bytes of a message that one thread sends as packets

Launch = Callable[..., None]


def kernels_in_cxx() -> tuple[Launch, Launch]:
    """Return the C++ kernels: ``launch(blocks, threads, team, inbox, ...)``."""
    made = d.kernels(CXX, "with_signals", "with_packets")
    signals, packets = made["with_signals"], made["with_packets"]
    return (
        lambda blocks, threads, *args: signals(blocks, threads, args),
        lambda blocks, threads, *args: packets(blocks, threads, args),
    )


def python_functions() -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the same kernels as Python functions."""
    cuda = importlib.import_module("numba.cuda")

    def with_signals(team, inbox, data, part, nbytes, rounds, seen):  # type: ignore[no-untyped-def]
        me, block = d.rank(team), cuda.blockIdx.x
        begin = block * part
        length = max(min(part, nbytes - begin), 0)
        source = data if me == 0 else inbox
        for _ in range(rounds):
            seen += cuda.gridDim.x
            if me == 1 and not d.wait_until_block(team, 0, seen):
                return
            d.put_block(team, inbox + begin, source + begin, length, 1 - me)
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                d.signal_add(team, 1 - me, 0, 1)
            if me == 0 and not d.wait_until_block(team, 0, seen):
                return

    def with_packets(team, inbox, slot, data, nbytes, rounds, seen):  # type: ignore[no-untyped-def]
        me, message = d.rank(team), d.address(cuda.shared.array(16, np.int64))
        if me == 0:
            d.copy_thread(message, data, nbytes)
        for _ in range(rounds):
            seen += 1
            if me == 1 and not d.receive_packets_thread(team, message, slot, nbytes, seen):
                return
            d.put_packets_thread(team, slot, message, nbytes, 1 - me, seen)
            if me == 0 and not d.receive_packets_thread(team, message, slot, nbytes, seen):
                return
        d.copy_thread(inbox, message, nbytes)

    return with_signals, with_packets


def kernels_in_python() -> tuple[Launch, Launch]:
    """Return the Python kernels, compiled by Numba: addresses are numbers."""
    signals, packets = map(importlib.import_module("numba.cuda").jit, python_functions())

    def launcher(kernel: Any) -> Launch:
        def launch(blocks: int, threads: int, *args: Any) -> None:
            kernel[blocks, threads](*(arg if isinstance(arg, int) else address_of(arg) for arg in args))

        return launch

    return launcher(signals), launcher(packets)


def address_of(value: Any) -> int:
    """Return the address of an array or a team."""
    return int(value.pointer if isinstance(value, pyncclx.DeviceTeam) else value.data.ptr)


class PingPong:
    """Two ranks, and memory for messages of up to `most` bytes."""

    def __init__(self, comm: pyncclx.Intracomm, kernels: tuple[Launch, Launch], most: int) -> None:
        self.comm, self.with_signals, self.with_packets = comm, *kernels
        self.signals_seen = self.packets_seen = 0
        self.team = comm.device_team(signals=1)
        self.inbox, self.slot = comm.Alloc(most, "u1"), comm.Alloc(2 * SHORT, "u1")
        values = np.random.default_rng(most).integers(0, 256, most, np.uint8)
        self.on_gpu = not isinstance(self.inbox, np.ndarray)
        self.data = importlib.import_module("cupy").asarray(values) if self.on_gpu else values

    def seconds(self, nbytes: int, blocks: int, threads: int, rounds: int) -> float:
        """Return the time in one direction, after an untimed round; check the data."""
        self.inbox[...] = 0xA5
        self.run(nbytes, blocks, threads, 1)
        took = self.run(nbytes, blocks, threads, rounds)
        self.team.check()
        if not (self.inbox[:nbytes] == self.data[:nbytes]).all() or (self.inbox[nbytes:] != 0xA5).any():
            raise RuntimeError(f"rank {self.comm.rank}: {nbytes} bytes came back changed")
        return took / rounds / 2

    def run(self, nbytes: int, blocks: int, threads: int, rounds: int) -> float:
        """Return the seconds that a number of rounds take on this rank."""
        self.wait()
        self.comm.Barrier()
        began = time.perf_counter()
        if nbytes <= SHORT:
            self.with_packets(1, 1, self.team, self.inbox, self.slot, self.data, nbytes, rounds, self.packets_seen)
            self.packets_seen += rounds
        else:
            part = -(-nbytes // blocks // 128) * 128
            where = self.team, self.inbox, self.data
            self.with_signals(blocks, threads, *where, part, nbytes, rounds, self.signals_seen)
            self.signals_seen += rounds * blocks
        self.wait()
        return time.perf_counter() - began

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.on_gpu:
            importlib.import_module("cupy").cuda.Device().synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cxx", action="store_true", help="the kernel in C++")
    parser.add_argument("--blocks", type=int, default=32, metavar="N", help="of the long message's kernel")
    parser.add_argument("--nbytes", type=int, metavar="N", help="of the long message (GPUs: 64 MiB)")
    parser.add_argument("--rounds", type=int, metavar="N", help="to time (GPUs: 10000 short messages, 50 long ones)")
    options = parser.parse_args()
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    if comm.size != 2:
        raise SystemExit("ping-pong takes two ranks: mpiexec -n 2 python -m mpi4py examples/kernels/ping_pong.py")
    comm.select_device()
    on_host = os.environ.get("PYNCCLX_DEVICE") == "host"
    in_python = not options.cxx and not on_host and importlib.util.find_spec("numba_cuda") is not None
    large, threads, rounds = (1 << 16, 64, (1, 3)) if on_host else (64 << 20, 512, (10_000, 50))
    large = max(options.nbytes or large, SHORT + 1)
    game = PingPong(comm, kernels_in_python() if in_python else kernels_in_cxx(), large)
    latency = game.seconds(8, 1, 32, options.rounds or rounds[0])
    bandwidth = large / game.seconds(large, options.blocks, threads, options.rounds or rounds[1])
    if comm.rank == 0:
        print(f"kernels in {'Python (Numba)' if in_python else 'CUDA C++'}: what came back is what was sent")
        print(f"{8:9} bytes one way: {latency * 1e6:.2f} µs")
        print(f"{large:9} bytes one way: {bandwidth / 1e9:.2f} GB/s with {options.blocks} blocks")
        if on_host:
            print("The CPU emulated the kernels: these times mean nothing.")


if __name__ == "__main__":
    main()
