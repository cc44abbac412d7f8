"""The analyser names causes from the records of ranks, and finds none on a healthy job."""

import pytest

from pyncclx.tools.observe.analysis import analyse
from pyncclx.tools.observe.verdict import CAUSES
from support.records import FakeRank, S, job_of, well


def healthy(ranks):
    """All have made the same calls, long ago."""


def running(ranks):
    """One is a call behind, for a moment."""
    ranks[0].call()
    ranks[2].call()


def ahead(ranks):
    """One has come early, and waits for no longer than calls take here."""
    for rank in ranks:
        for _ in range(12):
            rank.now_ns += 4 * S
            rank.call()
    ranks[0].call()


def over(ranks):
    """One has ended, and the others go on without it."""
    ranks[1].state = "ended"
    for rank in (ranks[0], ranks[2]):
        rank.call(comm=rank.comm(world=[0, 2]))


def late_to(ranks, late, in_time=0, by_s=0.01):
    """Rank 2 comes late to so many calls, and all come at once to others."""
    for number in range(late + in_time):
        by_ns = int(by_s * S) if number < late else 0
        for rank in ranks:
            rank.now_ns += by_ns if rank.number == 2 else 0
            rank.call()
            rank.now_ns += by_ns if rank.number != 2 else 0


def busy(ranks):
    """On a busy machine one comes late now and then."""
    late_to(ranks, 11, 32, 0.04)


def busy_for_a_moment(ranks):
    """One comes late to most calls of a moment, by little."""
    late_to(ranks, 14, 19, 0.004)


def computes(ranks):
    """No rank waits, for the last call is over on the device."""
    for rank in ranks:
        rank.progress(10)
        rank.at("/home/me/train.py:91 in step")


def recovered(ranks):
    """A nonblocking receive is open, and the ranks go on."""
    ranks[0].message("Irecv", 1, 3)
    for rank in ranks:
        rank.call()


def bursts(ranks):
    """Many short calls, then one rank works for seconds, again and again; now it does so once more."""
    for _ in range(3):
        for rank in ranks:
            for _ in range(50):
                rank.call()
            rank.now_ns += 4 * S
    for rank in ranks[:2]:
        rank.call()


def handled(ranks):
    """One rank had too little room once, and two have survived another one's death."""
    ranks[1].fails("CapacityExceeded", "rank 1 has room for 3 rows")
    for rank in ranks:
        rank.call(), rank.call()
    survive(ranks)


def survive(ranks, calls=2):
    """Rank 2 dies in its next call; the others go on without it."""
    ranks[2].extra = {"condition": ""}
    for rank in ranks[:2]:
        rank.call()
        rank.fails("RankFailed", "Allreduce: rank 2 failed", world_ranks=(2,), ranks=(2,), reason="its process died")
        rest = rank.comm(world=[0, 1])
        for _ in range(calls):
            rank.call(comm=rest)
    return rest


HEALTHY = [
    *((healthy, 10), (running, 0.2), (ahead, 10), (over, 10), (computes, 60), (recovered, 0.5)),
    *((busy, 10), (busy_for_a_moment, 10), (bursts, 0.1), (bursts, 5), (handled, 0.5)),
]


@pytest.mark.parametrize(("build", "later_s"), HEALTHY)
def test_no_verdict_on_a_healthy_job(build, later_s):
    ranks = well()
    build(ranks)
    assert analyse(job_of(ranks, later_s)) == []


def dead(ranks):
    ranks[0].call(), ranks[2].call()
    for rank in (ranks[0], ranks[2]):
        rank.fails("RankFailed", world_ranks=[1], ranks=[1], reason="its process died", host="a")
    del ranks[1]
    return "dead", (1,), ["rank 1 died: its process died", "no record"]


def dead_without_a_word(ranks):
    ranks[1].extra = {"condition": ""}
    ranks[0].call(), ranks[2].call()
    return "dead", (1,), ["rank 1 died: its process is gone", "Allreduce #10 at train.py:88"]


def exception(ranks):
    ranks[0].call(), ranks[2].call()
    ranks[1].fails("KeyError", "'batch'", unhandled=True, after_s=0.0)
    ranks[1].state = "failed"
    ranks[0].fails("RankFailed", world_ranks=[1], reason="its program ended by an exception")
    return "exception", (1,), ["rank 1 ended by an exception at train.py:90 in step: KeyError: 'batch'"]


