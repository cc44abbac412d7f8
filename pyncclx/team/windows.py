"""The windows of a communicator, and their table of addresses for kernels."""

from __future__ import annotations

from collections.abc import Iterator

from ..arrays.buffers import Buffer
from ..backends import Device
from ..memory.mapped import Window
from ..memory.parameters import NO_PLACES, WINDOW_ROW_NBYTES, Places, pack_window
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
        """Return the objects that hold the memory of this rank that peers have mapped."""
        return *self, *self._registered.values()

    @property
    def table(self) -> int:
        """Address of the table of all windows' addresses on all ranks; 0 without windows."""
        return self._table.address

    def at(self, address: int) -> Window | None:
        """Return the window that contains an address of this rank; None if there is none."""
        return next((window for window in self if window.holds(address)), None)

    def places(self, buffers: tuple[Buffer, ...]) -> bytes:
        """Return the `Places` of the first (send) and last (receive) buffer of a call."""
        if not buffers:
            return NO_PLACES
        send_window, send_begin = self._place(buffers[0].address)
        recv_window, recv_begin = self._place(buffers[-1].address)
        return Places(
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
