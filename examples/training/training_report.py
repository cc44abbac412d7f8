"""Print and draw losses, throughput and the pipeline's segments over the steps."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from common.program import figure, sign


def speeds(trainer: Any) -> list[float]:
    """Return the tokens a second of each step."""
    tokens = trainer.options.batch * trainer.sizes.context
    return [tokens / trainer.seconds[step] for step in range(len(trainer.losses))]


def print_speeds(trainer: Any) -> None:
    """Print the median throughput between two events."""
    found, ends = speeds(trainer), sorted({0, len(trainer.losses), *(step for step, _ in trainer.events)})
    for begin, end in itertools.pairwise(ends):
        segments = " | ".join(str(len(each)) for each in trainer.history[begin])
        print(f"steps {begin} to {end - 1}: {np.median(found[begin:end]):.0f} tokens/s, layers {segments}")


def draw(path: Path, trainer: Any, expected: list[float]) -> None:
    """Draw losses beside those of one rank, throughput, and each stage's layers."""
    drawing, (losses, throughput, cut) = figure(3)
    steps = np.arange(len(trainer.losses))
    losses.plot(steps, expected, color="0.7", linewidth=5, label="one rank, plain PyTorch")
    losses.plot(steps, trainer.losses, label="this grid")
    losses.set(title="loss", ylim=(0, None))
    losses.legend(frameon=False)
    throughput.plot(steps, speeds(trainer), linewidth=1)
    throughput.set(title="tokens a second", ylim=(0, None))
    layers = np.array([[len(segment) for segment in trainer.history[step]] for step in steps]).T
    cut.stackplot(steps, layers, step="post", labels=[f"stage {stage}" for stage in range(len(layers))], alpha=0.7)
    cut.set(title="layers of the pipeline's stages", ylim=(0, layers[:, 0].sum()))
    cut.legend(loc="lower left", fontsize=8)
    for panel in (throughput, cut):
        mark(panel, trainer.events)
    for panel in (losses, throughput, cut):
        panel.set_xlabel("step")
        panel.spines[["top", "right"]].set_visible(False)
    data, tensor, pipe = trainer.options.grid
    emulated = "; EMULATED on the CPU: times are not those of GPUs" if trainer.cart.device == "host" else ""
    title = f"Training on {data} data x {tensor} tensor x {pipe} pipeline parallel ranks{emulated}"
    drawing.suptitle(title, fontsize=11)
    sign(drawing, trainer.cart)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=110)


def mark(panel: Any, events: list[tuple[int, str]]) -> None:
    """Draw a line with a text at each event."""
    for step, text in events:
        panel.axvline(step, color="0.4", linestyle=":", linewidth=1)
        panel.annotate(text, (step, panel.get_ylim()[1]), rotation=90, fontsize=7, ha="right", va="top")
