"""tests/clients.py: what it says of two runs, and of programs that cannot be had."""

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

import clients
from support.clients import cuda_libraries
from support.clients.periodic_box import HEX, INSIDE, LENGTH, QUAD, SIDES, box, slabs
from support.clients.runs import cause, close, differences, ratio, read, run


def ended(code=0, output="", **names):
    return {"code": code, "records": [dict(names), dict(names)], "output": output}


def test_same_numbers_but_for_rounding():
    assert close([1.0, 2.0], [1.0 + 1e-7, 2.0])
    assert not close([1.0], [1.001])
    assert not close([1.0], [1.0, 2.0])
    assert differences(ended(sum={"value": [3.0]}), ended(sum={"value": [3.0 + 1e-9]})) == []


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (ended(sum={"value": [4.0]}), "sum: [4.0], with mpi4py [3.0]"),
        (ended(), "sum: None, with mpi4py [3.0]"),
        (
            ended(1, "Traceback\nValueError: wrong\nabort", sum={"value": [3.0]}),
            "ended with 1, mpi4py with 0: ValueError: wrong",
        ),
        (ended("took too long", sum={"value": [3.0]}), "ended with took too long"),
    ],
)
def test_what_differs_is_named(ours, expected):
    found = differences(ours, ended(sum={"value": [3.0]}))
    assert any(expected in each for each in found), found


def test_tests_that_mpi4py_fails_do_not_count():
    mpi4py = ended(a={"outcome": "passed"}, b={"outcome": "failed", "why": "theirs"})
    assert differences(ended(a={"outcome": "passed"}, b={"outcome": "failed"}), mpi4py) == []
    assert "failed ours" in differences(ended(a={"outcome": "failed", "why": "ours"}), mpi4py)[0]


def test_a_program_that_fails_with_mpi4py_is_no_same():
    failed = ended(1, "ImportError: nothing")
    assert clients.verdict(failed, failed)["verdict"] == "fails with mpi4py, too"
    assert clients.verdict(failed, failed)["why"] == ["ImportError: nothing"]


def test_a_program_that_takes_too_long_is_neither():
    assert clients.verdict(ended("took too long"), ended())["verdict"] == "took too long"


def test_the_ratio_is_of_what_was_timed():
    share, times = ratio(ended(sort={"seconds": 3.0}), ended(sort={"seconds": 2.0}))
    assert share == 1.5
    assert times == {"sort": [3.0, 2.0]}
    assert ratio(ended(), ended()) == (None, {})


def test_the_cause_is_the_last_exception():
    assert cause("a\nKeyError: 1\nTypeError: last\nMPI_ABORT was called\n") == "TypeError: last"
    assert cause("") == ""


def test_what_the_index_does_not_have_is_not_available():
    packages = SimpleNamespace(install=lambda requirement: f"no {requirement}")
    client = clients.Client("odd", ("x.py",), ("surely-not-there==1",))
    assert clients.prepared(client, packages) == ("surely-not-there==1: no surely-not-there==1", ())


def test_a_run_records_each_rank(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import time\nfrom mpi4py import MPI\nfrom support.clients.record import timed, value\n"
        "value(MPI.COMM_WORLD, 'rank', MPI.COMM_WORLD.rank)\ntimed(MPI.COMM_WORLD, 'nothing', int)\n"
        "timed(MPI.COMM_WORLD, 'naps', lambda: time.sleep(0.05), each=50)\n"
    )
    done = run((str(program),), 2, "none", {"PYTHONPATH": ""}, 60)
    assert done["code"] == 0, done["output"]
    assert [each["rank"]["value"] for each in done["records"]] == [[0.0], [1.0]]
    assert all(each["nothing"]["seconds"] >= 0 for each in done["records"])
    assert all(0.001 <= each["naps"]["seconds"] < 0.05 for each in done["records"])
    (tmp_path / "record.0").write_text(
        json.dumps({"name": "x", "value": [1]}) + "\n" + json.dumps({"name": "x", "seconds": 2})
    )
    assert read(tmp_path / "record.0") == {"x": {"value": [1], "seconds": 2}}