def killed_by_the_launcher(ranks):
    """After one rank's exception; then that is the cause."""
    ranks[1].fails("KeyError", "'batch'", unhandled=True, after_s=0.0)
    for rank in (ranks[0], ranks[2]):
        rank.call()
        rank.extra = {"condition": ""}
    return "exception", (1,), ["KeyError"]


def gpu_error(ranks):
    ranks[2].fails("CUDARuntimeError", "cudaErrorIllegalAddress: an illegal memory access", unhandled=True)
    return "GPU error", (2,), ["rank 2 has an error of its GPU", "cudaErrorIllegalAddress"]


def full_capacity(ranks):
    ranks[1].fails("CapacityExceeded", "rank 1 has room for 8 rows from rank 0, which sent 9", unhandled=True)
    return "full capacity", (1,), ["has room for 8 rows from rank 0"]


def mpi_error(ranks):
    ranks[1].fails("Exception", "MPI_ERR_TRUNCATE: message truncated", unhandled=True)
    return "MPI error", (1,), ["MPI_ERR_TRUNCATE"]


def different_operation(ranks):
    ranks[0].call(), ranks[2].call()
    ranks[1].call("Bcast", flags=["rooted"], peer=0)
    return "different operation", (1,), ["As call #11, rank 1 made Bcast", "where the others made Allreduce"]


@pytest.mark.parametrize("late", [False, True])
def test_calls_after_a_failure_explain_nothing(late):
    """What ranks do once a wait was in vain differs, of course."""
    ranks = well()
    ranks[0].call(), ranks[2].call()
    for rank in (ranks[0], ranks[2]):
        rank.fails("PeerTimeout", rank=0, peer=1)
    if late:
        ranks[1].now_ns = ranks[0].now_ns
        ranks[1].call("Bcast")
    verdict = analyse(job_of(ranks))[0]
    assert (verdict.cause, verdict.ranks) == ("stalled before the call", (1,))


