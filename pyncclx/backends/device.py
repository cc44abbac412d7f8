"""Interface of a device that runs kernels, in four groups of methods.

The GPU (`gpu`) and the emulator (`host`) implement the methods. Addresses are those that kernels use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .handles import Event, Exported, Function, Peer, PythonFunction, Repeated, Shared, Upload, Watch


class Memory(Protocol):
    """Memory of this process, and memory that peers share with it."""

    def allocate_shared(self, nbytes: int) -> Shared:
        """Allocate zeroed memory that other processes can map."""

    def map_peer(self, handle: int | bytes, nbytes: int) -> Peer:
        """Map a peer's memory by IPC handle (bytes), or by descriptor, which is closed."""

    def allocate_watch(self, nbytes: int) -> Watch:
        """Allocate zeroed memory that kernels and the host read and write."""

    def owner(self, memory: Any, retire: Callable[[Callable[[], object]], object]) -> Any:
        """Return an object that keeps shared memory of this process alive.

        When the object is deleted, it passes the function that frees the memory to `retire`.
        """

    def array(self, owner: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return the memory of an owner or a `Peer` as an array (CuPy or NumPy).

        The array keeps the owner alive. A peer's array is invalid once its memory is unmapped.
        """

    def upload(self, data: bytes) -> Upload:
        """Copy bytes to device memory for kernels to read; the result owns the memory."""

    def fill_zero(self, address: int, nbytes: int) -> None:
        """Set memory to zero before returning."""

    def is_device_pointer(self, address: int) -> bool:
        """Return whether kernels can use this address."""

    def room(self, address: int, nbytes: int) -> int:
        """Return how many bytes kernels can use from an address on, at most `nbytes`."""

    def pieces(self, address: int, nbytes: int) -> list[int]:
        """Return the lengths of a range's pieces, which are in one allocation each."""


class Kernels(Protocol):
    """Compilation, loading and launch of kernels.

    Attributes
    ----------
    architecture
        Target of the compiler, such as ``"sm_90"``.
    compiles_together
        True: kernels of a file with equal template arguments are compiled together, because the headers take longer to
        compile than a kernel. False: each kernel is compiled when it is needed.
    loads_beside_kernels
        Whether a kernel can be loaded while the process's other kernels run.
    launches_at_once
        Whether every launch returns before its kernel has ended. If false, a launch on the stream None waits for it.
    """

    architecture: str
    compiles_together: bool
    loads_beside_kernels: bool
    launches_at_once: bool

    def compile(
        self,
        file: str,
        instantiations: Sequence[str],
        called: PythonFunction | None = None,
        *,
        within: Sequence[str] = (),
    ) -> bytes:
        """Compile kernels and the function that they call, and return an image for `load`.

        `file` is relative to the CUDA source folder. `instantiations` names the kernels as C++ expressions. If an image
        with all kernels of `within` is cached, it is returned instead of a new one.
        """

    def compile_ahead(self, file: str, several: Sequence[Sequence[str]]) -> None:
        """Start compiling kernels of a file in the background; `compile` finds them later.

        Each element of `several` is one compilation.
        """

    def load(self, image: bytes, called: PythonFunction | None = None) -> Mapping[str, Function]:
        """Load an image that `compile` returned for `called`.

        The image may come from another process with the same kind of device.
        """

    def launch(
        self, function: Function, grid: int, block: int, parameters: bytes, stream: Any, early: bool = False
    ) -> None:
        """Launch a loaded kernel on `grid` blocks of `block` threads.

        `parameters` is the kernel's only parameter, a struct. With `early`, the kernel may begin before the previous
        one has ended, where the hardware allows it. It must then call ``await_previous`` (cuda/protocol/signal.cuh).
        """

    def launch_arguments(
        self, function: Function, grid: int, block: int, arguments: Sequence[bytes], stream: Any
    ) -> None:
        """Launch a loaded kernel with any number of parameters."""

    def repeated(self, function: Function, grid: int, block: int, parameters: bytes, event: Any = None) -> Repeated:
        """Prepare a launch whose stream is given later; each launch records `event`."""

    def together(self, several: Sequence[Any]) -> Repeated:
        """Combine several prepared launches into one that runs them in order."""

    def most_blocks(self, function: Function, block: int) -> int:
        """Return how many blocks of `block` threads can be on the device at once."""

    def blocks_per_multiprocessor(self, function: Function, block: int) -> int:
        """Return how many blocks of `block` threads can be on one multiprocessor at once."""


class Streams(Protocol):
    """Streams, events, and the order in which work runs."""

    def current_stream(self) -> Any:
        """Return the stream for calls that name none; None on the host device.

        The device becomes the current one, because CUDA's default stream is that of the current device.
        """

    def can_be_captured(self, stream: Any) -> bool:
        """Return whether a stream is neither the default one nor `private_stream`."""

    def private_stream(self) -> Any:
        """Return this thread's private non-blocking stream, created at first use."""

    def current_and_private(self) -> tuple[Any, Any]:
        """Return the current stream, and a private one if the first is CUDA's default.

        Otherwise the second value is None. Use the private stream if there is one, because CUDA's default stream waits
        for most other streams.
        """

    def named_stream(self, value: Any) -> Any:
        """Return the stream for a user's argument: a handle, or a library's stream object.

        Raises
        ------
        TypeError
            If the argument is no stream.
        """

    def external_stream(self, pointer: int) -> Any:
        """Return another library's stream, given the driver's handle."""

    def new_stream(self) -> Any:
        """Return a new non-blocking stream."""

    def synchronize(self, stream: Any = ...) -> None:
        """Wait on the host for all work on a stream; without an argument, on all streams."""

    def order(self, first: Any, then: Any) -> None:
        """Make later work on `then` wait for the work that is now on `first`."""

    def order_eager(self, first: Any, then: Any) -> None:
        """Order two streams like `order`, without checking that neither is in a capture."""

    def fork(self, stream: Any, side: Any) -> bool:
        """Make `side` wait for `stream`, and add `side` to the capture of `stream`.

        Return False if `side` is in another capture.
        """

    def call_between(self, stream: Any, function: Callable[[], object]) -> None:
        """Call a host function after the stream's present work, before its later work.

        The host waits until the function has returned, except on a stream of the host device other than None.

        Raises
        ------
        NotSupported
            If the stream is being captured.
        """

    def is_idle(self, stream: Any) -> bool:
        """Return whether all work on a stream has finished; True while it is captured.

        Any thread may call it.
        """

    def event(self) -> Event:
        """Return a new event."""

    def can_leave(self, stream: Any) -> bool:
        """Return whether any thread can record an event on a stream.

        If so, work can leave the stream: another stream waits for the event and continues.
        """

    def is_capturing(self, stream: Any) -> bool:
        """Return whether a stream is being captured in a graph."""

    def is_per_thread(self, stream: Any) -> bool:
        """Return whether a stream's handle names a different stream in each thread."""

    def attached(self) -> AbstractContextManager[None]:
        """Let this thread use the device while other threads capture graphs."""


class Exports(Protocol):
    """Interface to share memory with one other process, without a collective call.

    Attributes
    ----------
    exports_are_copies
        Whether `export` copies the data, so that its result is valid for one message only.
    """

    exports_are_copies: bool

    def allocate_exported(self, nbytes: int) -> Exported:
        """Allocate zeroed memory that other processes can open until this process ends."""

    def allocation(self, address: int) -> Exported | None:
        """Return the allocation at an address; None if others cannot open it."""

    def export(self, address: int, nbytes: int) -> Exported | None:
        """Return memory with a handle for other processes; None if they cannot open it."""

    def open_exported(self, handle: bytes, nbytes: int) -> Peer:
        """Map an allocation of another process by its handle.

        Raises
        ------
        OSError, RuntimeError
            If it cannot be opened in this process.
        """

    def allocate_temporary(self, nbytes: int, stream: Any) -> Upload:
        """Allocate memory for use on a stream, until the returned object is deleted."""

    def copy(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy between addresses of the device or the host, in stream order."""

    def copy_pageable(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        """Wait for a stream, then copy from or to pageable host memory."""

    def peek(self, address: int, nbytes: int) -> bytes:
        """Read device memory now, without waiting for any stream."""

    def poke(self, address: int, data: bytes) -> None:
        """Write device memory now, without waiting for a stream and outside any capture."""


class Device(Memory, Kernels, Streams, Exports, Protocol):
    """Device that runs this process's kernels.

    Attributes
    ----------
    name
        ``"gpu"`` or ``"host"``.
    ordinal
        The device's number in this process.
    kind
        The product's name, such as ``"NVIDIA H200"``.
    identity
        Equal in two processes if and only if they use the same physical device.
    runs_concurrently
        Whether kernels of several processes run on the device at the same time, without time slicing.
    assigned_processes
        Largest number of processes that `make_current` assigned to one device of the node; 1 if it was not called.
    max_channels, threads
        Default limit on blocks of an operation, and threads of each block.
    multiprocessors
        Upper limit on the blocks of an operation that a user may set: as many as run at once.
    nvlinked
        Identities of the devices, including this one, to which NVLink connects. In their memory, atomic operations of
        this device work, and 128 bytes that one of its warps stores at once arrive as a whole (cuda/protocol/line.cuh).
        None: all devices.
    """

    name: str
    ordinal: int
    kind: str
    identity: str
    runs_concurrently: bool
    assigned_processes: int
    max_channels: int
    multiprocessors: int
    threads: int
    nvlinked: frozenset[str] | None
