"""Barrier on the device."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ..layout import Layout
from .launch import Call, Choice

if TYPE_CHECKING:
    from ..base import IntraBase as Intracomm


@lru_cache  # the same few sizes come again and again
def choose(layout: Layout, nbytes: int) -> Choice:
    """One channel, one signal to every peer."""
    return Choice("barrier", 1, 32, "one signal to every peer")


def barrier(comm: Intracomm, *, device: bool = False) -> Call | None:
    """See `Intracomm.Barrier`."""
    return Call("Barrier", choose, (0,), (), b"", (), ()) if device else None
