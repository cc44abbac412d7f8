"""Ranks that end after their last call, come late, free what has failed, or revoke: nobody is blamed or left alone."""

from pathlib import Path

import pytest

import launch
from support import fault_jobs as jobs

PROGRAM = Path(__file__).with_name("ends.py")


LONG = 20_000  # elements: more than what goes through the host's memory
THOROUGH = pytest.mark.thorough


def lines(ranks, name, *options, count=LONG, nodes="", **settings):
    """What the ranks of a job have printed, by rank."""
    settings = {"PYNCCLX_HEAP": "8M", "PYNCCLX_TEST_NODES": nodes, **settings}
    done = launch.job(ranks, str(PROGRAM), name, str(count), options=options, seconds=120, **settings)
    printed = [line.partition(": ") for line in done.stdout.splitlines() if line.startswith("rank ")]
    by_rank = {rank: [text for each, _, text in printed if each == f"rank {rank}"] for rank in range(ranks)}
    assert all(by_rank.values()), done.stdout + done.stderr
    return by_rank


LAYOUTS = [
    ("a,a,b", LONG),
    pytest.param("a,a,b", 5, marks=THOROUGH),
    pytest.param("a,b,c", LONG, marks=THOROUGH),
    ("", 5),
]
LEVELS = ["serialized", pytest.param("single", marks=THOROUGH), pytest.param("multiple", marks=THOROUGH)]


@pytest.mark.parametrize(("nodes", "count"), LAYOUTS)
def test_a_rank_that_has_ended_after_its_last_call(nodes, count):
    printed = lines(3, "after_the_last_call", nodes=nodes, count=count)
    assert printed == {0: ["right"], 1: ["right"], 2: ["right"]}


@pytest.mark.parametrize("end_s", [0, 3])
@pytest.mark.parametrize(("nodes", "count"), LAYOUTS)
def test_the_late_rank_is_blamed_not_the_ended_one(nodes, count, end_s):
    """Whether that one has ended by then, or its interpreter is still about to."""
    printed = lines(
        3, "after_the_last_call", nodes=nodes, count=count, PYNCCLX_TEST_TIMEOUT="1.5", PYNCCLX_TEST_END_S=str(end_s)
    )
    assert printed[0] == ["PeerTimeout 2"]


@pytest.mark.parametrize(
    ("nodes", "count"),
    [
        ("", LONG),
        pytest.param("", 5, marks=THOROUGH),
        pytest.param("", 200_000, marks=THOROUGH),
        ("a,a,b,b", LONG),
        pytest.param("a,a,b,b", 5, marks=THOROUGH),
        pytest.param("a,b,c,d", LONG, marks=THOROUGH),
    ],
)
def test_all_that_wait_blame_the_rank_that_is_late(nodes, count):
    """Not the rank that it waits for, which itself waits for the late one."""
    printed = lines(4, "left_out", nodes=nodes, count=count, PYNCCLX_TEST_TIMEOUT="1")
    blamed = [(rank, *text.split()) for rank in (0, 2, 3) for text in printed[rank]]
    assert {peer for *_, peer in blamed} <= {"1", "ok"}, blamed
    waiting = {name for _, name, peer in blamed if peer == "1"}
    assert waiting >= {"Reduce", "Scan", "Allgather", "Gather", "Ireduce", "Allreduce", "Alltoall"}, blamed
    assert "Bcast" in waiting or count == 5, blamed


def test_a_rank_that_has_made_the_call_may_stand_still():
    printed = lines(3, "beside_a_rank_that_stands_still", count=5, PYNCCLX_TEST_TIMEOUT="1.5")
    assert printed == {0: ["PeerTimeout 1"], 1: ["late"], 2: ["ok"]}


@pytest.mark.parametrize("nodes", ["a,a,b", pytest.param("a,b,b", marks=THOROUGH), ""])
def test_free_after_a_timeout(nodes):
    """It releases, and raises nothing; the memory is there for the next communicator."""
    printed = lines(3, "freed_after_a_timeout", nodes=nodes, PYNCCLX_TEST_TIMEOUT="1.5")
    for texts in printed.values():
        assert texts == ["freed True True", "right 1 leases"], printed


