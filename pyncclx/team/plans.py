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
