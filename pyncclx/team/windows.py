"""The windows of a communicator, and the table of their addresses that kernels are given."""

from __future__ import annotations

from collections.abc import Iterator

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..backends import Device, Upload
from ..memory.mapped import Window, allocate_window, empty_window, register_window
from ..memory.parameters import NO_PLACES, Places, pack_windows


class TeamWindows:
    """All windows that a communicator has had, by their numbers; one that was deregistered is empty."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._windows: list[Window] = []
        self._spans: list[tuple[int, int, int]] = []  # begin, end and number of each; for each new call
        self._registered: dict[int, object] = {}  # arrays whose memory must stay, by the number of their window
        self._tables: list[Upload] = []  # for kernels; only the last is current, but graphs may use earlier ones

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, number: int) -> Window:
        return self._windows[number]

    def __iter__(self) -> Iterator[Window]:
        return iter(self._windows)

    def allocate(self, comm: MPI.Intracomm, nbytes: int) -> Window:
        """Add a window of new memory. Collective."""
        return self._add(allocate_window(comm, self._device, len(self), nbytes))

    def register(self, comm: MPI.Intracomm, buffer: Buffer) -> Window:
        """Add a window of the memory that an array of each rank is in. Collective."""
        window = self._add(register_window(comm, self._device, len(self), buffer.address, buffer.nbytes))
        self._registered[window.number] = buffer.owner
        return window

    def deregister(self, comm: MPI.Intracomm, window: Window) -> None:
        """Unmap what was registered, when no rank uses it any more. Its number is not used again. Collective."""
        self._device.synchronize()
        MPI.Comm.Barrier(comm)
        window.close()
        self._windows[window.number] = empty_window(window.number, comm.size)
        del self._registered[window.number]
        self._update()

    def _add(self, window: Window) -> Window:
        self._windows.append(window)
        self._update()
        return window

    def _update(self) -> None:
        memories = [(window.memory.address, window.memory.nbytes, window.number) for window in self]
        self._spans = [(begin, begin + nbytes, number) for begin, nbytes, number in memories if nbytes]
        self._tables.append(self._device.upload(pack_windows([window.bases for window in self])))

    @property
    def table(self) -> int:
        """Address of the table of all windows' addresses on all ranks; 0 without windows."""
        return self._tables[-1].address if self._tables else 0

    def at(self, address: int) -> Window | None:
        """Return the window that an address of this rank is in; None if peers have not mapped its memory."""
        return next((window for window in self if window.holds(address)), None)

    def places(self, buffers: tuple[Buffer, ...]) -> bytes:
        """Return the `Places` of a call's send buffer, the first, and receive buffer, the last."""
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
        self._windows.clear()
        self._registered.clear()
        self._spans.clear()
