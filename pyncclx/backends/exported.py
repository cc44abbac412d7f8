"""Memory that another process opens by a handle of a few bytes, without a meeting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Exported:
    """A piece of memory inside an allocation that other processes can open.

    Attributes
    ----------
    address : int
        Of the allocation in this process.
    nbytes : int
        Of the allocation.
    handle : bytes
        What opens the allocation, in 64 bytes or less; zeros at its end mean nothing.
    identity : int
        Tells the allocation from others that have been at this address.
    offset : int
        Of the piece in the allocation.
    memory : object
        What must be closed when nobody needs the export any more; None if nothing.
    """

    address: int
    nbytes: int
    handle: bytes
    identity: int = 0
    offset: int = 0
    memory: Any = None

    def close(self) -> None:
        """Give back what the export itself took. Who has opened it keeps it."""
        if self.memory is not None:
            self.memory.close()
