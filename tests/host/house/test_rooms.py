"""Which room may use which: of pyncclx/ by its imports, of cuda/ by its includes.

A room is a folder of pyncclx/, or a file beside them. It imports only from rooms of lower floors, for the type checker
too. To add a room, give it a floor here. An import that fails this test wants another place for what it imports, or a
Protocol in the lower room.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

FLOORS = (  # from the ground up
    ("errors", "system", "mpi_bootstrap"),
    ("arrays", "backends", "requests", "tuning"),
    ("memory",),
    ("operators", "team"),
    ("device", "launch", "staging"),
    ("derived", "numba_kernels", "tokens", "windows"),
    ("collectives", "messages"),
    ("communicator",),
    ("MPI", "__init__", "bench", "observe"),
    ("cli",),
    ("__main__",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

# Of cuda/: what a folder's sources may include beside their own folder. "" is pyncclx.cuh, which programs include.
BELOW = {"host": set[str]()}
BELOW["protocol"] = {"host"}
BELOW["elements"] = {"protocol"}
BELOW["exchange"] = {"protocol"}
BELOW["reduction"] = {"protocol", "elements", "exchange"}
BELOW["device"] = {"protocol", "elements", "reduction"}
BELOW[""] = {"protocol", "device"}
BELOW["collectives"] = {"protocol", "elements", "exchange", "reduction"}
BELOW["derived"] = {"protocol"}
BELOW["messages"] = {"protocol"}
BELOW["numba_kernels"] = {"protocol", ""}
BELOW["tokens"] = {"protocol", "elements"}
BELOW["windows"] = {"protocol", "elements", "device"}


def room_of(module: str) -> str:
    """The room of a module, by its whole name."""
    top, *rest = module.split(".")
    return top if top != "pyncclx" else rest[0] if rest else "__init__"


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """The modules that a file imports from, with the lines."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            for alias in node.names:  # "from .. import arrays" names a room, "from .. import AVG" does not
                is_room = module == "pyncclx" and alias.name in FLOOR
                yield node.lineno, f"pyncclx.{alias.name}" if is_room else module


def sources_of_rooms() -> list[Path]:
    return sorted(path for top in ("pyncclx", "mpi_bootstrap") for path in (ROOT / top).rglob("*.py"))


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in sources_of_rooms()}
    assert rooms == set(FLOOR)


def test_rooms_import_from_below() -> None:
    wrong = []
    for path in sources_of_rooms():
        own = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for line, module in imported(path):
            if module.partition(".")[0] not in ("pyncclx", "mpi_bootstrap"):
                continue
            used = room_of(module)
            if used != own and FLOOR[used] >= FLOOR[own]:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {own} (floor {FLOOR[own]}) imports {used}")
    assert wrong == []


def modules_in(room: Path) -> dict[str, set[str]]:
    """Of each file of a room, the files of the same room that it imports."""
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in room.glob("*.py")}
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        used = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                package = ".".join(room.relative_to(ROOT).parts)
                names = [node.module] if node.module else [alias.name for alias in node.names]
                used |= {f"{package}.{each}" for each in names}
        found[name] = used & set(files)
    return found


@pytest.mark.parametrize(
    "room", sorted({path.parent for path in sources_of_rooms()}), ids=lambda room: str(room.relative_to(ROOT))
)
def test_no_files_import_each_other(room: Path) -> None:
    """Inside of a room there is an order, too."""
    left = modules_in(room)
    while free := [name for name, used in left.items() if not used & set(left)]:
        for name in free:
            del left[name]
    assert left == {}


def test_sources_include_from_below() -> None:
    wrong = []
    for path in sorted(path for suffix in ("cu", "cuh", "h") for path in (ROOT / "cuda").rglob(f"*.{suffix}")):
        own = path.relative_to(ROOT / "cuda").parts[0] if path.parent != ROOT / "cuda" else ""
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
            assert (ROOT / "cuda" / name).exists(), f"{path}: {name} is not relative to cuda/"
            used = name.partition("/")[0] if "/" in name else ""
            if used != own and used not in BELOW[own]:
                wrong.append(f"{path.relative_to(ROOT)} includes {name}")
    assert wrong == []


def test_folders_of_sources_have_no_circle() -> None:
    left = dict(BELOW)
    while free := [folder for folder, used in left.items() if not used & set(left)]:
        for folder in free:
            del left[folder]
    assert left == {}
