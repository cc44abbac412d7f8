"""A cache of a bounded size."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")
MOST_ITEMS = 1024  # default size; a program with more different calls prepares them again


class BoundedCache(dict[_Key, _Value]):
    """A dict that drops all of its items when it is full and a new one is set."""

    def __init__(self, most: int = MOST_ITEMS) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: _Key, value: _Value) -> None:
        if len(self) >= self._most:
            self.clear()
        super().__setitem__(key, value)
