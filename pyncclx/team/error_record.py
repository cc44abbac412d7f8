"""The record of what went wrong in the kernels of a communicator on this rank; each call checks it."""

from __future__ import annotations

from ..backends import Device
from ..memory.error_words import FAILURE, NBYTES, OVERFLOW, read
from . import kernel_errors


class ErrorRecord:
    """Words that kernels write, and their claims: a kernel sets a claim, so that one alone writes the words.

    Attributes
    ----------
    address : int
        Of the words: `Team::watch`.
    claims : list of int
        Addresses of the claims on `Watch::overflow`, one in each lease or workspace of the communicator.
    """

    def __init__(self, device: Device, rank: int) -> None:
        self._device, self._rank = device, rank
        self._watch = device.allocate_watch(NBYTES)
        self._words = self._watch.array.data  # a third of the time of indexing the array
        self.address = self._watch.address
        self.claims: list[int] = []

    def check(self) -> None:
        """Raise what a kernel has recorded since the last look.

        Raises
        ------
        PeerTimeout, Aborted
            From then on at every call: ranks no longer agree where they are. Free the communicator.
        CapacityExceeded, ValueError, MPI.Exception
            Once; the communicator goes on. A call that was about to be launched has not been made then.
        """
        if self._words[FAILURE]:
            raise kernel_errors.failure(read(self._watch), self._rank)
        if self._words[OVERFLOW]:
            error = kernel_errors.overflow(read(self._watch, "i8"), self._rank)
            self._words[OVERFLOW] = 0  # then the claims: a kernel that has one may write the record at once
            for claim in self.claims:
                self._device.fill_zero(claim, 4)
            raise error

    def abort(self) -> None:
        """Make every kernel of this communicator on this rank leave its waits."""
        self._watch.array[0] = 1

    def close(self) -> None:
        """Free the words."""
        self._watch.close()
