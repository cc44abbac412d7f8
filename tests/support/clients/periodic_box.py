"""A periodic box of hexahedra: the lines of a mesh in Gmsh's format, and slabs of it for some ranks."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

LENGTH = 2 * math.pi
QUAD, HEX = 3, 5  # Gmsh's numbers of the shapes
INSIDE = 1  # our number of the elements of the box; those of the sides follow
SIDES = [(axis, side) for axis in "xyz" for side in "lr"]


def slabs(count: int, parts: int) -> np.ndarray:
    """The part of each element, with `count` elements in each direction.

    The last layer goes with the first: PyFR's partitioners never part elements that meet in a periodic face.
    """
    layer = np.arange(count).repeat(count * count)
    return (layer + 1) % count * parts // count


def box(count: int) -> Iterator[str]:
    """The lines of the box in Gmsh's format 2.2. By the names PyFR's importer finds the periodic sides."""
    yield from ("$MeshFormat", "2.2 0 8", "$EndMeshFormat")
    names = [f'2 {number} "periodic_{axis}_{side}"' for number, (axis, side) in enumerate(SIDES, INSIDE + 1)]
    yield from section("PhysicalNames", [f'3 {INSIDE} "fluid"', *names])
    points = np.indices((count + 1,) * 3).reshape(3, -1).T[:, ::-1] * (LENGTH / count)  # x is the fastest
    yield from section("Nodes", [f"{number} {x!r} {y!r} {z!r}" for number, (x, y, z) in enumerate(points.tolist(), 1)])
    yield from section("Elements", [f"{number} {words}" for number, words in enumerate(elements(count), 1)])


def section(name: str, lines: list[str]) -> Iterator[str]:
    """A section of lines that begins with their number."""
    yield from (f"${name}", str(len(lines)), *lines, f"$End{name}")


def elements(count: int) -> Iterator[str]:
    """Shape, tags and nodes of the elements, layer by layer, and of the faces on the sides."""
    node = np.arange(1, (count + 1) ** 3 + 1).reshape((count + 1,) * 3)  # of z, y and x
    layers = [squares(each) for each in node]
    for below, above in itertools.pairwise(layers):
        yield from (line(HEX, INSIDE, nodes) for nodes in np.hstack([below, above]).tolist())
    for number, (axis, side) in enumerate(SIDES, INSIDE + 1):
        faces = squares(node.take(0 if side == "l" else count, "zyx".index(axis)))
        yield from (line(QUAD, number, nodes) for nodes in faces.tolist())


def squares(node: np.ndarray) -> np.ndarray:
    """The corners of the squares between nodes in a plane, each once around."""
    corners = node[:-1, :-1], node[:-1, 1:], node[1:, 1:], node[1:, :-1]
    return np.stack(corners, axis=-1).reshape(-1, 4)


def line(shape: int, number: int, nodes: list[int]) -> str:
    """An element of a physical group, which is its elementary one as well."""
    return " ".join(map(str, (shape, 2, number, number, *nodes)))
