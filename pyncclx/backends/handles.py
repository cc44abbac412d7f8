"""Objects that a device returns: memory, events, and prepared launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

#: A kernel that a device has loaded; only that device can use it.
Function = Any


class PythonFunction(Protocol):
    """A Python function of the program that kernels call, with its types for Numba."""

    @property
    def fn(self) -> Callable[..., Any]: ...

    @property
    def types(self) -> Any: ...  # compilers/numba_functions.py: Types


class Shared(Protocol):
    """Zeroed device memory of this process that other processes can map.

    Other processes map it by descriptor or by IPC handle.
    """

    address: int
    nbytes: int
    fd: int
    ipc_handle: bytes  # empty if the memory is shared by descriptor

    def close_fd(self) -> None:
        """Close the descriptor, after all processes that need the memory have mapped it."""

    def close(self) -> None:
        """Unmap the memory and close its descriptor; peers keep their mappings."""


class Peer(Protocol):
    """Shared memory of another process, mapped into this process."""

    address: int

    def close(self) -> None:
        """Unmap the memory."""


class Upload(Protocol):
    """Device memory freed with this object; it is constant, or temporary on a stream."""

    address: int


class Watch(Protocol):
    """Memory that host and kernels access at any time: abort words and error records."""

    array: npt.NDArray[np.uint64]
    address: int

    def close(self) -> None:
        """Free the memory; `array` must not be used afterwards."""


class Event(Protocol):
    """A position in the work of a stream."""

    def record(self, stream: Any) -> None:
        """Record the event on a stream."""

    def record_eager(self, stream: Any) -> None:
        """Record the event on a stream that is not being captured; cheaper than `record`."""

    def is_over(self) -> bool:
        """Return whether the work before the event has finished; True during a capture."""

    def order(self, then: Any) -> None:
        """Make later work on `then` wait for the event."""

    def order_eager(self, then: Any) -> None:
        """Order a stream like `order`, without checking that neither is in a capture."""

    def synchronize(self) -> None:
        """Wait on the host for the event."""


class Repeated(Protocol):
    """Prepared launch of one or several kernels with their parameters.

    Attributes
    ----------
    begun : list of bool
        One item, which a launch sets to true. Callers set it to false before a launch, to find out after an interrupt
        whether the launch has begun. A joint launch sets its own item on a GPU, and those of its parts on the host
        device. A captured launch sets none.
    """

    begun: list[bool]

    def launch(self, stream: Any) -> None:
        """Launch the kernels on a stream, and record their events after them."""

    def launch_aside(self, stream: Any, aside: Any) -> bool:
        """Launch on `aside` after the work now on `stream`.

        Do nothing and return False if `stream` is being captured. `aside` is in no capture.
        """


@dataclass(frozen=True, slots=True)
class Exported:
    """Part of an allocation that another process can open by a short handle.

    Attributes
    ----------
    address : int
        Address of the allocation in this process.
    nbytes : int
        Length of the allocation.
    handle : bytes
        Handle to open the allocation: at most 64 bytes; trailing zeros are ignored.
    identity : int
        Number that distinguishes the allocation from earlier ones at this address.
    offset : int
        Offset of the part in the allocation, in bytes.
    memory : object
        Memory to close with the export; None if there is none.
    """

    address: int
    nbytes: int
    handle: bytes
    identity: int = 0
    offset: int = 0
    memory: Any = None

    def close(self) -> None:
        """Free memory that the export allocated; processes that opened it keep access."""
        if self.memory is not None:
            self.memory.close()
