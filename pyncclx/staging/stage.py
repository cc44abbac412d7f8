"""Call mpi4py's methods with host copies in place of device arrays.

For one-sided operations on host targets, `Origins` keeps the copies until MPI completes the operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import starmap
from typing import Any, cast

from mpi4py import MPI

from .. import events
from ..arrays import places
from ..arrays.specs import span_of, spec_parts
from ..errors import NotSupported
from ..operations import blocking_form
from ..operators.user_op import no_arithmetic
from ..requests.partitioned import PartitionedRequest
from ..requests.persistent import Prequest
from ..team.base import Base, wait_for_calls
from ..team.streams import ANY_CALLER, Caller
from .arguments import OPERATIONS, PAIR, Argument, GivenCall, is_nonblocking, is_persistent, recorded_by_mpi
from .completion import StagedCall, StagedWork, abandon, copy_back_on_completion
from .copies import Copy, copy_back, copy_in
from .stand_ins import StandIn, constants_of

_Method = Callable[..., Any]
_LOCAL_BUFFERS = [Argument("inbuf", 0, False), Argument("inoutbuf", 1, True)]
_ORIGIN = Argument("origin", 0, False)
_RESULT = Argument("result", 1, True)
_FETCH = (_ORIGIN, _RESULT)

#: The buffers of the methods of `Win`, and the position of their `target_rank`.
ACCESSES: dict[str, tuple[tuple[Argument, ...], int]] = {
    **dict.fromkeys(("Put", "Rput", "Accumulate", "Raccumulate"), ((_ORIGIN,), 1)),
    **dict.fromkeys(("Get", "Rget"), ((Argument("origin", 0, True),), 1)),
    **dict.fromkeys(("Get_accumulate", "Rget_accumulate", "Fetch_and_op"), (_FETCH, 2)),
    "Compare_and_swap": ((_ORIGIN, Argument("compare", 1, False), Argument("result", 2, True)), 3),
}


def stage(comm: Base, operation: str, call: _Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call mpi4py's method with host copies in place of device arrays.

    Parameters
    ----------
    comm : Base
    operation : str
    call : callable
        mpi4py's bound method.
    args, kwargs
        Arguments of the call.

    Returns
    -------
    object
        Return value of mpi4py's method. If it is a request, it copies the result to the device when it completes.
    """
    began = events.now() if events.listeners else None
    wait_for_calls(comm)  # earlier kernels may still be writing the data
    given = GivenCall(operation, args, kwargs)
    partitions = _partitions(given)
    copies, given = replace(
        given,
        given.device_buffers(OPERATIONS[operation]),
        reads=is_bcast_root(comm, given),
        computing=given.computes,
        blocks=partitions or blocks_of(comm, operation),
        caller=comm.state,
    )
    nbytes = max((copy.nbytes for copy in copies), default=0)
    if is_persistent(operation):
        work = StagedWork(operation, given.run(call), copies, partitions)
        request = (PartitionedRequest if partitions else Prequest)(work)
        request.emits(operation, events.STAGED, nbytes)
        return request
    copy_in(copies)
    if is_nonblocking(operation):
        result = _begun(comm, given, call, copies)
    else:
        with recorded_by_mpi(comm, given):
            result = given.run(call)
        copy_back(copies)
    if began is not None:
        events.emit(operation, events.STAGED, nbytes, began, comm=comm)
    return result


def _begun(comm: Base, given: GivenCall, call: _Method, copies: list[Copy]) -> MPI.Request:
    """Begin an operation on host copies; its request copies the results back.

    If an exception is raised after MPI has begun, the library keeps the copies until MPI has completed the operation.
    """
    begun: list[MPI.Request] = []
    try:
        with recorded_by_mpi(comm, given):
            # The list holds the request before Python runs signal handlers.
            begun.extend(starmap(partial(call, **given.kwargs), (given.args,)))
        return copy_back_on_completion(begun[0], copies)
    except BaseException:
        for request in filter(None, begun):
            abandon(StagedCall(request, copies))
        raise


