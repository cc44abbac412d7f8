"""What mpi4py's own calls find in requests of this library: the work of these is made up here."""

import gc
import random
from contextlib import suppress

import pytest
from mpi4py import MPI

from pyncclx import Prequest, Request
from pyncclx.requests import shown
from pyncclx.requests.request import request_of
from pyncclx.requests.work import Startable, Work

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


class Again(Made, Startable):
    """One that is started again and again."""

    name, active = "Again_init", False

    @staticmethod
    def starter(works):
        for work in works:
            work.active = True

    def check_owner(self):
        pass


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


# The calls that complete one request, whose status they set; MPI may have asked for it before.
SOME = {
    "Wait": Request.Wait,
    "Test": Request.Test,
    "Waitall": lambda request, status: Request.Waitall([request], [status]),
    "Testall": lambda request, status: Request.Testall([request], [status]),
    "Waitany": lambda request, status: Request.Waitany([request], status) == 0,
    "Testany": lambda request, status: Request.Testany([request], status) == (0, True),
    "Waitsome": lambda request, status: Request.Waitsome([request], [status]) == [0],
    "Testsome": lambda request, status: Request.Testsome([request], [status]) == [0],
    "waitall": lambda request, status: Request.waitall([request], [status]) == [None],
    "waitany": lambda request, status: Request.waitany([request], status) == (0, None),
    "with mpi4py's": lambda request, status: Request.Waitall([request, MPI.REQUEST_NULL], [status]),
    "mpi4py's Waitany": lambda request, status: MPI.Request.Waitany([request], status) == 0,
}


def started():
    """A persistent request that is under way."""
    request = Prequest(Again())
    request.Start()
    return request


@pytest.mark.parametrize("make", [lambda: request_of(Made()), started])
@pytest.mark.parametrize("name", SOME)
def test_mpi4py_s_get_status_leaves_the_request_to_the_next_call(made, make, name):
    """For MPI it is active until a call completes it; its status is that of the work all the time."""
    for _ in range(2):
        request, status = make(), MPI.Status()
        for ask in (MPI.Request.Get_status, MPI.Request.Get_status, Request.Get_status):
            assert ask(request, status)
            assert (status.source, request.is_active, bool(request)) == (SOURCE, True, True)
            status = MPI.Status()
        assert SOME[name](request, status)
        assert (status.source, request.is_active, request._work.finished) == (SOURCE, False, 1)
        if make is started:
            request.Free()
        assert not request
    assert len(made) == 1 or name.startswith("mpi4py's")


@pytest.mark.parametrize("name", SOME)
def test_the_error_of_a_request_that_mpi_has_asked_is_raised_once(name):
    class Failing(Made):
        def finish(self):
            super().finish()
            raise MPI.Exception(MPI.ERR_TRUNCATE)

    request = request_of(Failing())
    for _ in range(2):
        with suppress(MPI.Exception):  # MPICH passes it on, Open MPI does not
            MPI.Request.Get_status(request)
    with pytest.raises(MPI.Exception):
        SOME[name](request, MPI.Status())
    assert (request.is_active, bool(request), request._work.finished) == (False, False, 1)
    assert request.Wait()


def test_a_request_that_mpi_has_asked_is_not_started():
    request = started()
    MPI.Request.Get_status(request)
    for start in (request.Start, lambda: Prequest.Startall([request])):
        with pytest.raises(MPI.Exception) as raised:
            start()
        assert raised.value.Get_error_class() == MPI.ERR_REQUEST
    request.Wait()
    request.Start()
    request.Wait()
    assert request._work.finished == 2


@pytest.mark.parametrize("call", [Request.Wait, Request.Test, Request.Get_status])
def test_a_persistent_request_is_inactive_when_a_copy_of_its_handle_was_completed(call):
    """MPI has freed what the request still refers to."""
    request, status = Prequest(Again()), MPI.Status()
    for number in range(3):
        request.Start()
        MPI.Request.Wait(MPI.Request(request), status)
        assert (status.source, request.is_active) == (SOURCE, False)
        assert call(request, status)
        assert (status.source, request._work.finished) == (MPI.ANY_SOURCE, number + 1)
    request.Start()
    MPI.Request.Wait(MPI.Request(request))
    request.Free()


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize("make", [lambda: request_of(Made()), started])
def test_a_copy_of_an_inactive_request_completes_no_other(make, is_asked):
    request, status = started(), MPI.Status()
    copies = [MPI.Request(request) for _ in range(2)]
    if is_asked:
        MPI.Request.Get_status(copies[0])
    request.Wait()
    other = make()
    assert MPI.Request.Get_status(copies[0], status)
    assert MPI.Request.Wait(copies[1], status)
    assert (status.source, other.is_active, other._work.finished) == (MPI.ANY_SOURCE, True, 0)
    request.Start()
    Request.Waitall([request, other])
    assert (request._work.finished, other._work.finished) == (2, 1)


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_copy_that_was_kept_completes_a_later_start(is_asked):
    request, status = started(), MPI.Status()
    copy = MPI.Request(request)
    if is_asked:
        MPI.Request.Get_status(copy)
    request.Wait()
    request.Start()
    MPI.Request.Wait(copy, status)
    assert (status.source, request.is_active, request._work.finished) == (SOURCE, False, 2)


def test_a_persistent_request_is_freed_once(made):
    for _ in range(3):
        request = started()
        request.Wait()
        request.Free()
        with pytest.raises(MPI.Exception) as raised:
            request.Free()
        assert raised.value.Get_error_class() == MPI.ERR_REQUEST
        request.free()  # of a freed one, nothing
    assert len(made) == 1
