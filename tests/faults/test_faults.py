"""Each operation and each fault: who raises, what it names, how soon; and all goes on with the ranks that live."""

import pytest

from support import fault_jobs as jobs
from support.sample import some

# Name of an operation of program.py, and the method in which the fault is.
METHODS = {
    "allreduce": "Allreduce",
    "bcast": "Bcast",
    "reduce": "Reduce",
    "allgather": "Allgather",
    "alltoallv": "Alltoallv",
    "barrier": "Barrier",
    "iallreduce": "Iallreduce",
    "persistent": "Start",
    "sendrecv": "Sendrecv",
    "isend_any": "Isend",
    "objects": "allgather",
    "object_messages": "sendrecv",
    "plain_objects": "allreduce",
    "alloc": "Alloc",
    "dup": "Dup",
    "compile_first": "Allreduce",
    "fence": "Fence",
    "lock": "Unlock",
    "accumulate": "Unlock_all",
    "signals": "Put_signal",
    "dispatch": "dispatch",
    "agree": "Agree",
}
NTH = {"barrier": 4, "dup": 2, "fence": 4, "sendrecv": 4}  # others 3; Barrier and Dup begin the program, too
AT_ONCE = ("lock", "accumulate", "alloc", "agree")  # the method does not wait, or hardly
RANKS, VICTIM = 3, 2

tolerant = pytest.mark.skipif(not jobs.TOLERANT, reason="needs an MPI that goes on when ranks fail")


def nth(operation):
    return NTH.get(operation, 3)


def check_survivors(job, most_s=jobs.PROMISED_S + jobs.SLACK_S):
    """All ranks but the victim have raised RankFailed with its rank, soon, and again at the next call."""
    assert sorted(job.outcomes) == [rank for rank in range(RANKS) if rank != VICTIM], job.explain()
    assert not job.left, job.explain()
    raised = [each for each in job.outcomes.values() if each["type"] != "Revoked"]  # it waited for one that has left
    assert raised, job.explain()
    for outcome in raised:
        assert outcome["type"] == "RankFailed", job.explain()
        assert outcome["ranks"] == outcome["world_ranks"] == [VICTIM], job.explain()
        assert f"rank {VICTIM} " in outcome["text"], job.explain()
        assert outcome["seconds"] < most_s, job.explain()


def check_goes_on(job):
    """The shrunk communicator has worked, with all the memory, and nothing of the dead rank's is left."""
    for outcome in job.outcomes.values():
        after = outcome["after"]
        assert (after["size"], after["failed"]) == (RANKS - 1, 0), job.explain()
        assert after["whole"] is None or after["leased"] == after["whole"], job.explain()


@tolerant
@pytest.mark.parametrize("operation", some(METHODS, 6))
def test_killed_before_the_call(operation):
    fault = f"rank={VICTIM},call={METHODS[operation]},nth={nth(operation)},do=kill"
    job = jobs.run(RANKS, operation, fault, shrink=True)
    check_survivors(job)
    check_goes_on(job)


@tolerant
@pytest.mark.parametrize("operation", some([name for name in METHODS if name not in AT_ONCE], 4))
def test_killed_while_it_waits(operation):
    """Rank 0 comes late, and the victim dies while it waits for it, in a kernel or in a meeting."""
    call = f"call={METHODS[operation]},nth={nth(operation)}"
    job = jobs.run(RANKS, operation, f"rank=0,{call},do=delay:1;rank={VICTIM},{call},do=kill,after=0.4", shrink=True)
    check_survivors(job, 1 + jobs.PROMISED_S + jobs.SLACK_S)
    check_goes_on(job)


@tolerant
@pytest.mark.parametrize("operation", some(["isend_any", "sendrecv", "allreduce", "bcast"], 2))
@pytest.mark.parametrize("nodes", some(["a,a,b", "a,b,b"], 1))
def test_killed_over_nodes(operation, nodes):
    """Rank 0 comes late, and the victim dies while it waits for it or for another, between nodes or inside one."""
    call = f"call={METHODS[operation]},nth={nth(operation)}"
    fault = f"rank=0,{call},do=delay:1;rank={VICTIM},{call},do=kill,after=0.4"
    check_survivors(jobs.run(RANKS, operation, fault, PYNCCLX_TEST_NODES=nodes), 1 + jobs.PROMISED_S + jobs.SLACK_S)


