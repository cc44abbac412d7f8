"""Tables and JSON of the simulation's results."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .creation import Creation
from .measured import Measured
from .network import Network

#: Seconds to initialise NCCLX and NCCL, by ranks: "Collective Communication for 100k+ GPUs" (2025), section 7.1.
PUBLISHED = {8192: (3.97, 14.5), 32768: (11.89, 55.71), 98304: (24.0, 265.0)}


def table(made: Sequence[Creation], costs: Network) -> str:
    """Return a table of the time to make communicators, as text."""
    return "\n".join((*_assumptions(costs), "", *_totals(made), "", *_stages(made[-1])))


def _assumptions(costs: Network) -> Iterator[str]:
    yield (
        f"Assumed: latency {costs.latency_s * 1e6:g} us, {costs.message_s * 1e6:g} us of a processor for a message at "
        f"each end, {costs.connection_s * 1e6:g} us for a first message, {costs.bandwidth / 1e9:g} GB/s"
    )


def _totals(made: Sequence[Creation]) -> Iterator[str]:
    yield "   ranks   nodes  seconds   rounds  messages  sent by one   kept of a rank  NCCLX      NCCL"
    yield "                                     of one        rank                    published  published"
    for each in made:
        rounds, messages, nbytes = (
            sum(getattr(stage, name) for stage in each.stages) for name in ("rounds", "messages", "nbytes")
        )
        published = " ".join(f"{value:8.2f} s" for value in PUBLISHED.get(each.ranks, ()))
        nodes = -(-each.ranks // each.per_node)
        yield (
            f"{each.ranks:8} {nodes:7} {each.seconds:8.2f} {rounds:8} {messages:9} {nbytes / 1e6:9.2f} MB "
            f"{each.kept:13.1f} B {published}"
        ).rstrip()


def _stages(made: Creation) -> Iterator[str]:
    yield f"{made.ranks} ranks in parts:{'':25} network  computed   rounds  messages   sent by one rank"
    for stage in made.stages:
        yield (
            f"  {stage.name:42} {stage.network_s * 1e3:6.1f} ms {stage.computed_s * 1e3:6.1f} ms {stage.rounds:8} "
            f"{stage.messages:9} {stage.nbytes / 1e6:9.3f} MB"
        )


def beside(measured: Sequence[Measured], made: Creation) -> str:
    """Return measured times of a job beside the model's for as many ranks, as text."""
    lines = [f"{made.ranks} ranks, {made.per_node} on a node: measured, and processors' time of all ranks"]
    lines += [f"  {each.name:44} {each.seconds * 1e3:8.2f} ms {each.cpu_seconds * 1e3:9.2f} ms" for each in measured]
    lines += ["The model:"]
    lines += [f"  {stage.name:44} {stage.seconds * 1e3:8.2f} ms" for stage in made.stages]
    return "\n".join(lines)


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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
