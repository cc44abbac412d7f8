"""Simulate how long creating a communicator over nodes takes on many ranks.

The code that creates one runs unchanged, for one rank of each kind, on a simulated MPI with a clock. python -m pyncclx
simulate needs no mpiexec. Under mpiexec, --measure runs the code on the ranks of the job, over pretend nodes, and
prints the times beside the model's times for this number of ranks.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mpi4py import MPI

from ...system import settings
from .. import common
from .creation import TEAM, Creation, Measured, create, measure, pretend
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
    print("\n".join(table(made, costs)))
    if arguments.json is not None:
        write_json(arguments.json, costs, simulated=made)
    if arguments.plot is not None:
        write_plot(arguments.plot, made)


def _costs(arguments: argparse.Namespace) -> Network:
    return Network(
        latency_s=arguments.latency_us / 1e6,
        message_s=arguments.message_us / 1e6,
        connection_s=arguments.connection_us / 1e6,
        bandwidth=arguments.gbs * 1e9,
    )


def _measure(arguments: argparse.Namespace) -> None:
    """Measure on the ranks of this job; rank 0 prints the times beside the model's."""
    world = MPI.COMM_WORLD
    if world.size <= arguments.per_node:
        raise SystemExit(f"{world.size} ranks are on one node of {arguments.per_node}; give --per-node")
    pretend(arguments.per_node)
    measured = measure(arguments.measure)
    if world.rank == 0:
        costs = _costs(arguments)
        node_s = next(each.seconds for each in measured if each.name == TEAM)
        made = create(world.size, arguments.per_node, costs, node_s)
        print("\n".join(beside(measured, made)), flush=True)
        if arguments.json is not None:
            write_json(arguments.json, costs, measured=measured, simulated=[made])


#: Seconds to initialise NCCLX and NCCL, by ranks: "Collective Communication for 100k+ GPUs" (2025), section 7.1.
PUBLISHED = {8192: (3.97, 14.5), 32768: (11.89, 55.71), 98304: (24.0, 265.0)}


def table(made: Sequence[Creation], costs: Network) -> Iterator[str]:
    """Yield the lines of a table of creation times, then the stages of its last row."""
    yield (
        f"Assumed: latency {costs.latency_s * 1e6:g} us, {costs.message_s * 1e6:g} us of a processor for a message at "
        f"each end, {costs.connection_s * 1e6:g} us for a first message, {costs.bandwidth / 1e9:g} GB/s\n"
    )
    yield "   ranks   nodes  seconds   rounds  messages  sent by one   kept of a rank  NCCLX      NCCL"
    yield "                                     of one        rank                    published  published"
    for each in made:
        rounds, messages, nbytes = map(each.total, ("rounds", "messages", "nbytes"))
        published = " ".join(f"{value:8.2f} s" for value in PUBLISHED.get(each.ranks, ()))
        nodes = -(-each.ranks // each.per_node)
        yield (
            f"{each.ranks:8} {nodes:7} {each.seconds:8.2f} {rounds:8} {messages:9} {nbytes / 1e6:9.2f} MB "
            f"{each.kept:13.1f} B {published}"
        ).rstrip()
    yield f"\n{made[-1].ranks} ranks in parts:{'':25} network  computed   rounds  messages   sent by one rank"
    for stage in made[-1].stages:
        yield (
            f"  {stage.name:42} {stage.network_s * 1e3:6.1f} ms {stage.computed_s * 1e3:6.1f} ms {stage.rounds:8} "
            f"{stage.messages:9} {stage.nbytes / 1e6:9.3f} MB"
        )


def beside(measured: Sequence[Measured], made: Creation) -> Iterator[str]:
    """Yield lines with a job's measured times beside the model's times."""
    yield f"{made.ranks} ranks, {made.per_node} on a node: measured, and processors' time of all ranks"
    for part in measured:
        yield f"  {part.name:44} {part.seconds * 1e3:8.2f} ms {part.cpu_seconds * 1e3:9.2f} ms"
    yield "The model:"
    for stage in made.stages:
        yield f"  {stage.name:44} {stage.seconds * 1e3:8.2f} ms"


def write_json(path: Path, costs: Network, *, simulated: Sequence[Creation], measured: Sequence[Measured] = ()) -> None:
    """Write all figures to a JSON file: seconds, bytes and counts."""
    found: dict[str, Any] = {
        "network": dataclasses.asdict(costs),
        "simulated": [
            {
                **each._asdict(),
                "seconds": each.seconds,
                "stages": [dataclasses.asdict(stage) for stage in each.stages],
                "published_s": dict(zip(("NCCLX", "NCCL"), PUBLISHED.get(each.ranks, ()), strict=False)),
            }
            for each in simulated
        ],
        "measured": [each._asdict() for each in measured],
    }
    common.write_json(path, found)


def write_plot(path: Path, made: Sequence[Creation]) -> None:
    """Plot times, and bytes that a rank sends and keeps, over the number of ranks."""
    figure, (times, sizes) = common.pyplot().subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    ranks = [each.ranks for each in made]
    times.plot(ranks, [each.seconds for each in made], "C0o-", label="pyncclx, simulated")
    for number, name in enumerate(("NCCLX", "NCCL")):
        points = [times_of[number] for times_of in PUBLISHED.values()]
        times.plot(list(PUBLISHED), points, f"C{number + 1}s--", label=f"{name}, published, on GPUs")
    times.set_ylabel("time to make a communicator (s)")
    sent = [each.total("nbytes") / 1e6 for each in made]
    sizes.plot(ranks, sent, "C0o-", label="sent by the rank that sends most")
    sizes.plot(ranks, [each.kept * each.ranks / 1e6 for each in made], "C4^-", label="kept by each rank")
    sizes.set_ylabel("data (MB)")
    for panel in (times, sizes):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(ranks, [f"{each // 1024}k" if each >= 1024 else str(each) for each in ranks])
        panel.set_xlabel(f"ranks, {made[0].per_node} on each node")
        panel.grid(alpha=0.3)
        panel.legend(frameon=False, fontsize=8)
    common.save(figure, path)
