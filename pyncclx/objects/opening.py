"""Open received objects when they are unpickled, or after a call has received all."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any
from weakref import ref

from ..messages.base import MessageBase


class Opening:
    """Context that assigns objects unpickled by this thread to a communicator.

    With `defers`, unpickling returns `Unopened` objects, which the caller opens later. So all objects of a list arrive
    before the program's code, which may raise, runs for any of them.
    """

    __slots__ = ("__weakref__", "_depth", "comm", "defers")

    def __init__(self, comm: MessageBase | None, *, defers: bool = False) -> None:
        self.comm, self.defers = comm, defers

    def __enter__(self) -> None:
        self._depth = len(current.stack)
        current.stack.append(ref(self))

    def __exit__(self, *_: object) -> None:
        del current.stack[self._depth :]


_ALONE = Opening(None)


class _Thread(threading.local):
    """A thread's contexts.

    Attributes
    ----------
    stack : list of weak references
        The contexts that the thread is in, the innermost last. If an interrupt ends one before its `__exit__` runs, its
        reference is dead.
    """

    def __init__(self) -> None:
        self.stack: list[ref[Opening]] = []

    @property
    def opening(self) -> Opening:
        """The innermost context; outside pyncclx's methods it has no communicator."""
        while self.stack:
            opening = self.stack[-1]()
            if opening is not None:
                return opening
            self.stack.pop()
        return _ALONE


current = _Thread()


class Unopened:
    """An object that is unpickled but not opened; it can be pickled again.

    Attributes
    ----------
    function : callable
        The `opener` of the object.
    fields : tuple
        Arguments of the function.
    """

    __slots__ = ("fields", "function")

    def __init__(self, function: Callable[..., Any], fields: tuple[Any, ...]) -> None:
        self.function, self.fields = function, fields

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.fields

    def open(self) -> Any:
        """Return the opened object."""
        with Opening(current.opening.comm):
            return self.function(*self.fields)

    def decline(self) -> None:
        """Allow the sender to reuse the memory of the data, without reading it."""
        decline = self.function.decline  # type: ignore[attr-defined]
        if decline is not None:
            decline(*self.fields)


def opener(decline: Callable[..., None] | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that pickle calls to open an object.

    `decline` takes the same arguments, and releases the object's data unread.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def either(*fields: Any) -> Any:
            return Unopened(either, fields) if current.opening.defers else function(*fields)

        either.decline = decline  # type: ignore[attr-defined]
        return either

    return decorate


def opened(items: Iterable[Any]) -> Iterator[Any]:
    """Yield opened objects; if closed early or after an exception, decline the rest."""
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
    """Return the objects of a list, opened."""
    if Unopened not in map(type, items):
        return items
    with closing(opened(items)) as each:  # type: ignore[type-var]
        return list(each)
