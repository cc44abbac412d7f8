"""What the failure detector looks at."""

import os
import threading
import time
from types import SimpleNamespace

import pytest
from mpi4py import MPI

import pyncclx
from mpi_bootstrap.presence import Presence
from pyncclx import RankFailed
from pyncclx.failures import detector, policy
from pyncclx.failures.comm_failures import LOCK, Monitored, report
from pyncclx.failures.detector import DETECTOR


@pytest.mark.parametrize("wrong", range(3))
def test_pages_that_cannot_all_be_mapped(wrong):
    """None is looked at, and all descriptors are closed."""
    looking, presence = DETECTOR.get(), Presence()
    before, peers = len(os.listdir("/proc/self/fd")), dict(looking.peers)
    fds = {bytes([number]): os.dup(presence.fd) for number in range(3)}
    os.close(fds[bytes([wrong])])
    fds[bytes([wrong])] = os.open(os.devnull, os.O_RDWR)  # which has no pages
    with pytest.raises(OSError, match="No such device"):
        looking.add_peers(fds)
    assert looking.peers == peers
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(presence.fd)


@pytest.mark.parametrize(("cpu_s", "stood_still"), [(0.0, True), (1.5, False)])
def test_a_process_that_has_not_looked(monkeypatch, cpu_s, stood_still):
    """It stood still if it had no processor; else it was in a call that keeps the interpreter."""
    instance = DETECTOR.get()
    with LOCK:  # its thread looks later
        monkeypatch.setattr(instance, "stood_still_ns", 0)
        now_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
        monkeypatch.setattr(detector.time, "monotonic_ns", lambda: now_ns + 3 * 10**9)
        monkeypatch.setattr(detector.time, "process_time_ns", lambda: cpu_ns + int(cpu_s * 1e9))
        instance._last_ns, instance._last_cpu_ns = now_ns, cpu_ns
        instance.look()
        found = instance.stood_still_ns > now_ns
        monkeypatch.undo()
        instance._last_ns, instance.stood_still_s = time.monotonic_ns(), 0.0
    assert found == stood_still


class _Failing(Monitored):
    """A communicator whose failure is reported when the detector finds it."""

    rank, uids, world_ranks = 0, (b"of a dead process",), (-1,)

    def fail(self, failure):
        report(failure.exception())


def test_hooks_may_wait_for_threads_that_wait_for_the_detector(monkeypatch):
    """A hook of the program's, called for a failure, waits for a thread that makes a communicator."""
    looking, took, failing = DETECTOR.get(), [], _Failing()

    def take():
        took.append(LOCK.acquire(timeout=10))
        if took[-1]:
            LOCK.release()

    def hook(event):
        other = threading.Thread(target=take)
        other.start()
        other.join()

    monkeypatch.setitem(looking._failed, failing.uids[0], "killed")
    stop = pyncclx.on_event(hook)
    looking.watch(failing)
    stop()
    looking.forget(failing)
    assert took == [True]


def test_the_detector_learns_whom_mpi_has_found(monkeypatch):
    """The program may free the communicator before the detector looks; MPI_Finalize is bounded all the same."""
    found = []
    made = SimpleNamespace(failed_among=lambda _: {}, record_failure=found.append, has_failed=False)
    made.shares_node = lambda _: False
    monkeypatch.setattr(policy, "DETECTOR", SimpleNamespace(made=made))
    monkeypatch.setattr(policy, "goes_on_after_failures", lambda: True)
    monkeypatch.setattr(policy.ulfm, "failed_ranks", lambda _: [1])
    monkeypatch.setattr(policy.ulfm, "world_ranks", lambda _: (4, 7))
    reason = policy.explained(MPI.COMM_SELF, MPI.Exception(MPI.ERR_OTHER), "Allreduce")
    assert isinstance(reason, RankFailed)
    assert found == [7]
