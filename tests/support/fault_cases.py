"""Cases of fault tests: an operation of tests/faults/operations.py, and the method of it in which a fault comes."""

from dataclasses import dataclass

from support import fault_jobs as jobs

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
    "alltoall": "Alltoall",
    "gather_scatter": "Gather",
    "reduce_scatter": "Reduce_scatter_block",
    "scan": "Scan",
    "neighbors": "Neighbor_allgather",
    "derived": "Allgather",
    "transform": "Allgather",
    "split": "Split",
    "win_create": "Alloc",
    "send_long": "Send",
    "sequence": "Reduce_scatter_block",
    "free": "Free",
    "object_requests": "issend",
    "ibarrier": "Ibarrier",
}
NTH = {"barrier": 4, "dup": 2, "fence": 4, "sendrecv": 4}  # others 3; Barrier and Dup begin the program, too
AT_ONCE = ("lock", "accumulate", "alloc", "agree")  # the method does not wait, or hardly


@dataclass(frozen=True)
class Case:
    """An operation on some ranks, of which one gets a fault, and another may come late."""

    operation: str
    ranks: int
    victim: int

    @property
    def call(self) -> str:
        """Where the fault is, in PYNCCLX_FAULT."""
        return f"call={METHODS[self.operation]},nth={NTH.get(self.operation, 3)}"

    @property
    def late(self) -> int:
        """A rank that comes late."""
        return (self.victim + 1) % self.ranks

    @property
    def others(self) -> list[int]:
        """All ranks but the victim."""
        return [rank for rank in range(self.ranks) if rank != self.victim]

    def fault(self, what: str, late_s: float = 0) -> str:
        """PYNCCLX_FAULT for the victim's fault, while another rank comes so much later to the same call."""
        delay = f"rank={self.late},{self.call},do=delay:{late_s};" if late_s else ""
        return f"{delay}rank={self.victim},{self.call},{what}"


def case_of(operation: str) -> Case:
    """Return the operation on 2, 3 or 4 ranks, of which the first or the last is the victim."""
    number = list(METHODS).index(operation)
    ranks = 2 + (number + 1) % 3
    return Case(operation, ranks, ranks - 1 if number % 4 < 2 else 0)


def check_survivors(job: jobs.Job, case: Case, most_s: float = jobs.PROMISED_S + jobs.SLACK_S) -> None:
    """All ranks but the victim have raised RankFailed with its rank, soon, and nothing is left of the job."""
    assert sorted(job.outcomes) == case.others, job.explain()
    assert not job.left, job.explain()
    raised = [each for each in job.outcomes.values() if each["type"] != "Revoked"]  # it waited for one that has left
    assert raised, job.explain()
    for outcome in raised:
        assert outcome["type"] == "RankFailed", job.explain()
        assert outcome["ranks"] == outcome["world_ranks"] == [case.victim], job.explain()
        assert f"rank {case.victim} " in outcome["text"], job.explain()
        assert outcome["seconds"] < most_s, job.explain()


def check_goes_on(job: jobs.Job, case: Case) -> None:
    """The shrunk communicator has worked, with all the memory, and nothing of the dead rank's is left."""
    for outcome in job.outcomes.values():
        after = outcome["after"]
        assert (after["size"], after["failed"]) == (case.ranks - 1, 0), job.explain()
        assert after["whole"] is None or after["leased"] == after["whole"], job.explain()
