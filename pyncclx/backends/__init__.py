"""Where kernels run: the protocol that a device fulfils, and the choice of this process' device."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..system import settings
from . import host
from .exported import Exported

#: A kernel that a device has loaded; only that device knows what it is.
Function = Any


class Shared(Protocol):
    """Zeroed device memory of this process that other processes can map, by descriptor or by IPC handle."""

    address: int
    nbytes: int
    fd: int
    ipc_handle: bytes  # empty: it travels as a descriptor

    def close_fd(self) -> None:
        """Close the descriptor: every process that wants the memory has mapped it."""

    def close(self) -> None:
        """Unmap the memory and close its descriptor. Peers that mapped it keep their mapping."""


class Peer(Protocol):
    """Another process' shared memory, mapped into this process."""

    address: int

    def close(self) -> None:
        """Unmap the memory."""


class Upload(Protocol):
    """Constant bytes in device memory."""

    address: int


class Watch(Protocol):
    """Memory that the host and kernels see at once, for abort requests and error records."""

    array: npt.NDArray[np.uint64]
    address: int

    def close(self) -> None:
        """Free the memory; `array` must not be used afterwards."""


class Event(Protocol):
    """A place in the order of a stream."""

    def record(self, stream: Any) -> None:
        """Be where the stream's work ends by now."""

    def is_over(self) -> bool:
        """Tell whether the work before it is over; in a graph that is being captured it counts as over."""

    def order(self, then: Any) -> None:
        """Make what is enqueued on `then` from now on wait for the work before it."""

    def synchronize(self) -> None:
        """Wait on the host for the work before it."""


class Repeated(Protocol):
    """A kernel with its parameters, to be launched again and again."""

    def launch(self, stream: Any) -> None:
        """Launch it on a stream; its event is the end of that."""


