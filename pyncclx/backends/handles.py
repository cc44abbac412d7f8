"""What a device returns: memory in its forms, events, and launches that can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

#: A kernel that a device has loaded; only that device can use it.
Function = Any


class PythonFunction(Protocol):
    """A program's Python function that kernels call, and the types that Numba compiles it for."""

    @property
    def fn(self) -> Callable[..., Any]: ...

    @property
    def types(self) -> Any: ...  # numba_functions.Types


class Shared(Protocol):
    """Zeroed device memory of this process that other processes can map, by descriptor or by IPC handle."""

    address: int
    nbytes: int
    fd: int
    ipc_handle: bytes  # empty where the memory travels as a descriptor

    def close_fd(self) -> None:
        """Close the descriptor: all processes that need the memory have mapped it."""

    def close(self) -> None:
        """Unmap the memory and close its descriptor. Peers that mapped it keep their mapping."""


class Peer(Protocol):
    """Another process' shared memory, mapped into this process."""

    address: int

    def close(self) -> None:
        """Unmap the memory."""


class Upload(Protocol):
    """Device memory that is freed with this object: constant bytes, or the temporary memory of a stream."""

    address: int


class Watch(Protocol):
    """Memory that the host and kernels can both access at any time, for abort requests and error records."""

    array: npt.NDArray[np.uint64]
    address: int

    def close(self) -> None:
        """Free the memory; `array` must not be used afterwards."""


class Event(Protocol):
    """A place in the order of a stream."""

    def record(self, stream: Any) -> None:
        """Move the event to the end of the work that the stream has now."""

    def record_eager(self, stream: Any) -> None:
        """Do so where the stream is not being captured; cheaper than `record`."""

    def is_over(self) -> bool:
        """Return whether the work before the event is over; True in a graph that is being captured."""

    def order(self, then: Any) -> None:
        """Make what is enqueued on `then` from now on wait for the work before the event."""

    def synchronize(self) -> None:
        """Wait on the host for the work before the event."""


class Repeated(Protocol):
    """One or several kernels with their parameters, to be launched again and again."""

    def launch(self, stream: Any) -> None:
        """Launch them on a stream, and record their events behind them."""

    def launch_aside(self, stream: Any, aside: Any) -> bool:
        """Launch them on `aside`, after what `stream` has now; False, and nothing is done, if `stream` is captured.

        `aside` is in no capture.
        """


@dataclass(frozen=True, slots=True)
class Exported:
    """A piece of an allocation that other processes can open by a handle of a few bytes, without a meeting.

    Attributes
    ----------
    address : int
        Address of the allocation in this process.
    nbytes : int
        Length of the allocation.
    handle : bytes
        Opens the allocation; 64 bytes or less, without meaning in trailing zeros.
    identity : int
        Differs from that of other allocations that have been at this address.
    offset : int
        Where the piece begins in the allocation, in bytes.
    memory : object
        Closed with the export; None if there is nothing to close.
    """

    address: int
    nbytes: int
    handle: bytes
    identity: int = 0
    offset: int = 0
    memory: Any = None

    def close(self) -> None:
        """Free what the export itself allocated. Processes that have opened it keep it."""
        if self.memory is not None:
            self.memory.close()