ARGUMENTS = {
    "type": {"datatype": "float64"},
    "operator": {"operator": "MAX"},
    "root": {"flags": ["rooted"], "peer": 2},
    "count": {"elements": 5},
    "length in bytes": {"nbytes": 40},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_different_arguments(name):
    ranks = well()
    usual = {"datatype": "float32", "operator": "SUM", "elements": 4, "nbytes": 16, "signature": 1}
    usual |= {"flags": ["rooted"], "peer": 0} if name == "root" else {}
    for rank in ranks:
        rank.call(**usual | (ARGUMENTS[name] | {"signature": 2} if rank.number == 2 else {}))
    verdict = analyse(job_of(ranks, 0.1))[0]
    assert (verdict.cause, verdict.ranks) == ("different argument", (2,))
    value = next(iter(ARGUMENTS[name].values())) if name != "root" else 2
    assert f"Allreduce #11 has the {name} {value} on rank 2" in verdict.sentence


def test_what_may_differ_does_not_count():
    """Ranks of a Gatherv have lengths of their own: the signature is equal."""
    ranks = well()
    for rank in ranks:
        rank.call("Gatherv", elements=rank.number, nbytes=rank.number * 8, signature=7)
    assert analyse(job_of(ranks)) == []


def stalled_before(ranks):
    ranks[0].call(), ranks[2].call()
    ranks[1].at("/home/me/data.py:12 in load")
    parts = ["rank 1 never called Allreduce #11", "data.py:12 in load", "ranks 0, 2 wait"]
    return "stalled before the call", (1,), parts


def timed_out(ranks):
    """And nothing has caught it: the ranks that waited have ended by it."""
    for rank in (ranks[0], ranks[2]):
        rank.call()
        rank.fails("PeerTimeout", "Allreduce: rank 0 timed out waiting for rank 1", unhandled=True, rank=0, peer=1)
        rank.state = "failed"
    return "stalled before the call", (1,), ["rank 1 never called Allreduce #11"]


def stopped(ranks):
    ranks[0].call(), ranks[2].call()
    ranks[1].extra = {"condition": "T"}
    return "stopped", (1,), ["rank 1 is stopped"]


def stood_still(ranks):
    ranks[0].call(), ranks[2].call()
    ranks[0].fails("PeerTimeout", rank=0, peer=1, detail="its process, 101, has not run for 3.1 s: stopped")
    return "stopped", (1,), ["rank 1 is stopped"]


def computes_with_the_interpreter(ranks):
    """Another process has been stopped, and goes on: rank 2, which waits."""
    ranks[0].call(), ranks[2].call()
    ranks[0].fails("PeerTimeout", rank=0, peer=1, detail="its process, 101, computes, and has run no Python code")
    ranks[2].fails("PeerTimeout", rank=2, peer=0, detail="its process, 100, has not run for 3.1 s: stopped")
    return "stalled before the call", (1,), ["rank 1 never called Allreduce #11"]


def stalled_after_a_handled_failure(ranks):
    ranks[1].fails("CapacityExceeded", "rank 1 has room for 3 rows", after_s=0)
    for rank in ranks:
        for _ in range(5):
            rank.call()
    ranks[0].call(), ranks[1].call()
    ranks[0].fails("PeerTimeout", rank=0, peer=2)
    return "stalled before the call", (2,), ["rank 2 never called Allreduce #16"]


def stalled_after_a_survived_death(ranks):
    rest = survive(ranks, 40)
    ranks[0].call(comm=rest)
    ranks[0].fails("PeerTimeout", rank=0, peer=1)
    return "stalled before the call", (1,), ["rank 1 never called Allreduce #41"]


def failed_a_call_ago(ranks):
    """What a rank does once since a failure may be what the failure has led to."""
    ranks[1].fails("CapacityExceeded", "rank 1 has room for 3 rows")
    ranks[1].call("Barrier"), ranks[0].call(), ranks[2].call()
    return "full capacity", (1,), ["rank 1 has too little room"]


def wrapped(ranks):
    """Of rank 0 messages alone are left."""
    del ranks[0].entries[:]
    for _ in range(20):
        ranks[0].message("Send", 1, 5, ended=True)
    ranks[0].entries[0]["sequence"] = 11
    for rank in ranks[1:]:
        rank.call(number=11)
    return "stalled before the call", (0,), ["rank 0 never called Allreduce #11"]


def ended(ranks):
    ranks[0].call(), ranks[2].call()
    ranks[1].state = "ended"
    return "ended", (1,), ["the program of rank 1 has ended"]


def compiles(ranks):
    for rank in ranks:
        rank.call()
        rank.waits_for("the other ranks' compilers", "allreduce<float, Sum>")
    ranks[0].waits_for("its compiler", "allreduce<float, Sum>")
    return "compile wait", (0,), ["rank 0 compiles allreduce<float, Sum>"]


def unmatched_tag(ranks):
    ranks[0].message("Send", 1, 8, ended=True)
    ranks[1].message("Recv", 0, 7)
    ranks[0].call("Barrier", kind="host"), ranks[2].call("Barrier", kind="host")
    return "unmatched tag", (0,), ["rank 0 sent with tag 8, and rank 1 waits for one with tag 7"]


def unmatched_tag_of_a_send(ranks):
    ranks[0].message("Ssend", 1, 8)
    ranks[1].message("Recv", 0, 7)
    return "unmatched tag", (0, 1), ["tag 8", "tag 7"]


def missing_partner(ranks):
    ranks[0].message("Send", 1, 7, ended=True)
    ranks[1].message("Recv", 0, 7, ended=True)
    ranks[1].message("Recv", 0, 7)  # a second one, which nobody has sent
    ranks[0].call("Barrier", kind="host"), ranks[2].call("Barrier", kind="host")
    return "missing message partner", (0,), ["rank 1 waits in Recv from rank 0 with tag 7", "sent no such message"]


def missing_receiver(ranks):
    ranks[0].message("Ssend", 1, 7)
    ranks[1].at("/home/me/data.py:12 in load")
    return "missing message partner", (1,), ["rank 1 has not received it"]


def lock_cycle(ranks):
    for rank in ranks:
        window = rank.comm(kind="win")
        rank.lock("Lock", rank.number, window)
        rank.lock("Lock", (rank.number + 1) % 3, window, ended=False)
    return "lock cycle", (0, 1, 2), ["rank 0 waits for rank 1 in Lock of rank 1"]


def lock_held(ranks):
    _, _, window = (rank.comm(kind="win") for rank in ranks)
    ranks[1].lock("Lock", 2, window)
    ranks[1].lock("Unlock", 2, window)
    ranks[1].lock("Lock", 0, window)
    ranks[0].lock("Lock", 0, window, ended=False)
    return "lock held", (1,), ["rank 1 has the lock of rank 0 of a window"]


def order_of_communicators(ranks):
    for rank in ranks:
        comms = rank.comm("rows", 1), rank.comm("columns", 2)
        rank.call(comm=comms[rank.number == 1])
    return "order of communicators", (0, 1), ["Allreduce #1 of 'rows'", "Allreduce #1 of 'columns'"]


def order_of_what_has_ended(ranks):
    """Two ranks have gone since, without a dump; they were there when the third one's wait ended."""
    for rank in ranks:
        comms = rank.comm("rows", 1), rank.comm("columns", 2)
        rank.call(comm=comms[rank.number == 1])
    ranks[2].fails("PeerTimeout", rank=2, peer=1)
    for rank in ranks[:2]:
        rank.extra = {"condition": ""}
    return "order of communicators", (0, 1), ["'rows'", "'columns'"]


def graph_replays(ranks):
    for rank in ranks:
        rank.progress(50 - (rank.number == 1))
    ranks[0].waits_for("the device")
    return "graph replays differ", (1,), ["a graph was not replayed as often"]


def stalled_in_a_call(ranks):
    for rank in ranks:
        rank.call()
        rank.progress(10 if rank.number else 11)
    return "stalled in a call", (1, 2), ["all ranks have called Allreduce #11", "does not end on ranks 1, 2"]


def settings_differ(ranks):
    ranks[1].process["settings"] = {"PYNCCLX_CHECK": "1"}
    ranks[0].call(), ranks[2].call()
    return "settings differ", (1,), ["PYNCCLX_CHECK is '1' on rank 1 and not set on the others"]


def versions_differ(ranks):
    for rank in ranks:
        rank.process["versions"] = {"numpy": "2.4", "torch": "2"} if rank.number else {"numpy": "1.26"}
    ranks[0].call(), ranks[2].call()
    return "settings differ", (0,), ["numpy is '1.26' on rank 0 and '2.4' on the others"]


def slow_rank(ranks):
    late_to(ranks, 30)
    return "slow rank", (2,), ["rank 2 is slow: of the last 40 calls it came last to 30, 10 ms after the first"]


def slow_rank_of_a_short_job(ranks):
    late_to(ranks, 8, 0, 0.04)
    return "slow rank", (2,), ["rank 2 is slow: of the last 18 calls it came last to 8"]


def slow_rank_of_late(ranks):
    late_to(ranks, 0, 400)
    late_to(ranks, 30)
    return "slow rank", (2,), ["rank 2 is slow: of the last 50 calls it came last to 30"]


def rank_that_is_a_little_slow(ranks):
    late_to(ranks, 500, 0, 0.004)
    return "slow rank", (2,), ["rank 2 is slow: of the last 500 calls it came last to 500, 4 ms after the first"]


BUILDERS = (
    *(dead, dead_without_a_word, exception, killed_by_the_launcher, gpu_error, full_capacity, mpi_error),
    *(different_operation, stalled_before, timed_out, stopped, stood_still, ended, compiles, unmatched_tag),
    *(computes_with_the_interpreter, stalled_after_a_handled_failure, stalled_after_a_survived_death),
    *(failed_a_call_ago, wrapped),
    *(unmatched_tag_of_a_send, missing_partner, missing_receiver, lock_cycle, lock_held, order_of_communicators),
    order_of_what_has_ended,
    *(graph_replays, stalled_in_a_call, settings_differ, versions_differ),
    *(slow_rank, slow_rank_of_a_short_job, slow_rank_of_late, rank_that_is_a_little_slow),
)


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_causes(build):
    ranks = well()
    cause, odd, parts = build(ranks)
    verdict = analyse(job_of(ranks))[0]
    assert (verdict.cause, verdict.ranks) == (cause, odd), verdict
    for part in parts:
        assert part in verdict.sentence


def test_a_few_calls_make_no_rank_slow():
    """However late a rank comes to them, as while it compiles."""
    ranks = [FakeRank(number, 3) for number in range(3)]
    late_to(ranks, 4, 0, 0.5)
    assert analyse(job_of(ranks)) == []


def test_a_dump_has_numbers_of_calls_that_its_entries_have_lost():
    """Rank 0 has made its part of the last call before its messages: it is not late."""
    ranks = well()
    wrapped(ranks)
    ranks[0].extra = {"numbers": {"1": 11}}
    assert analyse(job_of(ranks)) == []


def test_every_cause_is_tried():
    tried = {build(well())[0] for build in BUILDERS} | {"different argument"}
    assert tried == set(CAUSES)


def test_hosts_are_named_where_there_are_several():
    ranks = [FakeRank(number, 2, host="ab"[number]) for number in range(2)]
    ranks[0].call()
    assert "rank 1 on b never called Allreduce #1; it has called nothing" in analyse(job_of(ranks))[0].sentence


def test_records_without_room_for_texts():
    """Their communicators are unknown; the others still count."""
    ranks = well()
    ranks[1].entries[-1]["comm"] = 9
    ranks[1].comms[9] = {}
    assert analyse(job_of(ranks, 0.1)) == []
