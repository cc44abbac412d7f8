"""Common parts of the solvers: command line, arrays, timing, graphs, and mpi4py."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
from tqdm import tqdm

import pyncclx
from common.program import to_host

Array = Any  # NumPy's or CuPy's
EXCHANGES = ("Allreduce", "Alltoallw", "Neighbor_alltoallv", "Neighbor_alltoallw")


def import_mpi(mpi4py: bool) -> ModuleType:
    """Return the MPI module, mpi4py's or pyncclx's.

    This import is the only line in which a program for pyncclx differs.
    """
    return importlib.import_module("mpi4py.MPI" if mpi4py else "pyncclx.MPI")


def array_module(comm: Any) -> ModuleType:
    """Select this rank's GPU and return CuPy; with PYNCCLX_DEVICE=host return NumPy."""
    if os.environ.get("PYNCCLX_DEVICE") == "host":
        return np
    pyncclx.Communicator(comm).select_device()
    return importlib.import_module("cupy")


def usable(comm: Any, xp: ModuleType, mpi4py: bool) -> Any:
    """Return the communicator to use: `comm`, or one that copies arrays to the host.

    mpi4py's communicator needs copies for arrays on a GPU.
    """
    return ThroughHost(comm, xp) if mpi4py and xp is not np else comm


class ThroughHost:
    """mpi4py's communicator, for arrays on a GPU.

    Each exchange copies the arrays to the host, and copies the received data back.
    """

    def __init__(self, comm: Any, xp: ModuleType) -> None:
        self._comm, self._xp = comm, xp

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._comm, name)
        if name not in EXCHANGES:
            return method

        def exchange(sendbuf: Any, recvbuf: Any, *args: Any) -> None:
            send, recv = _on_host(sendbuf), _on_host(recvbuf)
            method(send, recv, *args)
            _array(recvbuf)[...] = self._xp.asarray(_array(recv))

        return exchange


def _array(spec: Any) -> Array:
    return spec[0] if isinstance(spec, (list, tuple)) else spec


def _on_host(spec: Any) -> Any:
    return [to_host(spec[0]), *spec[1:]] if isinstance(spec, (list, tuple)) else to_host(spec)


def repeat(comm: Any, xp: ModuleType, step: Callable[[], None], steps: int, graph: bool) -> float:
    """Make `steps` steps; return the seconds of one on the slowest rank.

    The first step is not timed, because it compiles kernels. With `graph`, a step is then captured in a CUDA graph, and
    replayed. Such a step must not read back anything, and must not allocate arrays, because other arrays may have their
    memory when the graph runs.
    """
    stream = xp.cuda.Stream(non_blocking=True) if graph else None
    synchronize(xp)
    with stream or nullcontext():
        if steps > 0:
            step()
        synchronize(xp)
        run = step if stream is None else capture(step, stream)
    comm.Barrier()
    began = time.perf_counter()
    for number in tqdm(range(1, steps), "steps", leave=False, delay=1, disable=comm.rank != 0):
        run()
        # Otherwise the host would run far ahead, and the bar would be wrong.
        if number % 100 == 0:
            synchronize(xp)
    synchronize(xp)
    return float(max(comm.allgather(time.perf_counter() - began))) / max(steps - 1, 1)


def capture(step: Callable[[], None], stream: Any) -> Callable[[], None]:
    """Capture a step in a CUDA graph; return a function that replays it."""
    stream.begin_capture()
    step()
    captured = stream.end_capture()
    return lambda: captured.launch(stream)


def synchronize(xp: ModuleType) -> None:
    """Wait for the GPU, if there is one."""
    if xp is not np:
        xp.cuda.Device().synchronize()


def flags(prog: str, description: str, *numbers: tuple[str, int, str], graph: bool = False) -> argparse.ArgumentParser:
    """Return a solver's command line.

    `numbers` are its own flags: name, default and meaning.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog="Start it with mpiexec, one rank a GPU; PYNCCLX_DEVICE=host runs it without a GPU.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for name, default, meaning in numbers:
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=meaning)
    parser.add_argument("--mpi4py", action="store_true", help="communicate by mpi4py, through the host")
    if graph:
        parser.add_argument("--graph", action="store_true", help="capture a step in a CUDA graph and replay it")
    output = Path(prog).with_suffix(".png")
    parser.add_argument("--output", type=Path, default=output, metavar="FILE", help="picture to write")
    return parser


def parse(parser: argparse.ArgumentParser, *numbers: str) -> argparse.Namespace:
    """Parse the command line, and check that some numbers are 1 or more."""
    options = parser.parse_args()
    for name in numbers:
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be 1 or more")
    if getattr(options, "graph", False) and (options.mpi4py or os.environ.get("PYNCCLX_DEVICE") == "host"):
        parser.error("--graph needs GPUs, and cannot capture what goes through the host")
    return options


def end(code: int) -> NoReturn:
    """End the program with an exit code.

    After MPI_Finalize, mpi4py's runner does not abort the other ranks for this exit code.
    """
    importlib.import_module("mpi4py.MPI").Finalize()
    sys.exit(code)


def print_results(options: argparse.Namespace, title: str, lines: Sequence[tuple[str, str]], passed: bool) -> int:
    """Print a summary of the run and its outcome; return the exit code."""
    print(f"{title}, by {'mpi4py through the host' if options.mpi4py else 'pyncclx'}")
    for name, text in (*lines, ("picture", str(options.output)), ("check", "PASSED" if passed else "FAILED")):
        print(f"  {name:11} {text}", flush=True)
    return 0 if passed else 1
