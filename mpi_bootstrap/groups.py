"""Groups of ranks: their ranks in MPI.COMM_WORLD, and communicators from groups."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from mpi4py import MPI

from .interrupts import interrupts_deferred
from .plain import plain
from .polls import WHILE_MADE_S, polls_stopped


def ranks_in_world(group: MPI.Group) -> Sequence[int]:
    """Return a group's ranks as ranks of MPI.COMM_WORLD, and free the group.

    Ranks of another world are MPI.UNDEFINED.

    Notes
    -----
    The time that Open MPI takes to translate all ranks grows with the square of their number. So the group of
    COMM_WORLD is compared first: its ranks need no translation.

    Examples
    --------
    >>> list(ranks_in_world(MPI.COMM_SELF.Get_group())) == [MPI.COMM_WORLD.rank]
    True
    """
    world = MPI.COMM_WORLD.Get_group()
    is_world = MPI.Group.Compare(group, world) == MPI.IDENT
    ranks: Sequence[int] = range(group.size) if is_world else tuple(group.Translate_ranks(None, world))
    group.Free()
    world.Free()
    return ranks


Comm = TypeVar("Comm", bound=MPI.Intracomm)


def part(comm: Comm, ranks: Iterable[int]) -> Comm:
    """Return a communicator of these ranks, in this order. Collective in `comm`.

    The new communicator has the class of `comm`, but none of the attributes that the program has set on `comm`.

    Parameters
    ----------
    comm : MPI.Intracomm
    ranks : iterable of int
        This rank is among them. Different ranks pass the same ranks, or have none in common.

    Notes
    -----
    MPI_Comm_split is not used because it sends every rank the colours of all, in some MPIs around a ring. Neither is
    MPI_Comm_create_group: in Open MPI 5.0.11 its messages of tag 0 match the program's receives with MPI.ANY_TAG.
    """
    whole = comm.Get_group()
    group = whole.Incl(list(ranks))
    made = comm.Create(group)
    group.Free()
    whole.Free()
    return cast(Comm, made)


def same_ranks(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator of the same ranks, without attributes. Collective.

    Its class is `MPI.Intracomm`. MPI_Comm_dup is not used because it calls the program's attribute copy functions.

    Examples
    --------
    >>> made = same_ranks(MPI.COMM_SELF)
    >>> made != MPI.COMM_SELF, made.size
    (True, 1)
    >>> made.Free()
    """
    own = plain(comm)
    group = own.Get_group()
    made = own.Create(group)
    group.Free()
    return cast(MPI.Intracomm, made)


_Method = TypeVar("_Method", bound=Callable[..., Any])


def made_of_groups(method: _Method) -> _Method:
    """Wrap an mpi4py method that makes a communicator from groups.

    With Open MPI, no other thread may poll during such a method; see `polls`. But while a rank waits for other ranks,
    its threads have to poll. So all ranks of the groups wait for each other first, and then stop the polls.
    """

    @functools.wraps(method)
    def make(*args: Any, **kwargs: Any) -> Any:
        groups = [each for each in (*args, *kwargs.values()) if isinstance(each, MPI.Group) and each]
        with interrupts_deferred(to_the_end=True):
            if not _have_met(groups):
                return method(*args, **kwargs)
            with polls_stopped(WHILE_MADE_S):
                return method(*args, **kwargs)

    return cast(_Method, make)


class _Process(ctypes.Structure):
    """PMIx's pmix_proc_t."""

    _fields_ = (("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


def _have_met(groups: Iterable[MPI.Group]) -> bool:
    """Wait by PMIx until all ranks of the groups call this; return whether they have.

    PMIx launches Open MPI's ranks. A wait by PMIx needs no communicator, and no messages that the program's receives
    could match. Return False at once without PMIx, for a single rank, if a rank is of another MPI.COMM_WORLD, or if
    this rank is in none of the groups.
    """
    job, world = os.environ.get("PMIX_NAMESPACE", ""), MPI.COMM_WORLD.Get_group()
    ranks = sorted({rank for group in groups for rank in group.Translate_ranks(None, world)})
    is_member = world.rank in ranks
    world.Free()
    if not job or len(ranks) < 2 or MPI.UNDEFINED in ranks or not is_member or _pmix() is None:
        return False
    processes = (_Process * len(ranks))(*(_Process(job.encode(), rank) for rank in ranks))
    return bool(_pmix().PMIx_Fence(processes, ctypes.c_size_t(len(ranks)), None, ctypes.c_size_t(0)) == 0)


@functools.cache
def _pmix() -> Any:
    """Return the PMIx library that Open MPI has loaded; None if there is none."""
    found = re.search(r"/\S*/libpmix\.so\S*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    return ctypes.CDLL(found.group()) if found and MPI.get_vendor()[0] == "Open MPI" else None
