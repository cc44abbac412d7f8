"""A rank is killed in each operation: who raises, what it names, how soon; and all goes on with the ranks that live."""

import pytest

from support import fault_jobs as jobs
from support.fault_cases import AT_ONCE, METHODS, Case, case_of, check_goes_on, check_survivors
from support.sample import some

WAIT_S = 0.4  # from the beginning of a call to a fault in it
LATE_S = 4  # how late a rank comes that others wait for: on a busy machine these may come seconds later than it

pytestmark = pytest.mark.skipif(not jobs.TOLERANT, reason="needs an MPI that goes on when ranks fail")


@pytest.mark.parametrize("operation", some(METHODS, 4))
def test_killed_before_the_call(operation):
    case = case_of(operation)
    job = jobs.run(case.ranks, operation, case.fault("do=kill"), shrink=True)
    check_survivors(job, case)
    check_goes_on(job, case)


@pytest.mark.parametrize("operation", some([name for name in METHODS if name not in AT_ONCE], 3))
def test_killed_while_it_waits(operation):
    """A rank comes late, and the victim dies while it waits for it, in a kernel or in a meeting."""
    case = case_of(operation)
    job = jobs.run(case.ranks, operation, case.fault(f"do=kill,after={WAIT_S}", late_s=LATE_S), shrink=True)
    check_survivors(job, case, LATE_S + jobs.PROMISED_S + jobs.SLACK_S)
    check_goes_on(job, case)


@pytest.mark.parametrize("operation", some(["isend_any", "sendrecv", "allreduce", "bcast"], 2))
@pytest.mark.parametrize("nodes", some(["a,a,b", "a,b,b"], 1))
def test_killed_over_nodes(operation, nodes):
    """Rank 0 comes late, and the victim dies while it waits for it or for another, between nodes or inside one."""
    case = Case(operation, 3, 2)
    job = jobs.run(3, operation, case.fault(f"do=kill,after={WAIT_S}", late_s=LATE_S), PYNCCLX_TEST_NODES=nodes)
    check_survivors(job, case, LATE_S + jobs.PROMISED_S + jobs.SLACK_S)


@pytest.mark.parametrize("operation", some(["iallreduce", "isend_any"], 1))
@pytest.mark.parametrize("after", some(["", f",after={WAIT_S}"], 1))
def test_killed_in_wait(operation, after):
    """Of a nonblocking operation that has begun, before the wait and in it."""
    case = case_of(operation)
    late = f"rank={case.late},{case.call},do=delay:{LATE_S};" * bool(after)
    job = jobs.run(case.ranks, operation, f"{late}rank={case.victim},call=Wait,nth=3,do=kill{after}", shrink=True)
    check_survivors(job, case, LATE_S + jobs.PROMISED_S + jobs.SLACK_S)
    check_goes_on(job, case)


@pytest.mark.thorough
@pytest.mark.parametrize("victim", [0, 2])
def test_killed_while_kernels_are_compiled(victim, tmp_path):
    """Rank 0 dies while its compiler runs, or one that waits for it does; no compiler goes on for long."""
    case = Case("compile_first", 3, victim)
    fault = f"rank={victim},call=Allreduce,nth=2,do=kill,after={WAIT_S}"
    job = jobs.run(3, "compile_first", fault, PYNCCLX_CACHE=str(tmp_path))
    check_survivors(job, case, jobs.COMPILATION_S)


@pytest.mark.parametrize("victim", some([0, 1], 1))
def test_killed_in_finalize(victim):
    """All calls were well, and pyncclx waits for nobody; MPI_Finalize may."""
    job = jobs.run(2, "allreduce", "", calls=2, killed_at_exit=victim)
    assert [each["type"] for each in job.outcomes.values()] == [None, None], job.explain()
    assert job.ended == [1 - victim], job.explain()
    assert not job.left, job.explain()