class Device(Protocol):
    """What the library needs of the place where its kernels run. Addresses are those that kernels use.

    Attributes
    ----------
    name
        ``"gpu"`` or ``"host"``.
    ordinal
        The device's number in this process.
    kind
        What it is called, such as ``"NVIDIA H200"``.
    identity
        The same on two processes exactly if they use the same physical device.
    at_once
        Whether kernels of processes that share it run at the same time, not in turns.
    dealt
        How many processes `make_current` has given such a device, at most; 1 as long as it has not.
    architecture
        What kernels are compiled for, such as ``"sm_90"``.
    max_channels, threads
        The most blocks of an operation, unless somebody wants others, and the threads of each.
    most_channels
        The most such blocks that run at once.
    nvlinked
        The identities of devices, its own among them, in whose memory it changes words atomically, and 128 bytes that a
        warp stores at once are seen whole (cuda/protocol/line.cuh). None: all.
    compiles_whole_files
        Whether all kernels of a file are compiled at once, or each when it is needed.
    """

    name: str
    ordinal: int
    kind: str
    identity: str
    at_once: bool
    dealt: int
    architecture: str
    max_channels: int
    most_channels: int
    threads: int
    nvlinked: frozenset[str] | None
    compiles_whole_files: bool

    def allocate_shared(self, nbytes: int) -> Shared:
        """Allocate zeroed memory that other processes can map."""

    def map_peer(self, handle: int | bytes, nbytes: int) -> Peer:
        """Map memory of another process, by its descriptor, which is closed, or by its IPC handle."""

    def allocate_watch(self, nbytes: int) -> Watch:
        """Allocate zeroed memory that kernels and this process' Python code can both read and write."""

    def owner(self, memory: Any) -> Any:
        """Return what keeps shared memory of this process: when nobody holds it any more, the memory goes."""

    def array(self, owner: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return the memory of an owner as an array, CuPy's or NumPy's, which holds the owner."""

    def upload(self, data: bytes) -> Upload:
        """Copy bytes to device memory for kernels to read; the memory lives as long as what is returned."""

    def fill_zero(self, address: int, nbytes: int) -> None:
        """Zero memory, at once."""

    def synchronize(self, stream: Any = None) -> None:
        """Wait until all that was launched on a stream, or on any, has finished."""

    def compile(self, file: str, instantiations: list[str]) -> bytes:
        """Compile kernels of a file below the CUDA source folder, named as C++ expressions."""

    def compile_linked(self, file: str, instantiations: list[str], fn: Any, dtype: Any) -> bytes:
        """The same for kernels with a Python function in them; `dtype` are its numba_code.Types."""

    def load_linked(self, image: bytes, fn: Any, dtype: Any) -> Mapping[str, Function]:
        """Load what `compile_linked` returned."""

    def load(self, image: bytes) -> Mapping[str, Function]:
        """Load what `compile` returned, here or on another process with the same kind of device."""

    def peer_array(self, peer: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a peer's memory, as it is mapped here, as an array; it is gone when that is unmapped."""

    def launch(
        self, function: Function, grid: int, block: int, parameters: bytes, stream: Any, early: bool = False
    ) -> None:
        """Run a loaded kernel on `grid` blocks of `block` threads; `parameters` is its only one, a struct.

        With `early` it may begin before the kernel before it has ended, where there is hardware for that; it must call
        ``await_previous`` (cuda/protocol/signal.cuh).
        """

    def launch_arguments(
        self, function: Function, grid: int, block: int, arguments: Sequence[bytes], stream: Any
    ) -> None:
        """The same for a kernel with any number of parameters."""

    def repeated(self, function: Function, grid: int, block: int, parameters: bytes, event: Any = None) -> Repeated:
        """Return what `launch` is told but for the stream, made ready; each launch records the event, if given."""

    def together(self, several: Sequence[Any]) -> Repeated:
        """Return what makes the launches of several that `repeated` returned, one after the other."""

    def most_blocks(self, function: Function, block: int) -> int:
        """Return how many blocks of so many threads can be on the device at once."""

    def blocks_each(self, function: Function, block: int) -> int:
        """Return how many of them can be on one multiprocessor."""

    def current_stream(self) -> Any:
        """Return the stream that work goes to if the caller names none."""

    def external_stream(self, pointer: int) -> Any:
        """Return a stream of another library, by the handle that the driver knows it by."""

    def new_stream(self) -> Any:
        """Return a stream that waits for no other."""

    def can_leave(self, stream: Any) -> bool:
        """Tell whether any thread may put an event in the order of a stream, to go on elsewhere after that."""

    def attached(self) -> AbstractContextManager[None]:
        """Let the thread use the device; what it does then is no part of a graph that another one captures."""

    def order(self, first: Any, then: Any) -> None:
        """Make what is enqueued on `then` from now on wait for what is on `first` by now."""

    def event(self) -> Event:
        """Return an event to record."""

    def is_device_pointer(self, address: int) -> bool:
        """Tell whether kernels can use this address."""

    # Messages between two processes

    exports_are_copies: bool  #: whether what `export` gives is a copy, made for one message

    def allocate_exported(self, nbytes: int) -> Exported:
        """Allocate zeroed memory that any process can open, for the life of this process."""

    def allocation(self, address: int) -> Exported | None:
        """Return the allocation that an address is in, for other processes to open; None if they cannot."""

    def export(self, address: int, nbytes: int) -> Exported | None:
        """Let other processes open the memory at an address; None if that memory cannot be opened."""

    def open_exported(self, handle: bytes, nbytes: int) -> Peer:
        """Map the allocation of another process that a handle names.

        Raises
        ------
        OSError, RuntimeError
            If it cannot be opened here.
        """

    def allocate_temporary(self, nbytes: int, stream: Any) -> Upload:
        """Allocate memory for the use of a stream, until what is returned goes."""

    def copy(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy between addresses of the device or the host, in the order of a stream."""

    def peek(self, address: int, nbytes: int) -> bytes:
        """Read device memory now, whatever streams are doing."""

    def is_capturing(self, stream: Any) -> bool:
        """Tell whether a stream is being captured in a graph."""


@functools.cache
def select() -> Device:
    """Return this process' device; the first call creates it.

    Returns
    -------
    Device
        The emulator if the environment says ``PYNCCLX_DEVICE=host``, otherwise the GPU.

    Raises
    ------
    ValueError
        If ``PYNCCLX_DEVICE`` is neither ``host``, ``gpu`` nor empty.
    ImportError
        Without what a GPU needs.
    """
    if settings.DEVICE.get() == "host":
        return host.Device()
    device: Device = _gpu().Device()
    return device


def _gpu() -> Any:
    try:
        return importlib.import_module("pyncclx.backends.gpu")
    except (ImportError, OSError) as error:  # packages, or the driver's library
        raise ImportError(
            f"GPUs need a driver, CuPy and CUDA's packages ({error}): pip install 'pyncclx[cuda13]', or cuda12 with "
            "a driver older than 580; without a GPU, PYNCCLX_DEVICE=host emulates the kernels on the CPU"
        ) from error


def make_current(local_rank: int, local_size: int) -> int:
    """Make the GPU of this local rank, one of so many, current, before this process has used any; return its number.

    Raises
    ------
    RuntimeError
        If this process' communicators already use another GPU.
    """
    if settings.DEVICE.get() == "host":
        return 0
    ordinal: int = _gpu().make_current(local_rank, local_size)
    if select.cache_info().currsize and select().ordinal != ordinal:
        raise RuntimeError(
            f"communicators of this process already use GPU {select().ordinal}, not {ordinal}: "
            "call select_device() before the first operation on device arrays"
        )
    return ordinal
