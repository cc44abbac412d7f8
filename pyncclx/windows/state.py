"""State of a window, which all objects of the window share.

mpi4py copies the handle of a window to other objects: in its constructor, in `fromhandle`, and for an error handler. So
the state is an attribute of MPI's window, where each object finds it, until the window is freed.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, TypeVar, cast

from mpi4py import MPI

from ..recording.calls import Calls
from ..staging.copies import PublicCopy
from ..staging.stage import Origins
from ..system.process import PerProcess
from ..team.base import Base
from ..team.streams import ANY_CALLER, Caller
from .locks import Locks
from .reach import Reach

_KEYVAL = PerProcess(MPI.Win.Create_keyval, lasting=True)
_Made = TypeVar("_Made", bound="Stateful")


class WindowState:
    """State of one window.

    Attributes
    ----------
    current : bool
        Whether MPI's window has not been freed.
    objects : WeakValueDictionary of int to Win
        The objects of the window, by `id`.
    reach : Reach or None
        Device memory that is mapped here; None for other windows.
    copies : tuple of PublicCopy, or None
        The public copy of this rank's device memory, if peers cannot map it: None if the window has no such copies,
        empty if this rank's memory is on the host. MPI exposes the copies in its separate memory model
        (`MPI.WIN_SEPARATE`): only the owner's synchronization calls update its device array from the copy, and the copy
        from the array.
    array : array
        This rank's memory; the reference keeps it alive.
    flavor : int or None
        Kind of the window, such as MPI.WIN_FLAVOR_ALLOCATE; None if it is that of MPI's window.
    locks : Locks or None
        None for a window of host memory.
    words : list of int
        Addresses of each rank's word in a dynamic window.
    comm : Intracomm
        The window's own communicator, for rendezvous.
    staging : bool or None
        `staging` of the communicator that made the window; None unless it is pyncclx's.
    caller : Caller
        State of that communicator.
    origins : Origins or None
        Host copies of device arrays.
    recording : Calls or None
        Recorder of the window's calls.
    """

    comm: MPI.Intracomm
    words: list[int]

    def __init__(self) -> None:
        self.current, self.objects = True, weakref.WeakValueDictionary[int, MPI.Win]()
        self.reach: Reach | None = None
        self.copies: tuple[PublicCopy, ...] | None = None
        self.array: Any = None
        self.flavor: int | None = None
        self.locks: Locks | None = None
        self.staging: bool | None = None
        self.caller: Caller = ANY_CALLER
        self.origins: Origins | None = None
        self.recording: Calls | None = None

    def close(self) -> None:
        """Release this rank's resources of the window."""
        for held in (self.reach, self.locks, self.recording):
            if held is not None:
                held.close()
        self.reach = self.locks = self.array = self.recording = self.copies = self.origins = None

    def end(self) -> None:
        """Set the handles of all objects to null, after MPI has freed the window.

        MPI would crash with a handle that it has freed, or work on a new window that has the same handle.
        """
        self.current = False
        for win in list(self.objects.values()):
            ctypes.memmove(MPI._addressof(win), MPI._addressof(MPI.WIN_NULL), MPI._sizeof(MPI.Win))


class _Attribute:
    """The value of the MPI attribute; MPI drops it when it frees the window."""

    def __init__(self, state: WindowState) -> None:
        self.state = state

    def __del__(self) -> None:
        self.state.end()


def _attribute_of(win: MPI.Win) -> _Attribute | None:
    """Return the attribute that MPI keeps with a window, if the window has one."""
    if not win or MPI.Is_finalized():
        return None
    # Call `MPI.Win`'s method, because that of `pyncclx.Win` needs the state.
    return cast("_Attribute | None", MPI.Win.Get_attr(win, _KEYVAL.get()))


class Stateful(MPI.Win):
    """Base class of the mixins of `pyncclx.Win`: the state that copies share."""

    _state: WindowState

    def __new__(cls: type[_Made], win: MPI.Win | None = None) -> _Made:
        """Return an object of the same window as another object."""
        made = super().__new__(cls, win)
        if isinstance(win, Stateful) and win._state.current:
            made._share(win._state)
        else:
            attribute = _attribute_of(made)
            made._share(WindowState() if attribute is None else attribute.state)
        return made

    def _share(self, state: WindowState) -> None:
        self._state = state
        state.objects[id(self)] = self

    def _keep_state(self) -> None:
        """Make MPI keep the state with the window, where other objects find it."""
        # Never replace the attribute: its destructor would mark the window as freed.
        if _attribute_of(self) is None:
            MPI.Win.Set_attr(self, _KEYVAL.get(), _Attribute(self._state))

    def _made_of(self: _Made, comm: MPI.Intracomm) -> _Made:
        """Make the state of a new window, with the staging of its communicator."""
        self._share(WindowState())
        self._keep_state()
        if isinstance(comm, Base):
            self._state.staging, self._state.caller = comm.staging, comm.state
        return self

    def Free(self) -> None:
        """Free MPI's window; afterwards all its objects are null."""
        # MPI drops the attribute before it calls the program's functions for attributes, which may use the objects. So
        # this reference lives until MPI has freed the window.
        attribute = _attribute_of(self)
        super().Free()
        del attribute
