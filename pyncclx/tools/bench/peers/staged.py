"""mpi4py on host buffers, with copies from the device and back.

Programs do so without a CUDA-aware MPI.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from ..cases import Case
from ..memory import Pinned
from ..timing import Queue
from .base import Call, Peer


class Staged(Peer):
    """mpi4py's own operations on pinned copies.

    Graphs cannot capture them, and reductions take only MPI's types.
    """

    capturable = False

    def __init__(self, comm: Any) -> None:
        self.comm, self.queue, self._memory = comm, Queue(), Pinned(comm)
        library = MPI.Get_library_version().split(",")[0].splitlines()[0].strip("\0 ")
        self.about = f"{library}, staged through host memory"

    def call(self, case: Case, in_place: bool) -> Call | None:
        if case.reduces and (case.options.op == "avg" or case.elements.row.mpi is None):
            return None
        host = case.twin(self._memory)
        operation, arguments = getattr(MPI.Intracomm, case.mpi_method or case.method), host.arguments(in_place)
        source, target = case.source(in_place), case.target(in_place)
        host_source, host_target = host.source(in_place), host.target(in_place)

        def staged() -> None:
            if source is not None:
                copy(host_source, source)
            operation(self.comm, *arguments)
            if target is not None:
                copy(target, host_target)

        return staged


def copy(to: Any, array: Any) -> None:
    """Copy to the host or to the device, and wait for the copy."""
    if isinstance(array, np.ndarray) and isinstance(to, np.ndarray):
        to[...] = array
    elif isinstance(to, np.ndarray):
        array.get(out=to)
    else:
        to.set(array)
        to.device.synchronize()
