"""When received objects are opened: as soon as they are unpickled, or once a call has received all of its list."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..messages.base import MessageBase

__all__ = ["Opening", "Unopened", "current", "open_all", "opened", "opener"]


class Opening:
    """A context in which the objects that this thread unpickles belong to a communicator.

    With `defers` unpickling leaves them as `Unopened`, which the caller opens. So the objects of a list are all there
    before the program's code, which may raise, sees the first one.
    """

    __slots__ = ("_outer", "comm", "defers")

    def __init__(self, comm: MessageBase | None, *, defers: bool = False) -> None:
        self.comm, self.defers = comm, defers

    def __enter__(self) -> None:
        self._outer, current.opening = current.opening, self

    def __exit__(self, *_: object) -> None:
        current.opening = self._outer


class _Thread(threading.local):
    """What a thread opens objects in; outside of our methods they belong to no communicator."""

    opening: Opening = Opening(None)


current = _Thread()


class Unopened:
    """An object that was unpickled and not opened; pickled again, it is as it was.

    Attributes
    ----------
    function : callable
        What opens it, an `opener`.
    fields : tuple
        Its arguments.
    """

    __slots__ = ("fields", "function")

    def __init__(self, function: Callable[..., Any], fields: tuple[Any, ...]) -> None:
        self.function, self.fields = function, fields

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.fields

    def open(self) -> Any:
        """Return the object."""
        with Opening(current.opening.comm):
            return self.function(*self.fields)

    def decline(self) -> None:
        """Let its sender use the memory of the data again, though nothing reads it."""
        decline = self.function.decline  # type: ignore[attr-defined]
        if decline is not None:
            decline(*self.fields)


def opener(decline: Callable[..., None] | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that pickle calls to open an object; `decline` takes the same arguments."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def either(*fields: Any) -> Any:
            return Unopened(either, fields) if current.opening.defers else function(*fields)

        either.decline = decline  # type: ignore[attr-defined]
        return either

    return decorate


def opened(items: Iterable[Any]) -> Iterator[Any]:
    """Open one object after the other; decline those that are left when the caller closes this, or one raises."""
    left = deque(items)
    try:
        while left:
            item = left.popleft()
            yield item.open() if type(item) is Unopened else item
    finally:
        for item in left:
            if type(item) is Unopened:
                item.decline()


def open_all(items: list[Any]) -> list[Any]:
    """Return a list's objects opened."""
    if Unopened not in map(type, items):
        return items
    with closing(opened(items)) as each:  # type: ignore[type-var]
        return list(each)
