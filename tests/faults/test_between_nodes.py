"""A rank, or all of a node, that is killed in a call over nodes: the others name the ranks and the call, and go on."""

import pytest

from support import fault_jobs as jobs
from support.sample import some

METHODS = {
    "allreduce": "Allreduce",
    "allgather": "Allgather",
    "reduce": "Reduce",
    "bcast": "Bcast",
    "iallreduce": "Iallreduce",
    "persistent": "Start",
    "barrier": "Barrier",
}
NODES = "a,a,b,b"
NTH = {"barrier": 4}  # others 3; a Barrier begins the program, too
LATE_S = 4  # more than others may be on a busy machine
# Rank 0 comes late: rank 1 waits for it in a kernel of the node, ranks 2 and 3 in a step between the nodes.
VICTIMS = {"in a kernel of the node": [1], "in a step between nodes": [3], "a whole node": [2, 3]}
pytestmark = pytest.mark.skipif(not jobs.TOLERANT, reason="needs an MPI that goes on when ranks fail")


@pytest.mark.parametrize(
    ("operation", "where"),
    some([(each, where) for where in reversed(VICTIMS) for each in METHODS], 1),
)
def test_killed_while_ranks_wait(operation, where):
    victims, call = VICTIMS[where], f"call={METHODS[operation]},nth={NTH.get(operation, 3)}"
    faults = [f"rank=0,{call},do=delay:{LATE_S}", *(f"rank={rank},{call},do=kill,after=0.4" for rank in victims)]
    job = jobs.run(4, operation, ";".join(faults), shrink=True, PYNCCLX_TEST_NODES=NODES)
    check(job, victims, METHODS[operation])


@pytest.mark.thorough
@pytest.mark.parametrize("operation", ["allreduce", "allgather"])
def test_killed_before_the_call(operation):
    """The kernel of its node gives up, and the other node is not left with what that one sends."""
    fault = f"rank=3,call={METHODS[operation]},nth=3,do=kill"
    check(jobs.run(4, operation, fault, shrink=True, PYNCCLX_TEST_NODES=NODES), [3], METHODS[operation])


def check(job, victims, method):
    """All others have raised, soon; nobody hangs; the communicator of those that are left works."""
    survivors = [rank for rank in range(4) if rank not in victims]
    assert sorted(job.outcomes) == survivors, job.explain()
    assert not job.left, job.explain()
    failed = [each for each in job.outcomes.values() if each["type"] != "Revoked"]  # it waited for one that has left
    assert failed, job.explain()
    for outcome in failed:
        assert outcome["type"] == "RankFailed", job.explain()
        assert set(outcome["ranks"]) <= set(victims), job.explain()
        assert outcome["ranks"], job.explain()
        assert outcome["seconds"] < LATE_S + jobs.PROMISED_S + jobs.SLACK_S, job.explain()
        assert outcome["again"]["type"] in ("RankFailed", "Revoked"), job.explain()
    names = ["allreduce" if method in ("Iallreduce", "Start") else method.lower()]
    if method == "Reduce":  # those that died had sent their parts, and the next call is the first that needs them
        names.append("barrier")
    assert any(name in each["operation"].lower() for each in failed for name in names), job.explain()
    for outcome in job.outcomes.values():
        assert (outcome["after"]["size"], outcome["after"]["failed"]) == (len(survivors), 0), job.explain()
