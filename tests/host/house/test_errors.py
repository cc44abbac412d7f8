"""The exceptions: caught as users catch them, readable, and whole after a trip between ranks."""

import pickle

import pytest
from mpi4py import MPI

from pyncclx.errors import (
    Aborted,
    CapacityExceeded,
    CollectiveMismatch,
    MPIError,
    NotSupported,
    PeerTimeout,
)

TIMEOUT = PeerTimeout("Allreduce", 7, 1, 3, 7, 6)
CAPACITY = CapacityExceeded(rank=2, source=5, wanted=300, capacity=256)
ERRORS = [
    NotSupported("no"),
    Aborted("gone"),
    CollectiveMismatch("rank 1 called Bcast"),
    MPIError(MPI.ERR_OP, "Allreduce: SUM of bool"),
    TIMEOUT,
    CAPACITY,
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_is_a_runtime_error_and_survives_pickling(error):
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, RuntimeError)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_mpi_error_is_an_mpi_exception_with_a_sentence():
    with pytest.raises(MPI.Exception) as caught:
        raise MPIError(MPI.ERR_OP, "Allreduce: use LOR")
    error = caught.value
    assert error.Get_error_class() == error.error_class == MPI.ERR_OP
    assert error == MPI.ERR_OP
    assert hash(error) == hash(MPI.Exception(MPI.ERR_OP))
    assert str(error) == f"{MPI.Exception(MPI.ERR_OP)}: Allreduce: use LOR"
    assert repr(error) == f"MPIError({MPI.ERR_OP}, 'Allreduce: use LOR')"


def test_fields_are_attributes_and_in_the_text():
    assert (TIMEOUT.operation, TIMEOUT.epoch, TIMEOUT.rank) == ("Allreduce", 7, 1)
    assert (TIMEOUT.peer, TIMEOUT.expected, TIMEOUT.seen) == (3, 7, 6)
    assert "rank 1 timed out waiting for rank 3" in str(TIMEOUT)
    assert (CAPACITY.rank, CAPACITY.source, CAPACITY.wanted, CAPACITY.capacity) == (2, 5, 300, 256)
    assert "rank 2 has room for 256 rows from rank 5, which sent 300" in str(CAPACITY)
