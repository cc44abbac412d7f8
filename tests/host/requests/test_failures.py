"""What calls that complete several requests raise when some of them fail: the work of these is made up here."""

import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import Request
from pyncclx.errors import MPIError
from pyncclx.requests.request import request_of
from pyncclx.requests.work import Work

TRUNCATED = MPIError(MPI.ERR_TRUNCATE, "Irecv: too long")
OF_THE_COMMUNICATOR = (
    pyncclx.PeerTimeout("Irecv", 1, 0, 1, 2, 1),
    pyncclx.RankFailed((1,), (1,), "killed"),
    pyncclx.Revoked("revoked"),
    pyncclx.Aborted("aborted"),
    pyncclx.CollectiveMismatch("mismatch"),
)
SEVERAL = ("Waitall", "Testall", "Waitsome", "Testsome", "waitall", "testall", "waitsome", "testsome")


class Made(Work):
    """An operation that is over."""

    def __init__(self, error=None):
        self.error = error

    def finish(self):
        self.active = False
        error, self.error = self.error, None
        if error is not None:
            raise error

    def is_over(self):
        return True


def requests_of(*errors):
    return [request_of(Made(error)) for error in errors]


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("before", [None, TRUNCATED])
@pytest.mark.parametrize("error", OF_THE_COMMUNICATOR, ids=lambda error: type(error).__name__)
def test_what_concerns_the_communicator_is_raised_as_it_is(name, before, error):
    requests = requests_of(before, error, None)
    with pytest.raises(type(error)) as raised:
        getattr(Request, name)(requests)
    assert raised.value is error


@pytest.mark.parametrize("name", SEVERAL)
def test_errors_of_requests_are_in_the_statuses(name):
    """Also in those that have had another error before."""
    requests, statuses = requests_of(None, TRUNCATED, None), [MPI.Status() for _ in range(3)]
    statuses[0].Set_error(MPI.ERR_OTHER)
    with pytest.raises(MPI.Exception, match=r"request 1: .*Irecv: too long") as raised:
        getattr(Request, name)(requests, statuses)
    assert raised.value.Get_error_class() == MPI.ERR_IN_STATUS
    assert raised.value.__cause__ is TRUNCATED
    assert [status.Get_error() for status in statuses] == [MPI.SUCCESS, MPI.ERR_TRUNCATE, MPI.SUCCESS]
    assert not any(requests)


@pytest.mark.parametrize("name", SEVERAL)
def test_a_list_of_statuses_that_is_too_short(name):
    statuses = []
    with pytest.raises(MPI.Exception):
        getattr(Request, name)(requests_of(None, TRUNCATED), statuses)
    assert [status.Get_error() for status in statuses] == [MPI.SUCCESS, MPI.ERR_TRUNCATE]


@pytest.mark.parametrize("name", SEVERAL)
def test_ctrl_c_is_raised_at_once(name):
    with pytest.raises(KeyboardInterrupt):
        getattr(Request, name)(requests_of(TRUNCATED, KeyboardInterrupt()))


@pytest.mark.parametrize("name", ["Waitany", "Testany", "waitany", "testany"])
def test_calls_for_one_raise_its_error(name):
    requests = requests_of(TRUNCATED, None)
    with pytest.raises(MPIError) as raised:
        getattr(Request, name)(requests)
    assert raised.value is TRUNCATED
    assert list(map(bool, requests)) == [False, True]
