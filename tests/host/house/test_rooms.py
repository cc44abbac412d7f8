"""Rooms import downwards only, in pyncclx/ and in cuda/, and the picture of them is current.

`docs/house.py` has the table of floors. To add a room, give it a floor there. An import that fails here wants another
place for what it imports, or a Protocol in the lower room.
"""

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "docs"))
import house  # noqa: E402

MOST_LINES = 300


def test_every_room_has_a_floor():
    assert set(map(house.room_of, house.sources())) == set(house.FLOOR)


def test_rooms_import_from_below():
    assert house.upward_imports() == []


def test_no_files_import_each_other():
    """Inside of a room there is an order, too."""
    assert house.circles(house.uses_of_files()) == set()


def test_files_have_one_subject():
    """In more than 300 lines there is a second one."""
    sources = [*house.sources().values(), *house.cuda_sources().values()]
    assert [str(path) for path in sources if path.read_text().count("\n") > MOST_LINES] == []


def test_sources_include_from_below():
    assert house.wrong_includes() == []


def test_folders_of_sources_have_no_circle():
    assert set(house.uses_of_folders()) == set(house.BELOW)
    assert house.circles(house.BELOW) == set()


def test_the_picture_is_current():
    assert house.PICTURE.read_text() == house.drawn(), "python docs/house.py draws it again"


@pytest.fixture
def tree(tmp_path):
    """A copy of the sources, to plant mistakes in."""
    for top in (*house.TOPS, "cuda"):
        shutil.copytree(ROOT / top, tmp_path / top, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def plant(path, line):
    path.write_text(path.read_text() + line)


@pytest.mark.parametrize(
    "line",
    [
        "from ..communicator import communicator",
        "from ..communicator.communicator import Comm",
        "from .. import communicator",
        "import pyncclx.communicator.communicator",
        "from pyncclx.communicator import communicator",
        "if TYPE_CHECKING:\n    from ..communicator.communicator import Comm",
        "def later():\n    from ..communicator.communicator import Comm",
        "from ..operators import ops",  # of the same floor
        "import pyncclx",
        "from .. import AVG",  # of the package's __init__
        "from pyncclx import communicator",
        'importlib.import_module("pyncclx.communicator.communicator")',
        'importlib.import_module("pyncclx")',
        'importlib.import_module("..communicator.communicator", __package__)',
        'importlib.import_module("..communicator", package=__package__)',
        'import_module(f"{_PACKAGE}.communicator")',
        '__import__("pyncclx.communicator")',
        'sys.modules["pyncclx.communicator.communicator"].Comm',
        'sys.modules.get("pyncclx.communicator")',
        'sys.modules[f"{_PACKAGE}"]',
    ],
)
def test_an_upward_import_is_found(tree, line):
    plant(tree / "pyncclx/team/state.py", f'\n_PACKAGE = "pyncclx"\n{line}\n')
    (wrong,) = house.upward_imports(tree)
    assert wrong.startswith("pyncclx/team/state.py:")


@pytest.mark.parametrize(
    "line",
    [
        "import numpy",
        "from .. import events",
        'importlib.import_module("pyncclx.memory.layout")',
        'importlib.import_module("numpy")',
        "importlib.import_module(name)",
        'sys.modules["torch"]',
        "sys.modules[name]",
    ],
)
def test_other_imports_are_allowed(tree, line):
    plant(tree / "pyncclx/team/state.py", f"\n{line}\n")
    assert house.upward_imports(tree) == []


def test_deliberate_imports_are_there():
    """An entry of the list is for an import that would be upwards without it."""
    files = house.sources()
    for (module, used), reason in house.DELIBERATE.items():
        assert used in [each for _, each in house.imported(module, files[module], files)]
        assert house.FLOOR[house.room_of(used)] >= house.FLOOR[house.room_of(module)]
        assert reason


@pytest.mark.parametrize(
    ("name", "line", "used"),
    [
        ("team/state", "from .base import Base", "team.base"),
        ("team/state", "from . import base", "team.base"),
        ("team/state", "from pyncclx.team import base", "team.base"),
        ("team/state", "import pyncclx.team.base", "team.base"),
        ("team/state", 'importlib.import_module(".base", __package__)', "team.base"),
        ("team/state", 'sys.modules["pyncclx.team.base"]', "team.base"),
        ("collectives/reduction", "from .over_nodes import allreduce", "collectives.over_nodes.allreduce"),
        ("collectives/reduction", "from .over_nodes import OVER_NODES", "collectives.over_nodes.__init__"),
        ("backends/host/memory", "from ..host import exports", "backends.host.exports"),
    ],
)
def test_a_circle_of_files_is_found(tree, name, line, used):
    module = f"pyncclx.{name.replace('/', '.')}"
    assert house.circles(house.uses_of_files(tree)) == set()
    plant(tree / f"pyncclx/{name}.py", f"\n{line}\n")
    uses = house.uses_of_files(tree)
    assert f"pyncclx.{used}" in uses[module]
    assert {module, f"pyncclx.{used}"} <= house.circles(uses)


def test_a_circle_through_the_names_of_a_package_is_found(tree):
    plant(tree / "pyncclx/collectives/__init__.py", "\nfrom . import scan\n")
    plant(tree / "pyncclx/collectives/scan.py", "\nfrom . import FUNCTIONS\n")
    wanted = {"pyncclx.collectives.__init__", "pyncclx.collectives.scan"}
    assert wanted <= house.circles(house.uses_of_files(tree))


@pytest.mark.parametrize("name", ["collectives/allreduce.cu", "no_such_file.cuh"])
def test_a_wrong_include_is_found(tree, name):
    plant(tree / "cuda/protocol/signal.cuh", f'\n#include "{name}"\n')
    assert house.wrong_includes(tree) == [f"cuda/protocol/signal.cuh includes {name}"]
