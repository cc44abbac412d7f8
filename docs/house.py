"""Draw the rooms of pyncclx on their floors, with the imports between them, as docs/house.svg.

    python docs/house.py            draw it again
    python docs/house.py --check    exit with 1 if the picture is not what the sources say

Imports are read from the sources, and an arrow is drawn where no chain of other imports implies it. `FLOORS` and
`BELOW` are what tests/host/house/test_rooms.py holds the sources to.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from imported import imported

ROOT = Path(__file__).resolve().parents[1]
PICTURE = Path(__file__).with_suffix(".svg")
TOPS = ("pyncclx", "mpi_bootstrap")

FLOORS = (  # from the ground up; a room imports from lower floors only
    ("errors", "events", "operations", "system", "mpi_bootstrap"),
    ("recording",),
    ("arrays", "backends", "requests", "tuning"),
    ("failures",),
    ("memory",),
    ("operators", "team"),
    ("device", "launch", "staging"),
    ("derived", "nodes", "numba_kernels"),
    ("collectives", "messages", "windows"),
    ("objects", "tokens"),
    ("communicator",),
    ("MPI", "__init__", "autograd", "jax", "tools", "torch"),
    ("__main__",),
)
# Imports that are not downwards, with the reason for each: `python -m pyncclx run` puts these in the place of others.
DELIBERATE = {
    ("pyncclx.tools.cli.run", "pyncclx.jax.__init__"): "for programs that import mpi4jax",
    ("pyncclx.tools.cli.run", "pyncclx.MPI"): "for programs that import mpi4py.MPI",
}
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

# What the sources in a folder of cuda/ may include beside their own folder; "" is pyncclx.cuh, for programs' kernels.
BELOW: dict[str, set[str]] = {
    "host": set(),
    "protocol": {"host"},
    "elements": {"protocol"},
    "exchange": {"protocol"},
    "reduction": {"protocol", "elements", "exchange"},
    "device": {"protocol", "elements", "reduction"},
    "": {"protocol", "device"},
    "collectives": {"protocol", "elements", "exchange", "reduction"},
    "derived": {"protocol"},
    "messages": {"protocol", "device"},
    "numba_kernels": {"protocol", ""},
    "tokens": {"protocol", "elements"},
    "windows": {"protocol", "elements", "derived", "device"},
}
PURPOSES = {
    "host": "CUDA's words on a CPU: the emulator",
    "protocol": "signals, epochs, packets, lines, chunks",
    "elements": "types, operators, transforms",
    "exchange": "moves without arithmetic",
    "reduction": "folds in rank order",
    "device": "functions for a program's own kernels",
    "": "pyncclx.cuh: what programs include",
    "collectives": "one kernel file for each operation",
    "derived": "packing of derived datatypes",
    "messages": "sends and receives",
    "numba_kernels": "the device API for Python",
    "tokens": "dispatch, combine, collect",
    "windows": "atomic changes, signals",
}
SUFFIXES = ("cu", "cuh", "h")


# ---- what the sources say ------------------------------------------------------------------------------------------


def room_of(module: str) -> str:
    """The room of a module, by its whole name."""
    top, *rest = module.split(".")
    return top if top != "pyncclx" else rest[0] if rest else "__init__"


def sources(root: Path = ROOT) -> dict[str, Path]:
    """The Python files of all rooms below `root`, by the names of their modules."""
    paths = sorted(path for top in TOPS for path in (root / top).rglob("*.py"))
    return {".".join(path.relative_to(root).with_suffix("").parts): path for path in paths}


def upward_imports(root: Path = ROOT) -> list[str]:
    """A sentence for each import from a room of the same or a higher floor, unless `DELIBERATE` has a reason for it."""
    files = sources(root)
    return [
        f"{path.relative_to(root)}:{line}: {own} (floor {FLOOR[own] + 1}) imports {used} (floor {FLOOR[used] + 1})"
        for module, path in files.items()
        for line, each in imported(module, path, files)
        for used, own in [(room_of(each), room_of(module))]
        if each.partition(".")[0] in TOPS and used in FLOOR and used != own and FLOOR[used] >= FLOOR[own]
        if (module, each) not in DELIBERATE
    ]


def circles(graph: Mapping[str, set[str]]) -> set[str]:
    """The nodes of a graph that are in circles, or above one; none if the graph has an order."""
    left = dict(graph)
    while free := [node for node, used in left.items() if not used & set(left)]:
        for node in free:
            del left[node]
    return set(left)


def uses_of_files(root: Path = ROOT) -> dict[str, set[str]]:
    """Of each module, the modules of the same room that it imports from."""
    files = sources(root)
    found: dict[str, set[str]] = {module: set() for module in files}
    for module, path in files.items():
        used = {each for _, each in imported(module, path, files)} & set(files)
        found[module].update(each for each in used if room_of(each) == room_of(module))
    return found


def uses_of_rooms(root: Path = ROOT) -> dict[str, set[str]]:
    """Of each room, the rooms that it imports from."""
    files, found = sources(root), dict[str, set[str]]()
    for module, path in files.items():
        used = {each for _, each in imported(module, path, files) if (module, each) not in DELIBERATE}
        rooms = {room_of(each) for each in used if each.partition(".")[0] in TOPS}
        found.setdefault(room_of(module), set()).update(rooms - {room_of(module)})
    return found


def included(path: Path) -> list[str]:
    """What a source of cuda/ includes by name in quotes."""
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE)


def folder_of(name: str) -> str:
    """The folder of cuda/ that a path relative to it is in; "" for its root."""
    return name.partition("/")[0] if "/" in name else ""


def cuda_sources(root: Path = ROOT) -> dict[str, Path]:
    """The CUDA C++ sources, by their paths in cuda/."""
    paths = sorted(path for suffix in SUFFIXES for path in (root / "cuda").rglob(f"*.{suffix}"))
    return {str(path.relative_to(root / "cuda")): path for path in paths}


def uses_of_folders(root: Path = ROOT) -> dict[str, set[str]]:
    """Of each folder of cuda/, the folders that it includes from."""
    found: dict[str, set[str]] = {}
    for name, path in cuda_sources(root).items():
        folders = {folder_of(each) for each in included(path)}
        found.setdefault(folder_of(name), set()).update(folders - {folder_of(name)})
    return found


def wrong_includes(root: Path = ROOT) -> list[str]:
    """A sentence for each include that `BELOW` does not allow, or whose file is not there."""
    return [
        f"cuda/{name} includes {each}"
        for name, path in cuda_sources(root).items()
        for each in included(path)
        if not (root / "cuda" / each).exists() or folder_of(each) not in BELOW[folder_of(name)] | {folder_of(name)}
    ]


def purpose(room: str) -> str:
    """The first sentence of a room's docstring."""
    folder = ROOT / ("mpi_bootstrap" if room == "mpi_bootstrap" else f"pyncclx/{room}")
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return re.split(r"(?<=[.;])\s|\n\n", docstring)[0].rstrip(".;").replace("\n", " ").replace("`", "")


