"""Draw the diagrams of "How it works": memory.svg and transports.svg.

    python docs/diagrams.py            draw them again
    python docs/diagrams.py --check    exit with 1 if either is not what this file draws
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent
WIDTH = 760
FILLS = {"plain": "#fff", "data": "#cfe2f3", "flag": "#f6d5b8", "lease": "#e4efdc", "rank": "#f5f5f5"}


class Picture:
    """Boxes, words and arrows on a white sheet."""

    def __init__(self, height: int, label: str) -> None:
        self._height, self._label = height, label
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, words: str = "", kind: str = "plain") -> None:
        """A box with words in its middle."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="{FILLS[kind]}" stroke="#666"/>'
        )
        self.words(x + width / 2, y + height / 2 + 4, words, anchor="middle")

    def words(self, x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> None:
        """A line of text."""
        if words:
            style = f'text-anchor="{anchor}" font-weight="{weight}"'
            self._parts.append(f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>')

    def arrow(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """An arrow from one place to another."""
        self._parts.append(f'<path d="M{x0} {y0}L{x1} {y1}" stroke="#444" fill="none" marker-end="url(#head)"/>')

    def svg(self) -> str:
        """The picture as SVG."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" role="img" '
            f'aria-label="{escape(self._label)}" font-family="Helvetica, Arial, sans-serif" font-size="12" '
            'fill="#222">',
            '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
            '<path d="M0 0L7 3L0 6z" fill="#444"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{self._height}" fill="#fff"/>',
        )
        return "\n".join([*head, *self._parts, "</svg>"]) + "\n"


def memory() -> str:
    """What two ranks map of each other."""
    picture = Picture(290, "Heap, leases and windows of two ranks")
    for rank, x in enumerate((20, 430)):
        picture.box(x, 30, 310, 240, kind="rank")
        picture.words(x, 22, f"device memory of rank {rank}", weight="bold")
        picture.words(x + 14, 52, "heap (96 MiB, allocated once)")
        picture.box(x + 14, 60, 190, 90, kind="lease")
        picture.words(x + 22, 76, "first communicator's lease")
        for index, (words, kind) in enumerate((("signals", "flag"), ("slots", "data"), ("rings", "data"))):
            picture.box(x + 22 + 60 * index, 86, 55, 54, words, kind)
        picture.box(x + 210, 60, 40, 90, "2nd", "lease")
        picture.box(x + 256, 60, 40, 90, "…", "lease")
        picture.box(x + 14, 166, 282, 38, "window: comm.Alloc, comm.Register", "data")
        picture.box(x + 14, 220, 282, 38, "ordinary arrays: not mapped by peers")
    for y, words in ((113, "short; chunks"), (185, "straight")):
        picture.arrow(332, y, 428, y)
        picture.words(380, y - 7, words, anchor="middle")
    return picture.svg()


def transports() -> str:
    """What a packet, a line and a chunk consist of."""
    picture = Picture(330, "A packet, a line, and chunks of a ring")
    picture.words(20, 24, "packet: 16 bytes, one store of a thread", weight="bold")
    for index in range(2):
        picture.box(20 + 180 * index, 34, 110, 30, "4 bytes of data", "data")
        picture.box(130 + 180 * index, 34, 60, 30, "epoch", "flag")
    picture.words(400, 54, "each half comes with its flag: no fence, no signal")
    picture.words(20, 104, "line: 128 bytes, one store of 8 lanes of a warp, over NVLink", weight="bold")
    picture.box(20, 114, 480, 30, "120 bytes of data", "data")
    picture.box(500, 114, 60, 30, "flag", "flag")
    picture.words(20, 184, "chunks: a ring in the receiver's lease", weight="bold")
    for index in range(2):
        picture.box(20 + 210 * index, 194, 200, 30, f"chunk {index}: data alone", "data")
    picture.box(450, 194, 110, 30, "head: epoch, count", "flag")
    picture.words(20, 246, "The sender stores a chunk, makes a fence, and sets head. The receiver waits for head,")
    picture.words(20, 262, "reads the chunk, and sets tail at the sender: that place of the ring is free.")
    picture.words(20, 296, "straight: a window of the receiver", weight="bold")
    picture.box(240, 280, 320, 26, "data, at its place; one signal when all is there", "data")
    return picture.svg()


def main() -> int:
    """Write the pictures, or compare them with what they should be."""
    made = {DOCS / "memory.svg": memory(), DOCS / "transports.svg": transports()}
    if "--check" not in sys.argv[1:]:
        for path, content in made.items():
            path.write_text(content)
        return 0
    stale = [path.name for path, content in made.items() if not path.exists() or path.read_text() != content]
    if stale:
        print(f"run python docs/diagrams.py: {', '.join(stale)} differ", file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