def replace(
    given: GivenCall,
    found: list[Argument],
    *,
    reads: bool = False,
    computing: bool = False,
    blocks: int = 1,
    caller: Caller = ANY_CALLER,
) -> tuple[list[Copy], GivenCall]:
    """Replace the device arrays `found` in the arguments of a call by host copies.

    Parameters
    ----------
    given, found
    reads : bool
        Whether the call only reads the arrays.
    computing : bool
        Whether MPI computes with the elements.
    blocks : int
        Largest number of blocks of an argument.
    caller : Caller
        Chooses streams.

    Returns
    -------
    copies : list of Copy
    given : GivenCall
        The call with the copies.

    Raises
    ------
    TypeError
        If MPI would compute with elements that are not numbers, as if they were bytes.
    """
    copies = []
    for which in found:
        spec = given.value(which)
        whole = not isinstance(spec, (list, tuple))
        array = spec if whole else spec[0]
        span, written = span_of(spec, blocks), which.written and not reads
        name = f"{given.operation}: {which.name}"
        copy = Copy(array, name, written=written, whole=whole, span=span, caller=caller)
        if computing and not copy.is_of_numbers and spec_parts(spec)[-1] is None:
            raise no_arithmetic(given.operation)
        host = copy.host_array()
        copies.append(copy)
        given = given.with_value(which, host if whole else type(spec)((host, *spec[1:])))
    return copies, given


def is_bcast_root(comm: Base, given: GivenCall) -> bool:
    """Return whether this rank only reads the buffer of a broadcast."""
    if blocking_form(given.operation) != "Bcast":
        return False
    root = given.value(Argument("root", 1, False)) or 0
    return bool(root == MPI.ROOT if comm.is_inter else root == comm.rank)


def blocks_of(comm: Base, operation: str) -> int:
    """Return the largest number of blocks: one for each rank or neighbour."""
    if "eighbor" in operation:
        topology: Any = comm
        return int(max(topology.indegree, topology.outdegree))
    ranks = cast(MPI.Intercomm, comm).remote_size if comm.is_inter else comm.size
    return ranks if OPERATIONS[operation] is PAIR else 1


def _partitions(given: GivenCall) -> int:
    """Return the number of partitions of a partitioned operation; 0 for others."""
    if given.operation not in ("Psend_init", "Precv_init"):
        return 0
    return int(given.value(Argument("partitions", 1, False)))


class Op(StandIn, MPI.Op):
    """An `mpi4py.MPI.Op`. Operators for kernels are `pyncclx.Op`."""

    like = MPI.Op

    @classmethod
    def Create(cls, function: Callable[..., None], commute: bool = False) -> Op:
        """Create an operator from a Python function (mpi4py's method)."""
        return cls(super().Create(function, commute))

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """Reduce two arrays of this rank; device arrays through host copies.

        See mpi4py's `Reduce_local`.

        Parameters
        ----------
        inbuf : array or buffer specification
        inoutbuf : array or buffer specification
            Has the same type of elements; contains the result when the method returns.

        Raises
        ------
        TypeError
            If the elements of device arrays have no arithmetic.
        NotSupported
            If one of the arrays is on the device and the other on the host.
        """
        sides = places.where(inbuf), places.where(inoutbuf)
        if places.host_arrays() or "device" not in sides:
            return super().Reduce_local(inbuf, inoutbuf)
        if sides != ("device", "device"):
            raise NotSupported("Reduce_local: one array is on the device, one in host memory; copy one of them")
        given = GivenCall("Reduce_local", (inbuf, inoutbuf), {})
        copies, given = replace(given, _LOCAL_BUFFERS, computing=self.is_predefined)
        copy_in(copies)
        given.run(super().Reduce_local)
        copy_back(copies)
        return None


Op.constants = constants_of(Op)


class Origins:
    """Host copies of a window's operations, kept until MPI completes the operations."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller  # chooses streams
        self._open: list[tuple[int, list[Copy]]] = []  # target rank and copies

    def stage(self, given: GivenCall, call: Callable[..., Any], found: list[Argument]) -> Any:
        """Call mpi4py's method with host copies of the device arrays `found`."""
        began, operation = events.now() if events.listeners else None, given.operation.removeprefix("Win.")
        copies, given = replace(given, found, computing=given.computes, caller=self._caller)
        copy_in(copies)
        result = given.run(call)
        rank = given.value(Argument("target_rank", ACCESSES[operation][1], False))
        if result is None:
            self._open.append((rank, copies))
        else:
            result = copy_back_on_completion(result, copies)
        if began is not None:
            events.emit(operation, events.STAGED, max(copy.nbytes for copy in copies), began, peer=rank)
        return result

    def copy_back(self, rank: int | None = None) -> None:
        """Copy results to the device, from completed operations on one rank or on all."""
        complete = [entry for entry in self._open if rank in (None, entry[0])]
        self._open = [] if rank is None else [entry for entry in self._open if entry[0] != rank]
        for _, copies in complete:
            copy_back(copies)
