"""The public copy of a window's device array, in pinned host memory: MPI's separate memory model.

MPI exposes the public copy; the device array is the private one. In that model nothing of a window is stored to here
while other ranks update any of it, from one synchronisation to the next. So a byte that differs from what both copies
had at the last one has been changed on one side only. Each direction moves the bytes that its side has changed, and no
others: other ranks may be updating the public copy meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..team.streams import Caller, wait_for_program
from .copies import Copy


class PublicCopy(Copy):
    """What other ranks access in the place of a device array. `host` is a snapshot of one side.

    Parameters
    ----------
    array : device array
    name : str
        For messages.
    caller : Caller
        For streams.

    Attributes
    ----------
    public : ndarray of bytes
        MPI's window is made of it.

    Raises
    ------
    BufferError
        The array is read-only.
    """

    def __init__(self, array: Any, name: str, caller: Caller) -> None:
        super().__init__(array, name, written=True, whole=False, caller=caller)
        if self._readonly:
            raise BufferError(f"{name} is read-only")
        self.download()
        self.public = self._mover.allocate(self.nbytes)
        self.public[...] = self.host

    def give(self) -> None:
        """Make what the device has stored visible to other ranks."""
        before = self._before
        wait_for_program(self._device, self._caller)  # which may have stored to the array on any of its streams
        self.download()  # which remembers what the device has now
        np.copyto(self.public, self.host, where=self.host != before)

    def take(self) -> None:
        """Make what other ranks have changed visible on the device; it is there when this returns."""
        self.host[...] = self.public
        self.upload()
        self._before = self.host.copy()

    def array(self) -> Any:
        """The device array's memory as an array of bytes."""
        return self._device.array(self, (self.nbytes,), "u1")