def test_a_long_send_behind_short_ones_without_a_thread():
    """`Wait` sends what MPI has not accepted, before it waits in a kernel."""
    settings = {"PYNCCLX_TIMEOUT": "5", "PYNCCLX_TEST_THREADS": "serialized"}
    assert lines(2, "a_long_send_behind_short_ones", count=100, **settings) == {0: ["right"], 1: ["right"]}


def test_free_after_a_first_call_that_one_rank_leaves_out():
    """MPI matches that rank's next meeting with the call."""
    printed = lines(3, "freed_after_a_first_call", count=5, PYNCCLX_TEST_TIMEOUT="1.5")
    assert printed == {0: ["freed True PeerTimeout 2"], 1: ["freed True PeerTimeout 2"], 2: ["freed True"]}


@pytest.mark.skipif(not jobs.TOLERANT, reason="needs an MPI that goes on when ranks fail")
@pytest.mark.parametrize("nodes", ["a,a,b,b", pytest.param("", marks=THOROUGH)])
def test_revoke_shrink_free(nodes):
    """Again and again; when Shrink returns the memory of the old communicator is free."""
    printed = lines(4, "revoked_again_and_again", *jobs.OPTIONS, nodes=nodes)
    for texts in printed.values():
        assert texts == [*["Revoked 0 leases"] * 6, "done"], printed


@pytest.mark.skipif(not jobs.TOLERANT, reason="needs an MPI that goes on when ranks fail")
@pytest.mark.parametrize("nodes", ["a,b", ""])
def test_host_calls_after_revoke(nodes):
    printed = lines(2, "revoked_host_calls", *jobs.OPTIONS, nodes=nodes)
    expected = [f"{name} Revoked" for name in ("Barrier", "barrier", "Bcast", "Send", "Recv", "bcast")]
    expected += ["Isendrecv True", "Isendrecv_replace True"]
    assert printed == {0: expected, 1: expected}


@pytest.mark.skipif(not jobs.TOLERANT, reason="needs an MPI that goes on when ranks fail")
def test_requests_after_revoke():
    printed = lines(2, "revoked_requests", *jobs.OPTIONS)
    for texts in printed.values():
        assert len(texts) == 56, printed
        assert all(text.endswith("True") for text in texts), printed


@pytest.mark.parametrize("name", ["left_in_a_first_call", "finalized_in_a_first_call"])
def test_an_end_before_other_ranks_come(name):
    """The program does not wait for them; PYNCCLX_TIMEOUT is longer than the ranks may take."""
    done = launch.job(2, str(PROGRAM), name, "5", seconds=120, PYNCCLX_TIMEOUT="100", PYNCCLX_TEST_NODES="")
    printed = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert (done.returncode, printed) == (0, ["rank 0: begun True", "rank 1: begun True"]), done.stdout + done.stderr


def test_ctrl_c_in_a_first_call():
    printed = lines(3, "interrupted_in_a_first_call", PYNCCLX_TIMEOUT="100")
    assert printed == {0: ["right", "right"], 1: ["interrupted", "right", "right"], 2: ["right", "right"]}


def test_ctrl_c_in_wait_signal():
    """It comes long before PYNCCLX_TIMEOUT, after which the job would have been ended."""
    assert lines(2, "interrupted_in_wait_signal", PYNCCLX_TIMEOUT="100") == {0: ["True"], 1: ["interrupted", "True"]}


@pytest.mark.parametrize("level", LEVELS)
def test_levels_of_threads(level):
    printed = lines(2, "without_threads_of_mpi", nodes="a,b", PYNCCLX_TEST_THREADS=level)
    refused = "refused 0" if level == "multiple" else "refused 80"
    assert printed == {0: [refused], 1: [refused]}
