"""The windows of a communicator, and their table of addresses for kernels.

A `Registration` is the window of an existing array, whose memory all ranks map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..backends import Device
from ..memory.mapped import Window
from ..memory.parameters import WINDOW_ROW_NBYTES, BufferLocations, pack_window
from ..memory.table import Table


class TeamWindows:
    """A communicator's windows by their numbers.

    Attributes
    ----------
    by_number : dict of int to Window
    """

    def __init__(self, device: Device) -> None:
        self.by_number: dict[int, Window] = {}
        self._spans: list[tuple[int, int, int]] = []  # begin, end and number of each window
        self._registered: dict[int, object] = {}  # arrays to keep, by their windows' numbers
        self._table = Table(device, WINDOW_ROW_NBYTES)

    def __len__(self) -> int:
        return len(self.by_number)

    def __getitem__(self, number: int) -> Window:
        return self.by_number[number]

    def __iter__(self) -> Iterator[Window]:
        return iter(self.by_number.values())

    @property
    def next_number(self) -> int:
        """The lowest unused number; the same on all ranks, which add windows in one order."""
        return next(number for number in range(len(self) + 1) if number not in self.by_number)

    def add(self, window: Window, array: object = None) -> None:
        """Add a window; keep the array whose memory was registered."""
        self.by_number[window.number] = window
        self._registered[window.number] = array
        begin, end = window.memory.address, window.memory.address + window.memory.nbytes
        if begin < end:
            self._spans.append((begin, end, window.number))
        self._table.set_row(window.number, pack_window(window.bases))

    def remove(self, window: Window) -> None:
        """Unmap the peers' memory of a window, and free its number."""
        self.by_number.pop(window.number, None)
        self._registered.pop(window.number, None)
        self._spans = [span for span in self._spans if span[2] != window.number]
        window.close()

    def clear_row(self, number: int) -> None:
        """Overwrite the table's row of a removed window with zeros."""
        self._table.set_row(number, bytes(WINDOW_ROW_NBYTES))

    def held(self) -> tuple[object, ...]:
        """Return the objects that keep this rank's mapped memory alive."""
        return *self, *self._registered.values()

    @property
    def table(self) -> int:
        """Address of the table of all windows' addresses on all ranks; 0 without windows."""
        return self._table.address

    def at(self, address: int) -> Window | None:
        """Return the window that contains an address of this rank; None if there is none."""
        return next((window for window in self if window.holds(address)), None)

    def places(self, send: int, recv: int) -> bytes:
        """Return the locations of a call's first (send) and last (receive) address."""
        send_window, send_begin = self._place(send)
        recv_window, recv_begin = self._place(recv)
        return BufferLocations(
            send_window=send_window, send_begin=send_begin, recv_window=recv_window, recv_begin=recv_begin
        ).pack()

    def _place(self, address: int) -> tuple[int, int]:
        for begin, end, number in self._spans:
            if begin <= address < end:
                return number + 1, begin
        return 0, 0

    def close(self) -> None:
        """Unmap all windows."""
        for window in self:
            window.close()
        self.by_number.clear()
        self._registered.clear()
        self._spans.clear()


class Registration:
    """The memory of an array of each rank, mapped into all ranks by `comm.Register`.

    It ends with `Free`, with a ``with`` block, or with the communicator. Until then the array is kept alive.

    Examples
    --------
    NumPy's arrays on the host device cannot be registered, so this needs a GPU:

    >>> with comm.Register(cupy.zeros(1 << 20, "f4")) as registration:  # doctest: +SKIP
    ...     comm.Barrier()
    """

    def __init__(self, window: Window, windows: TeamWindows, deregister: Callable[[Window], None]) -> None:
        self._window, self._windows, self._deregister = window, windows, deregister

    def Free(self) -> None:
        """Unmap the memory, once every rank's operations have ended. Collective.

        A peer that has other work in progress, graphs, or a `device_team` unmaps the memory later. So do not free it
        with cudaFree directly after this call; the memory pools of CuPy and PyTorch do not. Graphs and persistent
        requests that were made with the array must not be used any more.
        """
        if self._window in self._windows:  # otherwise it has been freed already
            self._deregister(self._window)

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        # After an exception other ranks may never call Free, which waits for all of them.
        if kind is None:
            self.Free()
