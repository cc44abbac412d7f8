"""tests/clients.py: what it says of two runs, and of programs that cannot be had."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

import clients
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
        "from mpi4py import MPI\nfrom support.clients.record import timed, value\n"
        "value(MPI.COMM_WORLD, 'rank', MPI.COMM_WORLD.rank)\ntimed(MPI.COMM_WORLD, 'nothing', int)\n"
    )
    done = run((str(program),), 2, "none", {"PYTHONPATH": ""}, 60)
    assert done["code"] == 0, done["output"]
    assert [each["rank"]["value"] for each in done["records"]] == [[0.0], [1.0]]
    assert all(each["nothing"]["seconds"] >= 0 for each in done["records"])
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
