"""Ranks that live, but raise, stand still, are interrupted, come late, or leave out a call: nothing hangs."""

import pytest

from support import fault_jobs as jobs
from support.fault_cases import METHODS, Case, case_of
from support.sample import some

# MPI's own waits, which have no end here: between the ranks of a message, of objects, and where communicators are made.
# So has its Fence, where a rank comes after the others have given up.
MESSAGES = ("sendrecv", "isend_any", "send_long", "object_messages", "object_requests")
BY_MPI = (*MESSAGES, "fence", "objects", "plain_objects", "dup", "agree", "split", "free", "neighbors", "ibarrier")
BOUNDED = [name for name in METHODS if name not in BY_MPI]
LOCAL = ("alloc", "lock", "accumulate", "signals", "win_create", "compile_first")  # or meetings on the host
KERNELS = [name for name in BOUNDED if name not in LOCAL]
TIMEOUT_S = 10
VICTIM, ANY = 2, -1  # of a wait for a signal, which any rank may put
IN_VAIN = ("PeerTimeout", "RanksMissing", "CollectiveMismatch", "RankFailed")  # the last if the victim, too, raised


def all_have_ended(job, case):
    """All ranks have written what became of them, by themselves, and nothing is left."""
    assert sorted(job.outcomes) == list(range(case.ranks)), job.explain()
    assert not job.left, job.explain()


@pytest.mark.parametrize("operation", some(BOUNDED, 1))
def test_an_exception_on_one_rank(operation):
    """The program of the rank that raises ends; the others name it, with its exception, without any help of MPI."""
    case = case_of(operation)
    job = jobs.run(case.ranks, operation, case.fault("do=raise"), tolerant=False, PYNCCLX_TEST_ESCAPE="1")
    survivors = {rank: each for rank, each in job.outcomes.items() if rank != case.victim}
    assert (sorted(survivors), job.left) == (case.others, []), job.explain()
    for outcome in survivors.values():
        assert (outcome["type"], outcome.get("ranks")) == ("RankFailed", [case.victim]), job.explain()
        assert "InjectedFault: PYNCCLX_FAULT" in outcome["reason"], job.explain()


@pytest.mark.parametrize("operation", some(KERNELS, 1))
def test_stopped(operation):
    """The others name the rank that stands still; when it goes on, it blames itself, not them."""
    case = case_of(operation)
    fault = case.fault("do=stop")
    job = jobs.run(case.ranks, operation, fault, tolerant=False, timeout_s=TIMEOUT_S, stopped=case.victim)
    all_have_ended(job, case)
    for rank, outcome in job.outcomes.items():
        assert outcome["type"] == "PeerTimeout", job.explain()
        assert outcome["peer"] == case.victim, job.explain()
        if rank != case.victim:
            assert "has not run for" in outcome["text"] or "see whether" in outcome["text"], job.explain()


@pytest.mark.thorough
@pytest.mark.parametrize("operation", ["alloc", "win_create"])
def test_stopped_before_a_meeting(operation):
    """On the host: the others name the rank that does not run."""
    case = case_of(operation)
    fault = case.fault("do=stop")
    job = jobs.run(case.ranks, operation, fault, tolerant=False, timeout_s=TIMEOUT_S, stopped=case.victim)
    all_have_ended(job, case)
    for rank in case.others:
        outcome = job.outcomes[rank]
        assert (outcome["type"], outcome["missing"]) == ("RanksMissing", [case.victim]), job.explain()


@pytest.mark.parametrize("operation", some(["allreduce", "bcast", "alltoallv", "dispatch"], 1))
def test_interrupted(operation):
    """A rank that waits for a kernel gets its KeyboardInterrupt before the rank that it waits for comes.

    Not in the `Wait` of a nonblocking call: on the host device Python waits there, so the handler ends no kernel.
    """
    case = Case(operation, 3, VICTIM)
    fault = f"rank={case.late},{case.call},do=stop;{case.fault('do=interrupt,after=1')}"
    job = jobs.run(3, operation, fault, tolerant=False, stopped=case.late)
    all_have_ended(job, case)
    assert job.outcomes[VICTIM]["type"] == "KeyboardInterrupt", job.explain()
    for rank in case.others:
        assert job.outcomes[rank]["type"] in ("Aborted", "RankFailed"), job.explain()


@pytest.mark.parametrize("operation", some(METHODS, 2))
@pytest.mark.parametrize("do", ["delay:1", "stop:1"])
def test_late_but_in_time(operation, do):
    """A rank that is late, or stopped for a while, is no failure."""
    case = case_of(operation)
    job = jobs.run(case.ranks, operation, case.fault(f"do={do}"), calls=4, tolerant=False)
    all_have_ended(job, case)
    assert [each["type"] for each in job.outcomes.values()] == [None] * case.ranks, job.explain()


@pytest.mark.thorough
@pytest.mark.parametrize("operation", [name for name in BOUNDED if name != "win_create"])  # MPI's own calls follow
def test_a_rank_that_leaves_out_a_call(operation):
    """Nothing hangs: the waits of the others end, and blame the rank; or nobody has needed the call."""
    case = case_of(operation)
    job = jobs.run(case.ranks, operation, case.fault("do=skip"), tolerant=False, timeout_s=TIMEOUT_S)
    all_have_ended(job, case)
    for rank in case.others:
        outcome = job.outcomes[rank]
        assert outcome["type"] in (None, *IN_VAIN), job.explain()
        assert outcome.get("peer", case.victim) in (case.victim, ANY), job.explain()
        if operation in KERNELS:
            assert outcome["type"] is not None, job.explain()


@pytest.mark.thorough
def test_nonsense_in_the_memory_of_a_communicator():
    """The rank of the nonsense may be the first that gives up, and blame another."""
    case = Case("allreduce", 3, VICTIM)
    job = jobs.run(3, "allreduce", case.fault("do=corrupt-header"), tolerant=False, timeout_s=TIMEOUT_S)
    all_have_ended(job, case)
    assert {job.outcomes[rank]["type"] for rank in case.others} == {"PeerTimeout"}, job.explain()
