"""Tables, JSON and a plot of the simulation's results."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import files
from .creation import Creation, Measured
from .network import Network

#: Seconds to initialise NCCLX and NCCL, by ranks: "Collective Communication for 100k+ GPUs" (2025), section 7.1.
PUBLISHED = {8192: (3.97, 14.5), 32768: (11.89, 55.71), 98304: (24.0, 265.0)}


def table(made: Sequence[Creation], costs: Network) -> Iterator[str]:
    """Yield the lines of a table of the time to make communicators."""
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
    """Yield lines of measured times of a job, and of the model's for as many ranks."""
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
    files.write_json(path, found)


def write_plot(path: Path, made: Sequence[Creation]) -> None:
    """Plot times, and bytes that a rank sends and keeps, over the number of ranks."""
    figure, (times, sizes) = files.pyplot().subplots(1, 2, figsize=(9, 3.6), layout="constrained")
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
    files.save(figure, path)
