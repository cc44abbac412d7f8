"""Persistent requests of operations on host copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mpi4py import MPI

from ..errors import MPIError, NotSupported
from ..requests.host_receive import ENVELOPE_MAGIC
from ..requests.persistent import BY_HANDLE
from .completion import CopiesItself, abandon, forget, look_after_abandoned
from .copies import Copy, copy_back
from .requests import Prequest


class StagedPrequest(CopiesItself, Prequest):
    """A persistent request that copies device arrays to the host and results back.

    It copies to the host when it is started, and back when it completes.

    Parameters
    ----------
    request : MPI.Prequest
        mpi4py's request on the host copies.
    copies : sequence of Copy
    partitions : int
        Number of partitions of a partitioned operation; 0 for others.
    """

    def __new__(cls, request: MPI.Prequest, *_: Any) -> StagedPrequest:
        """Create mpi4py's request, which takes only `request`."""
        return super().__new__(cls, request)

    def __init__(self, request: MPI.Prequest, copies: Sequence[Copy], partitions: int) -> None:
        look_after_abandoned()
        self._copies, self._partitions = copies, partitions
        self._active = False
        BY_HANDLE[self.handle] = self

    def Free(self) -> None:
        """Free the request; if it has been started, the operation goes on."""
        if self._active:
            self._active = False
            abandon(MPI.Prequest(self), self._copies)
            forget(self)
        else:
            super().Free()

    def __del__(self) -> None:
        if not MPI.Is_finalized() and self and self._active:
            abandon(MPI.Prequest(self), self._copies)

    def prepare(self) -> None:
        """Copy the device arrays to the host, just before the operation is started.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST: it is active. Data received so far is kept.
        """
        if self._active:
            self._complete()
        for copy in self._copies:
            if not self._partitions or copy.written:  # partitions to send are copied by Pready
                copy.download()
        self._active = True

    def _complete(self) -> None:
        """Copy results back if mpi4py itself has completed the request, else raise."""
        index, over = MPI.Request.Testany([self])
        if over:
            self.copy_back()
        if not over or index != MPI.UNDEFINED:
            raise MPIError(MPI.ERR_REQUEST, "Start: the request is active; Wait for it first")

    def copy_back(self) -> None:
        """Copy the result to the device, if the operation was started and has completed.

        Raises
        ------
        NotSupported
            A device array's envelope was received, whose data kernels were to receive.
        """
        if self._active:
            self._active = False
            if any(copy.written and bytes(copy.host[: len(ENVELOPE_MAGIC)]) == ENVELOPE_MAGIC for copy in self._copies):
                raise NotSupported(
                    "Recv_init: the message is a device array's, from Send or Isend, whose data kernels move; receive "
                    "it by Recv or Irecv, or send it by Send_init"
                )
            copy_back(self._copies)

    def Wait(self, status: MPI.Status | None = None) -> Any:
        """Wait, and copy the result to the device."""
        super().Wait(status)
        self.copy_back()
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Test, and copy the result to the device if the operation has completed."""
        flag = super().Test(status)
        if flag:
            self.copy_back()
        return flag

    def wait(self, status: MPI.Status | None = None) -> Any:
        """Wait, copy the result to the device, and return mpi4py's message."""
        message = super().wait(status)
        self.copy_back()
        return message

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        """Test, and copy the result to the device if the operation has completed."""
        flag, message = super().test(status)
        if flag:
            self.copy_back()
        return flag, message

    def Pready(self, partition: int) -> None:
        """Copy a partition to the host, and mark it ready."""
        self._download([partition])
        super().Pready(partition)

    def Pready_range(self, partition_low: int, partition_high: int) -> None:
        """Copy a range of partitions to the host, and mark them ready."""
        self._download(range(partition_low, partition_high + 1))
        super().Pready_range(partition_low, partition_high)

    def Pready_list(self, partitions: Sequence[int]) -> None:
        """Copy a list of partitions to the host, and mark them ready."""
        self._download(partitions)
        super().Pready_list(partitions)

    def Parrived(self, partition: int) -> bool:
        """Return whether a partition has arrived; copy arrived data to the device."""
        flag = super().Parrived(partition)
        if flag:
            copy_back(self._copies)
        return flag

    def _download(self, partitions: Iterable[int]) -> None:
        for copy in self._copies:
            for partition in partitions:
                copy.download(copy.partition(partition, self._partitions))
