"""Statuses are copied, whatever MPI has left in them."""

import numpy as np
from mpi4py import MPI

from pyncclx.requests.status import copy_status


def of_a_collective():
    """A status whose length is as Open MPI may leave it: any number, here -1 in all its bytes."""
    status = MPI.Status()
    memory = np.frombuffer(MPI.memory.fromaddress(MPI._addressof(status), MPI._sizeof(status)), "u1")
    before = memory.copy()
    status.Set_elements(MPI.BYTE, 0x0101010101010101)
    memory[memory != before] = 0xFF
    return status


def test_a_status_without_a_length_has_none():
    copy = MPI.Status()
    copy_status(copy, of_a_collective())
    assert copy.Get_elements(MPI.BYTE) == 0
    assert not copy.Is_cancelled()


def test_a_status_keeps_its_length():
    status, copy = MPI.Status(), MPI.Status()
    status.Set_source(3)
    status.Set_tag(5)
    status.Set_elements(MPI.BYTE, 77)
    copy_status(copy, status)
    assert (copy.source, copy.tag, copy.Get_elements(MPI.BYTE)) == (3, 5, 77)
