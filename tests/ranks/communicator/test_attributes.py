"""Attributes of communicators: their functions are called as by mpi4py, by the program's own `Dup` and `Free`."""

from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import put

WORLD = MPI.COMM_WORLD


class Counts:
    """An attribute, and how often its functions have been called."""

    def __init__(self):
        self.copied = self.deleted = 0
        self.keyval = MPI.Comm.Create_keyval(self._copy, self._delete)

    def _copy(self, comm, keyval, value):
        self.copied += 1
        return value

    def _delete(self, comm, keyval, value):
        self.deleted += 1

    def both(self):
        return self.copied, self.deleted


@contextmanager
def with_attribute(comm):
    counts = Counts()
    comm.Set_attr(counts.keyval, "an attribute")
    yield counts
    MPI.Comm.Free_keyval(counts.keyval)


def messages(comm, array):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(array(np.arange(3000.0)), right, 0, array(np.zeros(3000)), left, 0)
    comm.Sendrecv(array(np.arange(3.0)), comm.rank, 0, array(np.zeros(3)), comm.rank, 0)


def collectives(comm, array):
    comm.Allreduce(array(np.ones(3)), array(np.zeros(3)))
    comm.Allreduce(array(np.ones(100_000)), array(np.zeros(100_000)))
    comm.Alltoall(array(np.ones(2 * comm.size)), array(np.zeros(2 * comm.size)))
    comm.Iallreduce(array(np.ones(3)), array(np.zeros(3))).Wait()
    comm.Allgather(array(np.ones(3)), array(np.zeros(3 * comm.size)))


def window(comm, array):
    windows, memory = (pyncclx.Win, comm.Alloc(8, "f8")) if isinstance(comm, pyncclx.Comm) else (MPI.Win, np.zeros(8))
    info = MPI.Info.Create({"pyncclx_memory": "device"})
    made = [windows.Create(memory, 8, comm=comm), windows.Allocate(64, 8, info, comm)]
    made.append(windows.Create_dynamic(comm=comm))
    info.Free()
    for each in made:
        each.Fence()
        each.Free()


def copies_in_windows(comm, array):
    """Arrays that no peer has mapped have copies in host memory."""
    windows = pyncclx.Win if isinstance(comm, pyncclx.Comm) else MPI.Win
    if windows is pyncclx.Win:
        comm.staging = True
    each = windows.Create(array(np.zeros(8)), 8, comm=comm)
    each.Fence()
    each.Free()


@pytest.mark.parametrize("use", [messages, collectives, window, copies_in_windows])
@pytest.mark.parametrize("way", ["on a node", "over nodes", "checked"])
def test_functions_are_called_as_by_mpi4py(monkeypatch, way, use):
    if way == "over nodes":
        monkeypatch.setenv("PYNCCLX_NODE", str(WORLD.rank))
    elif way == "checked":
        monkeypatch.setenv("PYNCCLX_CHECK", "1")
    plain, ours = WORLD.Dup(), pyncclx.Communicator(WORLD).Dup()
    with with_attribute(plain) as wanted, with_attribute(ours) as counts:
        use(plain, np.copy)
        use(ours, put)
        assert counts.both() == wanted.both()
        duplicates = [comm.Dup() for comm in (plain, ours)]
        assert counts.both() == wanted.both()
        use(duplicates[0], np.copy)
        use(duplicates[1], put)
        for comm in (*duplicates, plain, ours):
            comm.Free()
        assert counts.both() == wanted.both()