def test_a_run_that_recorded_nothing_has_no_ratio():
    """It took too long, or ended before."""
    late = {"code": "took too long", "records": [], "output": ""}
    whole = {"code": 0, "records": [{"sort": {"seconds": 2.0}}, {"sort": {"seconds": 3.0}}], "output": ""}
    assert ratio(late, whole) == ratio(whole, late) == (None, {})
    assert ratio(whole, whole) == (1.0, {"sort": [3.0, 3.0]})


def numbers(lines, name):
    """The lines of a section, as many as it says, as numbers."""
    first = lines.index(f"${name}") + 1
    last = lines.index(f"$End{name}")
    assert int(lines[first]) == last - first - 1
    return [[float(word) for word in line.split()] for line in lines[first + 1 : last]]


@pytest.fixture
def mesh():
    """Points by their numbers, and the corners of elements by shape and group, of a box of 3 by 3 by 3."""
    lines = list(box(3))
    points = {number: np.array(place) for number, *place in numbers(lines, "Nodes")}
    groups = {}
    for _, shape, _, group, _, *corners in numbers(lines, "Elements"):
        groups.setdefault((shape, group), []).append(np.array([points[corner] for corner in corners]))
    return points, groups


def test_the_box_is_full_of_elements(mesh):
    """Each is a cube with its corners in Gmsh's order; what comes first is lowest."""
    points, groups = mesh
    cubes = groups[HEX, INSIDE]
    assert (len(points), len(cubes)) == (4**3, 3**3)
    for corners in cubes:
        edges = corners[[1, 3, 4]] - corners[0]
        assert np.allclose(edges, np.eye(3) * LENGTH / 3)
        assert np.allclose(
            corners[[2, 5, 7, 6]], corners[0] + edges[[0, 0, 1, 0]] + [edges[1], edges[2], edges[2], edges[1:].sum(0)]
        )
    heights = [corners[0, 2] for corners in cubes]
    assert heights == sorted(heights)
    assert len({tuple(corners[0].round(6)) for corners in cubes}) == 3**3


def test_each_face_on_a_side_has_one_on_the_opposite_side(mesh):
    _, groups = mesh
    for number, (axis, side) in enumerate(SIDES, INSIDE + 1):
        shift = np.eye(3)["xyz".index(axis)] * LENGTH * (side == "l")
        faces = {tuple(map(tuple, (corners + shift).round(6))) for corners in groups[QUAD, number]}
        assert len(faces) == 9
        if side == "l":
            there = faces
        else:
            assert faces == there


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_slabs_are_of_layers_and_never_part_the_first_and_the_last(parts):
    layers = slabs(8, parts).reshape(8, 64)
    assert (layers == layers[:, :1]).all()
    assert layers[0, 0] == layers[-1, 0]
    assert set(layers[:, 0]) == set(range(parts))
    counts = Counter(layers[:, 0].tolist()).values()
    assert max(counts) - min(counts) <= 1


def test_cuda_libraries_are_found_by_any_name(monkeypatch):
    """By the name that programs use; beside the compiler; the driver's by its own name; or not at all."""
    there = set()

    def load(path):
        if path not in there:
            raise OSError(path)

    monkeypatch.setattr(cuda_libraries.ctypes, "CDLL", load)
    monkeypatch.setattr(cuda_libraries.shutil, "which", lambda name: f"/toolkit/bin/{name}")
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    assert cuda_libraries.path_of("nvrtc") == cuda_libraries.path_of("cuda") == ""
    there |= {"libcuda.so.1", "/toolkit/lib64/libnvrtc.so"}
    assert cuda_libraries.path_of("cuda") == "libcuda.so.1"
    assert cuda_libraries.path_of("nvrtc") == "/toolkit/lib64/libnvrtc.so"
    there |= {"libnvrtc.so"}
    assert cuda_libraries.path_of("nvrtc") == "libnvrtc.so"
