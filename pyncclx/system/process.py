"""What a process holds once, whatever the number of communicators: each value is made at its first use.

`reset` forgets all of it, for tests that begin anew. A forked child holds nothing of its parent's.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet, WeakValueDictionary

T = TypeVar("T")
C = TypeVar("C", bound="list[Any] | dict[Any, Any] | set[Any] | WeakValueDictionary[Any, Any]")
_resets: list[Callable[[], object]] = []
_values: WeakSet[PerProcess[Any]] = WeakSet()
_locks: WeakSet[Any] = WeakSet()
_in_children: list[Callable[[], object]] = []
_of_parent: list[Any] = []  # kept in a forked child, where no destructor of the parent's values may run


class PerProcess(Generic[T]):
    """One value of the process. Threads that ask for it at the same time get the same one.

    Parameters
    ----------
    make : callable without arguments
        Returns the value; called at the first `get`. If it raises, the next `get` calls it again.
    lasting : bool, default False
        `process.reset` leaves the value, since others refer to it that a reset leaves too, such as handles of MPI.

    Attributes
    ----------
    get : callable
        Returns the value. As fast as `functools.cache`, since calls on device arrays ask for some of them.

    Examples
    --------
    >>> numbers = PerProcess(list)
    >>> numbers.get() is numbers.get()
    True
    """

    def __init__(self, make: Callable[[], T], *, lasting: bool = False) -> None:
        self._make = make
        self._made: list[T] = []  # none or one
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
        """The value if there is one already."""
        return self._made[0] if self._made else None

    def set(self, value: T) -> None:
        """Put `value` in the place of what `make` returns."""
        with self._making:
            self._made[:] = [value]
            self._cached.cache_clear()

    def reset(self) -> None:
        """Forget the value; the next `get` makes another one."""
        with self._making:
            self._made.clear()
            self._cached.cache_clear()

    def leave_to_parent(self) -> None:
        """Forget the value in a forked child, in which a thread of the parent's may hold the lock for ever."""
        self._making = threading.RLock()
        _of_parent.append(self._made[:])
        self._made.clear()
        self._cached.cache_clear()


def cached(function: Callable[[], T]) -> functools._lru_cache_wrapper[T]:
    """Decorate a function without arguments: `functools.cache`, which `reset` empties."""
    wrapper = functools.cache(function)
    _resets.append(wrapper.cache_clear)
    return wrapper


def held(container: C) -> C:
    """Return a list, dict (or one with weak values) or set of the process, which `reset` will empty."""
    _resets.append(container.clear)
    return container


def reset() -> None:
    """Forget all that the process holds. Nothing is closed: communicators go on with what they have."""
    for forget in _resets:
        forget()


def lock() -> threading.RLock:
    """Return a lock that is free in a forked child, even if another thread has held it at the fork."""
    made = threading.RLock()
    _locks.add(made)
    return made


def in_children(function: Callable[[], object]) -> None:
    """Call a function in each forked child, before the child runs code of the program."""
    _in_children.append(function)


def _begin_child() -> None:
    for made in _locks:
        made._at_fork_reinit()
    for value in _values:
        value.leave_to_parent()
    for function in _in_children:
        function()


os.register_at_fork(after_in_child=_begin_child)
