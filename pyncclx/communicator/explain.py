"""Describe how a method would run on device arrays, and what memory is held."""

from __future__ import annotations

from typing import Any, cast

from mpi4py import MPI

from ..arrays.places import host_arrays
from ..collectives import CHOOSE, copy_engine, over_nodes
from ..errors import NotSupported
from ..launch.time_slicing import REFUSAL, is_left_to_host
from ..memory.heap import memory_held
from ..messages import context
from ..messages.base import MessageBase
from ..messages.endpoint import OPERATIONS as MESSAGES
from ..messages.memory.bounce import SLOT_NBYTES
from ..messages.plan import STAGED_NBYTES
from ..nodes.spanning import Spanning, spanning_of
from ..operations import COLLECTIVES, blocking_form
from ..staging.arguments import OPERATIONS
from ..system.mpi_library import is_cuda_aware
from ..team.base import IntraBase
from ..team.state import state_of


class Explained(MessageBase):
    """Methods that describe how a communicator works."""

    def explain(self, operation: str, nbytes: int = 0) -> str:
        """Describe in a sentence how a method would run on device arrays.

        Collective at the first use.

        Parameters
        ----------
        operation : str
            Name of the method, such as "Allreduce".
        nbytes : int
            Bytes of the message; of the longest block if the buffer has a block for each rank.

        Returns
        -------
        str
            Begins with "native" (a kernel), "staged" (MPI on copies in pinned host memory), "host" (mpi4py's method
            alone) or "refused".

        Raises
        ------
        ValueError
            If the communicator has no such method.
        NotSupported
            If kernels do not support the method, and `staging` is False.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> comm.explain("Allreduce", 4096).split(":")[0]
        'native'
        """
        name = blocking_form(operation)
        try:
            if operation in MESSAGES and operation != "Startall":
                return self._explain_message(operation, nbytes)
            row = COLLECTIVES.get(name)
            if row is not None and (not row.is_of_neighbors or isinstance(self, MPI.Topocomm)):
                return self._explain_collective(name, nbytes)
        except NotSupported as refusal:
            if not self.staging:
                raise
            return f"staged: {name} goes through pinned host memory and MPI, because: {refusal}"
        return self._explain_without_kernel(name)

    def _explain_collective(self, operation: str, nbytes: int) -> str:
        spanning = spanning_of(cast(IntraBase, self)) if self.is_intra else None
        if spanning is None and self.is_intra and state_of(self).team is None:
            spanning = cast(Any, self).spanning
        if spanning is not None:
            return self._explain_over_nodes(spanning, operation, nbytes)
        team = self.team
        if self.staging and is_left_to_host(cast(IntraBase, self), operation, nbytes):
            raise NotSupported(REFUSAL)
        choice = CHOOSE[operation](team.layout, nbytes)
        place = "the host device" if team.device.name == "host" else f"GPUs ({team.device.architecture})"
        how = f"kernel {choice.kernel} on {choice.grid} channels; {choice.why}"
        if self.sm_free and operation in copy_engine.OPERATIONS and nbytes > team.layout.packet_nbytes:
            how = f"copy engines where all that is received lies in windows, else {how}"
        return f"native: {operation} of {nbytes} bytes among {team.size} ranks on {place}: {how}"

    def _explain_over_nodes(self, spanning: Spanning, operation: str, nbytes: int) -> str:
        places = spanning.places
        ranks = f"{places.size} ranks on {places.count} nodes, {places.lanes} rails"
        how = over_nodes.explain(operation, spanning, nbytes)
        return f"native: {operation} of {nbytes} bytes among {ranks}: {how}; {spanning.rails.why}"

    def _explain_message(self, operation: str, nbytes: int) -> str:
        _ = self.endpoint  # raises NotSupported if kernels cannot send
        if operation in ("Psend_init", "Precv_init"):
            how = "the sender's kernels store each partition in the receiver's array; the two meet once, by MPI"
            return f"native: {operation} of {nbytes} bytes: {how}"
        short, limit = nbytes <= SLOT_NBYTES, f"{SLOT_NBYTES} bytes"
        if self.blocking == "host" and 0 < nbytes <= STAGED_NBYTES.get(operation, 0):
            return f"staged: {operation} of {nbytes} bytes: the call waits, so MPI moves a copy in pinned host memory"
        how = f"sender's kernel copies up to {limit}" if short else f"receiver's kernel fetches more than {limit}"
        first = "what cannot be shared, and the first message between two ranks, goes inside MPI's messages"
        graph = "; in a graph, the request that it met before is met again" if operation.endswith("_init") else ""
        return f"native: {operation} of {nbytes} bytes: MPI matches, the {how}; {first}{graph}"

    def _explain_without_kernel(self, operation: str) -> str:
        if operation.startswith("_") or not callable(getattr(type(self), operation, None)):
            raise ValueError(f"operation is {operation!r}; it can be a method's name, such as {', '.join(COLLECTIVES)}")
        if operation not in OPERATIONS:
            return f"host: {operation} is mpi4py's and moves no device arrays"
        if host_arrays():
            return f"host: {operation} is mpi4py's, and the host device's arrays are in host memory"
        if self.staging:
            return f"staged: {operation} has no kernel; device arrays go through pinned host memory and MPI"
        aware = is_cuda_aware()
        if aware is False:
            return f"refused: {operation} has no kernel, and MPI takes no device arrays; comm.staging = True allows it"
        return f"host: {operation} is mpi4py's; MPI {'takes' if aware else 'may or may not take'} device arrays"

    def memory_report(self) -> dict[str, int]:
        """Return the bytes of device memory that this process holds, by purpose.

        Returns
        -------
        dict of str to int
            All 0 before the first operation on device arrays.

            * "heap": the symmetric heap, shared by all communicators of the process; "leased": its leased part;
            * "abandoned": leases and windows of communicators that this rank has freed, and other ranks have not;
            * "this communicator": its lease of the heap;
            * "windows": arrays of `Alloc`;
            * "packed": packed copies of derived datatypes, and temporary copies of results;
            * "messages": slots for short messages, shared by all communicators;
            * "shuffles": rows and workspaces of token shuffles;
            * "device teams": signals and barriers of the program's own kernels, and the workspace of collectives in
              Python.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> x = comm.Alloc(1024)
        >>> comm.memory_report()["windows"] >= 4096
        True
        """
        team, spanning = state_of(self).team, spanning_of(cast(IntraBase, self))
        shuffles = team or (spanning.team if spanning else None)
        mine = {
            "this communicator": team.lease.nbytes if team else 0,
            "windows": sum(window.memory.nbytes for window in team.windows if window.owner is not None) if team else 0,
            "packed": sum(each.nbytes for each in (team and team.scratch, state_of(self).scratch) if each),
            "shuffles": sum(dependent.nbytes for dependent in shuffles.dependents) if shuffles else 0,
            "device teams": sum(device_team.nbytes for device_team in team.device_teams) if team else 0,
        }
        return memory_held() | mine | {"messages": context.memory_held()}
