"""How the times of a program with overlap are shown: a line for each size, a picture for all."""

from __future__ import annotations

from pathlib import Path

from solvers import figure

WAYS = ("product", "collective", "serial", "overlapped")  # what is timed, in this order
STYLES = ("k:", "k-.", "o-", "o-")


def line(title: str, tokens: int, product: float, collective: float, serial: float, overlapped: float) -> str:
    """What is printed of one size: microseconds, and what has become of the communication."""
    share, hidden = 1 - product / serial, (serial - overlapped) / (serial - product)
    return (
        f"{title}, {tokens:5} tokens: {product:7.1f} µs + {collective:6.1f} = {serial:7.1f} serial, {overlapped:7.1f} "
        f"overlapped, {serial / overlapped:.2f}x; communication {share:.0%}, {hidden:.0%} of it hidden"
    )


def draw(path: Path, points: dict[str, list[list[float]]]) -> None:
    """For each kind of step and hidden size the times over the tokens, and below what no overlap can be."""
    drawing, panels = figure(-(-len(points) // 2), 2)
    for panel, (title, rows) in zip(panels.flat, points.items(), strict=False):
        tokens, *times = zip(*rows, strict=True)
        for name, style, each in zip(WAYS, STYLES, times, strict=True):
            panel.loglog(tokens, each, style, base=2, label=name)
        bound = [max(pair) for pair in zip(times[0], times[1], strict=True)]
        panel.fill_between(tokens, min(bound) / 2, bound, color="0.85", label="bound: the longer of both")
        panel.set(title=title, xlabel="tokens", ylabel="µs")
    panels.flat[0].legend()
    drawing.savefig(path, dpi=100)
