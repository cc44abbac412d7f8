"""What the library needs of the place where its kernels run: four groups of methods, which together are a device.

Addresses are those that kernels use. The GPU (`gpu`) and the emulator (`host`) have these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .handles import Event, Exported, Function, Peer, PythonFunction, Repeated, Shared, Upload, Watch


class Memory(Protocol):
    """Memory of this process, and what peers share of theirs."""

    def allocate_shared(self, nbytes: int) -> Shared:
        """Allocate zeroed memory that other processes can map."""

    def map_peer(self, handle: int | bytes, nbytes: int) -> Peer:
        """Map memory of another process, by its descriptor, which is closed, or by its IPC handle."""

    def allocate_watch(self, nbytes: int) -> Watch:
        """Allocate zeroed memory that kernels and this process' Python code can both read and write."""

    def owner(self, memory: Any, retire: Callable[[Callable[[], object]], object]) -> Any:
        """Return an object that keeps shared memory of this process alive; `retire` takes what frees it then."""

    def array(self, owner: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return the memory of an owner or a `Peer` as an array, CuPy's or NumPy's, which keeps the owner.

        A peer's array is invalid once its memory is unmapped.
        """

    def upload(self, data: bytes) -> Upload:
        """Copy bytes to device memory for kernels to read; the memory lives as long as what is returned."""

    def fill_zero(self, address: int, nbytes: int) -> None:
        """Zero memory; it is zero on return."""

    def is_device_pointer(self, address: int) -> bool:
        """Return whether kernels can use this address."""

    def room(self, address: int, nbytes: int) -> int:
        """Return how many of so many bytes at an address kernels can use."""

    def pieces(self, address: int, nbytes: int) -> list[int]:
        """Return how many of these bytes each allocation has; CUDA copies from one allocation at a time."""


class Kernels(Protocol):
    """Kernels from their source to their launch.

    Attributes
    ----------
    architecture
        What kernels are compiled for, such as ``"sm_90"``.
    compiles_together
        Whether the kernels of a file that have equal template arguments are compiled together, since the headers take
        longer than a kernel, or each when it is needed.
    loads_beside_kernels
        Whether kernels are loaded without a wait for what the process has on the device.
    """

    architecture: str
    compiles_together: bool
    loads_beside_kernels: bool

    def compile(
        self,
        file: str,
        instantiations: Sequence[str],
        called: PythonFunction | None = None,
        *,
        within: Sequence[str] = (),
    ) -> bytes:
        """Compile kernels of a file below the CUDA source folder, named as C++ expressions, and what they call.

        An image of all that `within` names serves too, if the cache has it.
        """

    def compile_ahead(self, file: str, several: Sequence[Sequence[str]]) -> None:
        """Have kernels of a file compiled in the background, each of `several` by itself; `compile` finds them then."""

    def load(self, image: bytes, called: PythonFunction | None = None) -> Mapping[str, Function]:
        """Load what `compile` returned for `called`, here or in another process with the same kind of device."""

    def launch(
        self, function: Function, grid: int, block: int, parameters: bytes, stream: Any, early: bool = False
    ) -> None:
        """Run a loaded kernel on `grid` blocks of `block` threads; `parameters` is its only one, a struct.

        With `early` it may begin before the kernel before it has ended, where the hardware allows it; it must call
        ``await_previous`` (cuda/protocol/signal.cuh).
        """

    def launch_arguments(
        self, function: Function, grid: int, block: int, arguments: Sequence[bytes], stream: Any
    ) -> None:
        """Run a loaded kernel that has any number of parameters."""

    def repeated(self, function: Function, grid: int, block: int, parameters: bytes, event: Any = None) -> Repeated:
        """Prepare a launch on a stream that is named later; each launch records the event, if given."""

    def together(self, several: Sequence[Any]) -> Repeated:
        """Return what makes the launches of several that `repeated` returned, one after the other."""

    def most_blocks(self, function: Function, block: int) -> int:
        """Return how many blocks of `block` threads can be on the device at once."""

    def blocks_per_multiprocessor(self, function: Function, block: int) -> int:
        """Return how many blocks of `block` threads can be on one multiprocessor at once."""


class Streams(Protocol):
    """The order in which work runs."""

    def current_stream(self) -> Any:
        """Return the stream that work goes to if the caller names none; None stands for that of the host device.

        The device becomes the current one, for the default stream is that of the current device.
        """

    def is_default(self, stream: Any) -> bool:
        """Return whether a stream is the one that programs have which choose none, and which waits for most others."""

    def can_be_captured(self, stream: Any) -> bool:
        """Return whether the program could capture a stream: neither the default one nor `private_stream`."""

    def private_stream(self) -> Any:
        """Return this thread's stream of ours, which waits for no other; made at the first use."""

    def named_stream(self, value: Any) -> Any:
        """Return the stream that a user names, by a handle or an object of a library that has one.

        Raises
        ------
        TypeError
            It is none.
        """

    def external_stream(self, pointer: int) -> Any:
        """Return a stream of another library, by the driver's handle."""

    def new_stream(self) -> Any:
        """Return a stream that waits for no other."""

    def synchronize(self, stream: Any = ...) -> None:
        """Wait until all that was launched on a stream, or on any if none is named, has finished."""

    def order(self, first: Any, then: Any) -> None:
        """Make what is enqueued on `then` from now on wait for what is on `first` now."""

    def order_eager(self, first: Any, then: Any) -> None:
        """Do so for two streams of which none is being captured: that is not asked."""

    def fork(self, stream: Any, side: Any) -> bool:
        """Do as `order`, and take `side` into the capture that `stream` is part of; False if it is in another one."""

    def call_between(self, stream: Any, function: Callable[[], object]) -> None:
        """Call a function of the host after what a stream has now, and before what it is given next.

        The host waits for the call, unless the stream is a thread of the host device.

        Raises
        ------
        NotSupported
            The stream is being captured.
        """

    def is_idle(self, stream: Any) -> bool:
        """Return whether all that was launched on a stream has finished; by any thread, True while it is captured."""

    def event(self) -> Event:
        """Return a new event."""

    def can_leave(self, stream: Any) -> bool:
        """Return whether work on a stream can continue on another one, behind an event that any thread may record."""

    def is_capturing(self, stream: Any) -> bool:
        """Return whether a stream is being captured in a graph."""

    def is_per_thread(self, stream: Any) -> bool:
        """Return whether a stream's handle names another stream in each thread."""

    def attached(self) -> AbstractContextManager[None]:
        """Let the thread use the device; its calls are no part of a graph that another thread captures."""


class Exports(Protocol):
    """Memory for messages between two processes, which need not call anything at the same time.

    Attributes
    ----------
    exports_are_copies
        Whether `export` returns a copy, made for one message.
    """

    exports_are_copies: bool

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
        """Allocate memory for the use of a stream, until what is returned is deleted."""

    def copy(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy between addresses of the device or the host, in the order of a stream."""

    def peek(self, address: int, nbytes: int) -> bytes:
        """Read device memory now, without waiting for any stream."""

    def poke(self, address: int, data: bytes) -> None:
        """Write device memory now, without waiting for any stream; it is no part of a graph that is captured."""


class Device(Memory, Kernels, Streams, Exports, Protocol):
    """The place where this process' kernels run.

    Attributes
    ----------
    name
        ``"gpu"`` or ``"host"``.
    ordinal
        The device's number in this process.
    kind
        The product's name, such as ``"NVIDIA H200"``.
    identity
        The same in two processes exactly if they use the same physical device.
    runs_concurrently
        Whether kernels of processes that share it run at the same time, not in turns.
    assigned_processes
        How many processes `make_current` has assigned to a device of the node, at most; 1 if it was not called.
    max_channels, threads
        The most blocks of an operation, unless the user sets another number, and the threads of each.
    multiprocessors
        The most blocks of an operation that the user may set: all of them run at once.
    nvlinked
        The identities of devices, its own among them, in whose memory it changes words atomically, and 128 bytes that a
        warp stores at once are seen whole (cuda/protocol/line.cuh). None: all.
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
