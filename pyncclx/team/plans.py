"""How calls run: what a team keeps of earlier calls, to launch equal ones at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..arrays.buffers import Buffer
from ..backends import Function


class Plan(NamedTuple):
    """How calls of one kind run: those of the same operation, elements and size."""

    operation: str
    function: Function
    grid: int
    threads: int  # of a block
    early: bool = False  # takes few multiprocessors: launched early, it waits for the kernel before, and lets the next
    kernel: str = ""  # its name


class Producer(NamedTuple):
    """The stream whose work a call waits for."""

    stream: int
    of_torch: bool


def producers_of(buffers: Iterable[Buffer]) -> tuple[Producer, ...]:
    """Return the producers of those buffers that name a stream."""
    return tuple(Producer(each.stream, each.of_torch) for each in buffers if each.stream is not None)


class RememberedLaunch(NamedTuple):
    """A call that came before: what it takes to launch it once more."""

    plan: Plan
    parameters: bytes  # of the kernel
    producers: tuple[Producer, ...]  # of those buffers that name a stream
    of_current: bool  # whether the current stream makes one of the others
    around: tuple[Callable[..., None] | None, Callable[..., None] | None] | None  # `Call.before` and `after`, if any
    record: Callable[[], None] | None  # writes the entry of the flight recorder