@pytest.mark.parametrize("operation", some(["alloc", "allreduce", "dispatch", "compile_first", "fence"], 2))
def test_an_exception_on_one_rank(operation):
    """The program of the rank that raises ends; the others name it, with its exception, without any help of MPI."""
    fault = f"rank={VICTIM},call={METHODS[operation]},nth={nth(operation)},do=raise"
    job = jobs.run(RANKS, operation, fault, tolerant=False, PYNCCLX_TEST_ESCAPE="1")
    survivors = {rank: each for rank, each in job.outcomes.items() if rank != VICTIM}
    assert (len(survivors), job.left) == (RANKS - 1, []), job.explain()
    for outcome in survivors.values():
        assert (outcome["type"], outcome["ranks"]) == ("RankFailed", [VICTIM]), job.explain()
        assert "InjectedFault: PYNCCLX_FAULT" in outcome["reason"], job.explain()


@pytest.mark.parametrize("operation", some(["allreduce", "barrier", "signals", "alltoallv"], 1))
def test_stopped(operation):
    """The others name the rank that stands still; when it goes on, it blames itself, not them."""
    fault = f"rank={VICTIM},call={METHODS[operation]},nth={nth(operation)},do=stop:7"
    job = jobs.run(RANKS, operation, fault, tolerant=False, timeout_s=3)
    assert sorted(job.outcomes) == list(range(RANKS)), job.explain()
    for rank, outcome in job.outcomes.items():
        assert outcome["type"] == "PeerTimeout", job.explain()
        if operation != "signals":  # any rank may put a signal
            assert outcome["peer"] == VICTIM, job.explain()
        if rank != VICTIM and operation != "signals":
            assert "has not run for" in outcome["text"] or "see whether" in outcome["text"], job.explain()


@pytest.mark.parametrize("operation", some(["allreduce", "bcast", "alltoallv", "dispatch", "iallreduce"], 1))
def test_interrupted(operation):
    """A rank that waits for a kernel gets its KeyboardInterrupt, and the others learn of it."""
    call = f"call={METHODS[operation]},nth={nth(operation)}"
    fault = f"rank=0,{call},do=delay:6;rank={VICTIM},{call},do=interrupt,after=1"
    job = jobs.run(RANKS, operation, fault, tolerant=False)
    assert sorted(job.outcomes) == list(range(RANKS)), job.explain()
    assert job.outcomes[VICTIM]["type"] == "KeyboardInterrupt", job.explain()
    assert job.outcomes[VICTIM]["seconds"] < 5.5, job.explain()
    for rank in (0, 1):
        assert job.outcomes[rank]["type"] in ("Aborted", "RankFailed"), job.explain()


@pytest.mark.parametrize("do", ["delay:1", "stop:1"])
def test_late_but_in_time(do):
    """A rank that is late, or stopped for a while, is no failure."""
    job = jobs.run(RANKS, "allreduce", f"rank={VICTIM},call=Allreduce,nth=3,do={do}", tolerant=False)
    assert [each["type"] for each in job.outcomes.values()] == [None] * RANKS, job.explain()


@pytest.mark.parametrize("do", ["skip", "corrupt-header"])
def test_a_rank_that_errs_in_silence(do):
    """Nothing hangs: the waits of the others end, and name it."""
    fault = f"rank={VICTIM},call=Allreduce,nth=3,do={do}"
    job = jobs.run(RANKS, "allreduce", fault, tolerant=False, timeout_s=3)
    raised = {(each["type"], each.get("peer")) for rank, each in job.outcomes.items() if rank != VICTIM}
    if do == "skip":
        assert raised == {("PeerTimeout", VICTIM)}, job.explain()
    else:  # the rank of the nonsense may be the first that gives up, and blame another
        assert {kind for kind, _ in raised} == {"PeerTimeout"}, job.explain()
