"""What mpi4py's own calls find in requests of this library: the work of these is made up here."""

import gc
import random

import pytest
from mpi4py import MPI

from pyncclx import Request
from pyncclx.requests import shown
from pyncclx.requests.request import request_of
from pyncclx.requests.work import Work

SOURCE = 5


class Made(Work):
    """An operation that notes how often it was finished and dropped."""

    def __init__(self):
        self.finished = self.dropped = 0

    def finish(self):
        self.active = False
        self.finished += 1

    def is_over(self):
        return True

    def fill(self, status):
        super().fill(status)
        status.Set_source(SOURCE)

    def abandon(self):
        pass

    def drop(self):
        self.dropped += 1


# Each completes a list of requests; by a copy of a handle, MPI frees what the request still refers to.


def by_copies(requests):
    MPI.Request.Waitall([MPI.Request(request) for request in requests])
    Request.Waitall(requests)


def by_asked_copies(requests):
    for request in requests:
        assert MPI.Request.Get_status(MPI.Request(request))
    Request.Waitall(requests)


WAYS = {
    "Waitall": Request.Waitall,
    "mpi4py's Waitall": MPI.Request.Waitall,
    "mpi4py's Testall": MPI.Request.Testall,
    "Wait": lambda requests: [request.Wait() for request in requests],
    "Test": lambda requests: [request.Test() for request in requests],
    "Free": lambda requests: [request.Free() for request in requests],
    "copies": by_copies,
    "asked copies": by_asked_copies,
}


@pytest.fixture
def made(monkeypatch):
    """The generalized requests that are made."""
    all_made = []

    class Noted(shown.Shown):
        def __init__(self):
            super().__init__()
            all_made.append(self)

    monkeypatch.setattr(shown, "Shown", Noted)
    monkeypatch.setattr(shown, "_HIDDEN", [])
    return all_made


@pytest.mark.parametrize("way", ["Waitall", "Wait", "Test", "Free"])
def test_calls_of_this_library_leave_generalized_requests_to_the_next(made, way):
    for _ in range(5):
        requests = [request_of(Made()) for _ in range(3)]
        WAYS[way](requests)
        assert not any(requests)
    assert len(made) == 3


def test_each_work_is_finished_once_by_whatever_completes_it(made):
    """MPI may have freed what one request showed: no later one shows it."""
    draw = random.Random(1)
    for number in range(200):
        works = [Made() for _ in range(draw.randrange(1, 5))]
        requests = [request_of(work) for work in works]
        handles = {request.handle for request in requests}
        assert len(handles) == len(requests)
        WAYS[name := draw.choice(list(WAYS))](requests)
        assert [work.finished for work in works] == [1] * len(works), f"{name}, round {number}"
        del requests
        assert not any(work.dropped for work in works)
    assert len({each.address for each in made}) == len(made)


@pytest.mark.parametrize("wait", [Request.Wait, MPI.Request.Wait])
def test_the_status_is_that_of_the_work(wait):
    status = MPI.Status()
    request = request_of(Made())
    wait(request, status)
    assert status.source == SOURCE
    request.Wait(status)  # of nothing
    assert status.source == MPI.ANY_SOURCE


def test_a_dropped_request_is_completed_by_a_copy_of_its_handle():
    work, status = Made(), MPI.Status()
    request = request_of(work)
    copy = MPI.Request(request)
    del request
    gc.collect()
    assert (work.dropped, work.finished) == (1, 0)
    copy.Wait(status)
    assert (work.finished, status.source) == (1, SOURCE)


def test_ctrl_c_leaves_the_others_to_a_later_call():
    class Interrupted(Made):
        def finish(self):
            super().finish()
            raise KeyboardInterrupt

    works = [Made(), Interrupted(), Made()]
    requests = [request_of(work) for work in works]
    with pytest.raises(KeyboardInterrupt):
        Request.Waitall(requests)
    assert list(map(bool, requests)) == [False, False, True]
    Request.Waitall(requests)
    assert [work.finished for work in works] == [1, 1, 1]
