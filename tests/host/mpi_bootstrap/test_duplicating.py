"""Duplicates that are under way are forgotten when the program has completed them."""

from mpi4py import MPI

import pyncclx
from mpi_bootstrap import agree
from mpi_bootstrap.plain import _under_way


def test_completed_duplicates_are_forgotten():
    with pyncclx.Communicator(MPI.COMM_SELF).Dup() as comm:
        for _ in range(3):
            duplicate, request = comm.Idup()
            request.Wait()
            duplicate.Free()
        duplicate, request = comm.Idup()
        assert [each.request for each in _under_way] == [request]
        assert agree(comm, lambda: "met") == "met"
        assert not _under_way
        assert request
        request.Wait()
        duplicate.Free()
