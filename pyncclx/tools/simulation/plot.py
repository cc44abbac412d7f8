"""A plot of simulated and published times, and of bytes, over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .creation import Creation
from .report import PUBLISHED


def write(path: Path, made: Sequence[Creation]) -> None:
    """Plot times, and bytes that a rank sends and keeps, over the number of ranks."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  optional

    figure, (times, sizes) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    ranks = [each.ranks for each in made]
    times.plot(ranks, [each.seconds for each in made], "C0o-", label="pyncclx, simulated")
    for number, name in enumerate(("NCCLX", "NCCL")):
        points = [times_of[number] for times_of in PUBLISHED.values()]
        times.plot(list(PUBLISHED), points, f"C{number + 1}s--", label=f"{name}, published, on GPUs")
    times.set_ylabel("time to make a communicator (s)")
    sent = [sum(stage.nbytes for stage in each.stages) / 1e6 for each in made]
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
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
