"""Requests of receives of host arrays, whose message may turn out to be a device array's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from mpi4py import MPI

#: Begins every envelope; nobody's data begins so by accident.
ENVELOPE_MAGIC = bytes.fromhex("f0b1c6e59d3a4e8c9e21d47a7d05c3ab")


class HostReceiveRequest(MPI.Request):
    """mpi4py's request of a receive of a host array, with a look at what has come."""

    _check: Callable[[MPI.Status], None]

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait, and look."""
        if self:
            status = MPI.Status() if status is None else status
            super().Wait(status)
            self._check(status)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether it is over, and then look."""
        if self:
            status = MPI.Status() if status is None else status
            if not super().Test(status):
                return False
            self._check(status)
        return True

    def is_over(self, status: MPI.Status, errors: list[Exception]) -> bool:
        """As `Test`, but what goes wrong joins the errors."""
        try:
            return self.Test(status)
        except Exception as error:
            errors.append(error)
            return True


def wait_for_all(
    requests: Sequence[MPI.Request], checked: dict[int, HostReceiveRequest], known: list[MPI.Status]
) -> Literal[True]:
    """Wait for mpi4py's requests, those by their index among them, and look. `known`: a status for each."""
    over = MPI.Request.Waitall(requests, known)
    for index, request in checked.items():
        request._check(known[index])
    return over