# ---- the picture ---------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, ROW, MARGIN, LINES = 226, 66, 112, 24, 3
COLOURS = ("#dbeafe", "#dcfce7", "#fef9c3", "#fde7d3", "#fce0e8", "#ede4fb")
Box = tuple[float, float]  # its upper left corner


def without_implied(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that no chain of others implies: the transitive reduction of a graph without circles."""

    @functools.cache
    def reached(node: str) -> set[str]:
        return graph[node].union(*(reached(after) for after in graph[node]))

    return {node: after - set().union(*(reached(each) for each in after)) for node, after in graph.items()}


def levels(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The nodes of a graph without circles, each above all that it uses."""

    def level(node: str) -> int:
        return 1 + max((level(after) for after in graph[node]), default=-1)

    return [[node for node in graph if level(node) == number] for number in range(1 + max(map(level, graph)))]


def placed(floors: Sequence[Sequence[str]], left: float, columns: int, top: float) -> dict[str, Box]:
    """Boxes row by row, the ground floor last, each row in the middle."""
    boxes = {}
    for row, names in enumerate(reversed(floors)):
        begin = left + (columns - len(names)) * (WIDTH + MARGIN) / 2
        boxes.update({name: (begin + column * (WIDTH + MARGIN), top + row * ROW) for column, name in enumerate(names)})
    return boxes


def arrow(above: Box, below: Box) -> str:
    x0, y0, x1, y1 = above[0] + WIDTH / 2, above[1] + HEIGHT, below[0] + WIDTH / 2, below[1]
    bend = min(60.0, (y1 - y0) / 2)
    path = f"M{x0:.0f},{y0:.0f} C{x0:.0f},{y0 + bend:.0f} {x1:.0f},{y1 - bend:.0f} {x1:.0f},{y1:.0f}"
    return f'<path d="{path}" class="use" marker-end="url(#tip)"/>'


def box(name: str, text: str, corner: Box, colour: str) -> Iterator[str]:
    x, y = corner
    yield f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="7" fill="{colour}" stroke="#64748b"/>'
    yield f'<text x="{x + 10:.0f}" y="{y + 18:.0f}" class="name">{escape(name)}</text>'
    for number, line in enumerate(textwrap.wrap(text, 36, max_lines=LINES, placeholder=" …")):
        yield f'<text x="{x + 10:.0f}" y="{y + 33 + 13 * number:.0f}" class="text">{escape(line)}</text>'


def panel(
    title: str, graph: Mapping[str, set[str]], boxes: Mapping[str, Box], texts: Mapping[str, str]
) -> Iterator[str]:
    """One graph: its arrows, and its boxes over them."""
    left, top = min(x for x, _ in boxes.values()), min(y for _, y in boxes.values())
    yield f'<text x="{left:.0f}" y="{top - 18:.0f}" class="title">{escape(title)}</text>'
    for node, after in without_implied(graph).items():
        yield from (arrow(boxes[node], boxes[each]) for each in sorted(after))
    rows = sorted({y for _, y in boxes.values()})
    for name, corner in boxes.items():
        yield from box(name or "pyncclx.cuh", texts[name], corner, COLOURS[rows.index(corner[1]) % len(COLOURS)])


STYLE = """
text { font-family: system-ui, sans-serif; fill: #0f172a }
.title { font-size: 17px; font-weight: 600 }
.name { font-size: 13px; font-weight: 600 }
.text { font-size: 10.5px; fill: #334155 }
.use { fill: none; stroke: #475569; stroke-opacity: 0.55; stroke-width: 1.1 }
"""


def drawn() -> str:
    """The picture."""
    rooms, folders = uses_of_rooms(), uses_of_folders()
    stories = levels(folders)
    columns, narrow = max(map(len, FLOORS)), max(map(len, stories))
    step = WIDTH + MARGIN
    left, right, top = MARGIN, MARGIN + columns * step + 2 * MARGIN, 70
    width, height = right + narrow * step, top + len(FLOORS) * ROW
    boxes = placed(FLOORS, left, columns, top)
    below = placed(stories, right, narrow, top + (len(FLOORS) - len(stories)) * ROW)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#475569"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *panel("pyncclx/: rooms import from lower floors", rooms, boxes, {room: purpose(room) for room in FLOOR}),
        *panel("cuda/: folders include from below", folders, below, PURPOSES),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="draw the rooms of pyncclx")
    parser.add_argument("--check", action="store_true", help="exit with 1 if docs/house.svg is not current")
    if parser.parse_args().check:
        return int(not PICTURE.exists() or PICTURE.read_text() != drawn())
    PICTURE.write_text(drawn())
    return 0


if __name__ == "__main__":
    sys.exit(main())
