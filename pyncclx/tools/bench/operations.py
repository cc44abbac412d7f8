"""python -m pyncclx bench: time operations over message sizes.

Other libraries can be timed in the same run. Options and columns are those of nccl-tests. So is the meaning of "size":
the bytes of all blocks together if there is a block for each rank, otherwise the bytes of the vector. With --osu,
columns and size are those of the OSU benchmarks: the size is the bytes of one block.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from . import environment, host_time, peers, sweep
from .cases import CASES
from .cases.case import OPS

_BUFFERS = {"windows": "from comm.Alloc, which all ranks have mapped", "registered": "that comm.Register has mapped"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    add = parser.add_argument
    add("operation", nargs="*", metavar="operation", help=", ".join(CASES))
    add("-b", "--minbytes", default="8", metavar="SIZE", help="smallest size (default 8)")
    add("-e", "--maxbytes", default="64M", metavar="SIZE", help="largest size (default 64M)")
    step = parser.add_mutually_exclusive_group()
    step.add_argument("-f", "--stepfactor", type=int, default=4, help="factor between sizes (default 4)")
    step.add_argument("-i", "--stepbytes", metavar="SIZE", help="difference between sizes, instead of a factor")
    add("-n", "--iters", type=int, default=20, help="operations timed together (default 20; a fifth from 16 MB on)")
    add("-w", "--warmup_iters", type=int, default=5, help="operations before (default 5)")
    add("-c", "--check", type=int, default=1, metavar="0|1", help="0: do not check the results (default 1)")
    add("-d", "--datatype", default="float32", help="element type (default float32)")
    add("-o", "--op", choices=OPS, default="sum", help="operator of reductions (default sum)")
    add("-r", "--root", type=int, default=0, help="root of rooted operations (default 0)")
    add("--algorithm", metavar="NAME", help="for operations that have this argument")
    where = parser.add_mutually_exclusive_group()
    for name, origin in _BUFFERS.items():
        where.add_argument(f"--{name}", dest="buffers", action="store_const", const=name, help=f"buffers {origin}")
    add("--graph", action="store_true", help="time replays of a captured CUDA graph")
    add("--against", metavar="PEERS", help=f"time other libraries too, with ratios: {','.join(peers.PEERS)}")
    add("--osu", action="store_true", help="print in the format of the OSU benchmarks")
    add("--host-time", action="store_true", help="time of the host for a call of 1 KB: eager, persistent, PyTorch")
    add("--json", type=Path, metavar="FILE", help="write the results, with device and versions, after each operation")
    add("--plot", type=Path, metavar="FILE", help="write a picture of latency and bandwidth")
    parser.set_defaults(buffers="ordinary")


def run(arguments: argparse.Namespace) -> None:
    """Run the measurements of the command line; exit with 1 if a result is wrong."""
    comm = environment.ranks_on_devices()
    try:
        time(comm, arguments)
    except SystemExit as refusal:
        # Only one rank prints the message.
        raise SystemExit(refusal.code if comm.rank == 0 else 1) from None


def time(comm: Any, arguments: argparse.Namespace) -> None:
    """Run the measurements on the ranks of a communicator (collective)."""
    unknown = [name for name in arguments.operation if name not in CASES]
    if unknown or not (arguments.operation or arguments.host_time):
        raise SystemExit(f"bench {' '.join(unknown)}: name one or more of {', '.join(CASES)}")
    if comm.device == "host" and arguments.graph and not arguments.host_time:
        raise SystemExit("bench: the host device has no CUDA graphs; leave --graph out")
    others = peers.make(arguments.against or (host_time.default_peers(comm) if arguments.host_time else None), comm)
    about = environment.describe(comm, graph=arguments.graph, buffers=arguments.buffers, peers=others)
    if arguments.host_time:
        host_time.run(comm, arguments, others, about)
    wrong = not arguments.host_time and sweep.Sweep(comm, arguments, others, about).run()
    for peer in others.values():
        peer.close()
    if wrong:
        raise SystemExit(1)
