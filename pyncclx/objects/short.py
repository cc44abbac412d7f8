"""Objects with short device arrays: MPI moves a copy of the data in the pickle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import backends, events
from .libraries import Form
from .opening import opener
from .packed_arrays import PackedArrays
from .pickled import Pickled, put_together


@dataclass(slots=True)
class Short:
    """Object with short arrays; any rank that unpickles it opens it."""

    stream: bytes
    buffers: list[Any]
    forms: tuple[Form, ...]
    data: bytes

    @classmethod
    def of(cls, comm: Any, contents: Pickled, packed: PackedArrays, operation: str) -> Short:
        """Return an object with a copy of its arrays' data."""
        began = events.now() if events.listeners else None
        data = packed.download(backends.select()).tobytes()
        if began is not None:
            events.emit(operation, events.STAGED, len(data), began, comm=comm)
        return cls(contents.stream, contents.buffers, packed.forms, data)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _open, (self.stream, self.buffers, self.forms, self.data)


@opener()
def _open(stream: bytes, buffers: list[Any], forms: tuple[Form, ...], data: bytes) -> Any:
    """Return the object in new arrays; pickle calls this."""
    device = backends.select()
    arrays = PackedArrays.like(device, forms).upload(device, np.frombuffer(data, np.uint8))
    return put_together(stream, buffers, arrays)
