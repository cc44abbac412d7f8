"""Requests of receives of host arrays, whose message may turn out to be a device array's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from mpi4py import MPI

#: Begins every envelope, and other data only by an accident of 2**-128.
ENVELOPE_MAGIC = bytes.fromhex("f0b1c6e59d3a4e8c9e21d47a7d05c3ab")


class HostReceiveRequest(MPI.Request):
    """mpi4py's request of a receive of a host array, which checks the message when it has arrived.

    Attributes
    ----------
    check : callable
        Called once with the status of the message. It replaces an envelope by the data.
    """

    check: Callable[[MPI.Status], None]

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for the message, and check it."""
        if self:
            status = MPI.Status() if status is None else status
            super().Wait(status)
            self.check(status)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the message has arrived; if so, check it."""
        if self:
            status = MPI.Status() if status is None else status
            if not super().Test(status):
                return False
            self.check(status)
        return True

    def is_over(self, status: MPI.Status, errors: list[Exception]) -> bool:
        """Return what `Test` does; append an error to `errors` instead of raising it."""
        try:
            return self.Test(status)
        except Exception as error:
            errors.append(error)
            return True
