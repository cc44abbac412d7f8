"""Rooms import downwards only, in pyncclx/ and in cuda/, and the picture of them is current.

`docs/house.py` has the table of floors. To add a room, give it a floor there. An import that fails here wants another
place for what it imports, or a Protocol in the lower room.
"""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("house", ROOT / "docs" / "house.py")
house = sys.modules["house"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(house)

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
    ],
)
def test_an_upward_import_is_found(tree, line):
    plant(tree / "pyncclx/team/state.py", f"\n{line}\n")
    (wrong,) = house.upward_imports(tree)
    assert wrong.startswith("pyncclx/team/state.py:")


def test_a_circle_of_files_is_found(tree):
    assert "pyncclx.team.state" in house.uses_of_files(tree)["pyncclx.team.base"]
    plant(tree / "pyncclx/team/state.py", "\nfrom .base import Base\n")
    assert {"pyncclx.team.state", "pyncclx.team.base"} <= house.circles(house.uses_of_files(tree))


@pytest.mark.parametrize("name", ["collectives/allreduce.cu", "no_such_file.cuh"])
def test_a_wrong_include_is_found(tree, name):
    plant(tree / "cuda/protocol/signal.cuh", f'\n#include "{name}"\n')
    assert house.wrong_includes(tree) == [f"cuda/protocol/signal.cuh includes {name}"]
