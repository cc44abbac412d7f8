"""Values that exist once in a process, and caches of a bounded size.

All communicators share the values. Each is made at its first use. Tests call `reset` to drop the values. A forked child
starts without its parent's values.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakSet, WeakValueDictionary

T = TypeVar("T")
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")
C = TypeVar("C", bound="list[Any] | dict[Any, Any] | set[Any] | WeakValueDictionary[Any, Any]")
MOST_ITEMS = 1024  # items of a cache; a program with more different calls prepares some of them again
_resets: list[Callable[[], object]] = []
_values: WeakSet[PerProcess[Any]] = WeakSet()
_locks: WeakSet[Any] = WeakSet()
_in_children: list[Callable[[], object]] = []
_of_parent: list[Any] = []  # the parent's values, kept in a forked child so that no destructor runs


class PerProcess(Generic[T]):
    """A value that exists once in the process, for all threads; made at first use.

    Parameters
    ----------
    make : callable without arguments
        Returns the value; called at the first `get`. If it raises, the next `get` calls it again.
    lasting : bool, default False
        Whether `process.reset` keeps the value. Needed for values to which longer-lived objects refer, such as MPI
        handles.

    Attributes
    ----------
    get : callable
        Returns the value. Calls on device arrays use it, so it is a `functools.cache`, for speed.

    Examples
    --------
    >>> numbers = PerProcess(list)
    >>> numbers.get() is numbers.get()
    True
    """

    def __init__(self, make: Callable[[], T], *, lasting: bool = False) -> None:
        self._make = make
        self._made: list[T] = []  # at most one value
        self._making = threading.RLock()
        self._cached = functools.cache(self._made_once)
        self.get: Callable[[], T] = self._cached
        _values.add(self)
        if not lasting:
            _resets.append(self.reset)

    def _made_once(self) -> T:
        with self._making:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]

    @property
    def made(self) -> T | None:
        """The value if it already exists, else None."""
        return self._made[0] if self._made else None

    def set(self, value: T) -> None:
        """Replace the value."""
        with self._making:
            self._made[:] = [value]
            self._cached.cache_clear()

    def reset(self) -> None:
        """Drop the value; the next `get` makes another one."""
        with self._making:
            self._made.clear()
            self._cached.cache_clear()

    def leave_to_parent(self) -> None:
        """Drop the value in a forked child, and replace the lock.

        A thread of the parent may have held the lock at the fork; no thread of the child would release it.
        """
        self._making = threading.RLock()
        _of_parent.append(self._made[:])
        self._made.clear()
        self._cached.cache_clear()


def cached(function: Callable[[], T]) -> functools._lru_cache_wrapper[T]:
    """Cache the result of a function without arguments until `reset`."""
    wrapper = functools.cache(function)
    _resets.append(wrapper.cache_clear)
    return wrapper


def held(container: C) -> C:
    """Register a container, which `reset` will empty, and return it."""
    _resets.append(container.clear)
    return container


def reset() -> None:
    """Drop the values of the process, except lasting ones.

    Nothing is closed; communicators continue with the values that they refer to.
    """
    for forget in _resets:
        forget()


def lock() -> threading.RLock:
    """Return a lock that is always free in a forked child."""
    made = threading.RLock()
    _locks.add(made)
    return made


def in_children(function: Callable[[], object]) -> None:
    """Register a function to be called in forked children before the program's code."""
    _in_children.append(function)


class BoundedCache(dict[_Key, _Value]):
    """A dict that drops all of its items when an item is set and it has MOST_ITEMS."""

    def __setitem__(self, key: _Key, value: _Value) -> None:
        if len(self) >= MOST_ITEMS:
            self.clear()
        super().__setitem__(key, value)


def _begin_child() -> None:
    for made in _locks:
        made._at_fork_reinit()
    for value in _values:
        value.leave_to_parent()
    for function in _in_children:
        function()


os.register_at_fork(after_in_child=_begin_child)
