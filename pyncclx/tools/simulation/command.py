"""Simulate how long making a communicator over nodes takes on many ranks.

The code that makes one runs unchanged, for one rank of each kind, on a simulated MPI with a clock. python -m pyncclx
simulate needs no mpiexec. Under mpiexec, --measure runs it on the ranks of the job, over pretend nodes, and prints the
times beside the model's for as many ranks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mpi4py import MPI

from ...system import settings
from . import report
from .creation import TEAM, create, measure, pretend
from .network import Network

SIZES = (1024, 8192, 32768, 98304)
NODE_MS = 810.0  # the first Allreduce of 8 ranks on an H100, compilation included: results/h100-cold.json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    costs = Network()
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES, help=f"default: {' '.join(map(str, SIZES))}")
    parser.add_argument("--per-node", type=int, default=8, help="ranks of a node; default: 8")
    for name, value, text in (
        ("--latency-us", costs.latency_s * 1e6, "of a message"),
        ("--message-us", costs.message_s * 1e6, "of the processor's time for a message, at each end"),
        ("--connection-us", costs.connection_s * 1e6, "more for the first message between two ranks"),
        ("--gbs", costs.bandwidth / 1e9, "GB/s of a rank"),
        ("--node-ms", NODE_MS, "in which the ranks of a node make their Team"),
    ):
        parser.add_argument(name, type=float, default=value, metavar="X", help=f"{text}; default: {value:g}")
    parser.add_argument("--measure", type=int, metavar="TIMES", help="on the ranks of this job, so many times")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plot", type=Path, help="write a picture to this file; takes Matplotlib")


def run(arguments: argparse.Namespace) -> None:
    """Simulate or measure, and print the results."""
    if min(*arguments.ranks, arguments.per_node) < 1:
        raise SystemExit("ranks, and ranks of a node, are 1 at least")
    if arguments.measure is not None:
        _measure(arguments)
        return
    settings.set_foreign(settings.DEVICE.name, "host")  # no kernel is launched
    costs = _costs(arguments)
    made = [create(ranks, arguments.per_node, costs, arguments.node_ms / 1e3) for ranks in arguments.ranks]
    print("\n".join(report.table(made, costs)))
    if arguments.json is not None:
        report.write_json(arguments.json, costs, simulated=made)
    if arguments.plot is not None:
        report.write_plot(arguments.plot, made)


def _costs(arguments: argparse.Namespace) -> Network:
    return Network(
        latency_s=arguments.latency_us / 1e6,
        message_s=arguments.message_us / 1e6,
        connection_s=arguments.connection_us / 1e6,
        bandwidth=arguments.gbs * 1e9,
    )


def _measure(arguments: argparse.Namespace) -> None:
    """Measure on the ranks of this job; rank 0 prints it beside the model's times."""
    world = MPI.COMM_WORLD
    if world.size <= arguments.per_node:
        raise SystemExit(f"{world.size} ranks are on one node of {arguments.per_node}; give --per-node")
    pretend(arguments.per_node)
    measured = measure(arguments.measure)
    if world.rank == 0:
        costs = _costs(arguments)
        node_s = next(each.seconds for each in measured if each.name == TEAM)
        made = create(world.size, arguments.per_node, costs, node_s)
        print("\n".join(report.beside(measured, made)), flush=True)
        if arguments.json is not None:
            report.write_json(arguments.json, costs, measured=measured, simulated=[made])
