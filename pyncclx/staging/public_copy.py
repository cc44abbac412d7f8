"""The public copy of a window's device array, for MPI's separate memory model.

MPI exposes the public copy, in pinned host memory; the device array is the private one. In that model a rank must not
store to its window between two synchronizations while other ranks update it. So a byte that differs from its value at
the last synchronization has changed on one side only. Each direction copies only the bytes that its side has changed,
because other ranks may be updating the public copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..team.streams import Caller, wait_for_program
from .copies import Copy


class PublicCopy(Copy):
    """The copy that other ranks access; `host` is a snapshot of one side.

    Parameters
    ----------
    array : device array
    name : str
        For messages.
    caller : Caller
        Chooses streams.

    Attributes
    ----------
    public : ndarray of bytes
        The memory of MPI's window.

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
        """Make the device's stores visible to other ranks."""
        before = self._before
        wait_for_program(self._device, self._caller)  # it may have stored on any of its streams
        self.download()  # sets `_before` to the device's bytes
        np.copyto(self.public, self.host, where=self.host != before)

    def take(self) -> None:
        """Copy to the device what other ranks have changed; return after the copy."""
        self.host[...] = self.public
        self.upload()
        self._before = self.host.copy()

    def array(self) -> Any:
        """Return the device array's memory as an array of bytes."""
        return self._device.array(self, (self.nbytes,), "u1")
