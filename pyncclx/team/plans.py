"""Plans: kernels and parameters that a Team caches to launch equal calls at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..arrays.buffers import Buffer
from ..backends import Function


class Plan(NamedTuple):
    """The kernel for calls of one kind: the same operation, elements and size."""

    operation: str
    function: Function
    grid: int
    threads: int  # per block
    # Whether the kernel may start while the previous one runs, for which it then waits. It uses few multiprocessors.
    early: bool = False
    kernel: str = ""  # the kernel's name


class Producer(NamedTuple):
    """A stream that a call must wait for."""

    stream: int
    of_torch: bool


def producers_of(buffers: Iterable[Buffer]) -> tuple[Producer, ...]:
    """Return the producers of the buffers that name a stream."""
    return tuple(Producer(each.stream, each.of_torch) for each in buffers if each.stream is not None)


class CachedLaunch(NamedTuple):
    """A cached launch: all that is needed to launch an equal call again."""

    plan: Plan
    parameters: bytes  # bytes of the kernel's parameter
    producers: tuple[Producer, ...]  # for buffers that name a stream
    of_current: bool  # whether the current stream produces one of the other buffers
    around: tuple[Callable[..., None] | None, Callable[..., None] | None] | None  # `Call.before` and `after`, if any
    record: Callable[[], None] | None  # writes the flight recorder's entry


class MovableLaunch(NamedTuple):
    """A cached launch that also fits equal arrays at other addresses.

    Attributes
    ----------
    launch
        The launch with the arrays for which it was made.
    team, called : bytes
        The kernel's `Team` and `Called`, without the `BufferLocations` between them.
    arguments : bytes
        The kernel's arguments after the addresses of the data to send and of the memory to receive into.
    buffers, data : tuple of (int, int)
        Locations of the first and the last buffer, and of these two addresses. A location is the number of an array
        among the call's arguments, and an offset in bytes.
    reaches : tuple of (int, int)
        Arrays that are shorter than what the call uses, and the bytes that it uses from their beginning.
    """

    launch: CachedLaunch
    team: bytes
    called: bytes
    arguments: bytes
    buffers: tuple[tuple[int, int], ...]
    data: tuple[tuple[int, int], ...]
    reaches: tuple[tuple[int, int], ...]
