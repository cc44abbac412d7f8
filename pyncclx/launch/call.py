"""A checked call, its chosen kernel, and its plan: everything a launch needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..backends import Function
from ..memory.called import describe, pack_call
from ..operators import bound_op
from ..team.plans import Plan
from ..team.team import Team
from . import kernels
from .sources import check_records, file_of

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm

# A kernel that uses at most so many multiprocessors is launched early: while the previous kernel on the stream still
# runs. Two such kernels together use no more multiprocessors than one operation on all channels. On 2 and 4 H200
# (21 November 2026), early launches saved kernels of up to 32 blocks 0.3 to 0.6 of 3.3 to 4.3 us.
MOST_EARLY = 32
# Two blocks of EARLY_THREADS threads fit on a multiprocessor, in all kernels except those that reduce packets. So
# kernels on all channels may be launched early. On 2 H200 (23 November 2026), Allgather of 512 KB took 4.7 us with 512
# threads and 3.7 us with EARLY_THREADS.
EARLY_THREADS = 256
MOST_EARLY_THREADS = MOST_EARLY * 2 * EARLY_THREADS  # in all blocks together; kMostEarlyThreads


class Choice(NamedTuple):
    """A chosen kernel, its launch configuration, and the reason for the choice."""

    kernel: str
    grid: int
    threads: int | None  # threads of a block; None: as many as the device offers
    why: str


# A function that returns a loaded kernel, given its name and template arguments. Collective at the first use.
Load = Callable[[Any, Team, str, tuple[str, ...]], Function]


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """A call on device arrays with checked arguments: everything its launch needs.

    The function of every operation (`collectives`) returns a `Call`, or None for host arrays, which mpi4py handles.
    """

    operation: str  # the method's name
    choose: Callable[..., Choice]  # the operation's function that chooses a kernel from a layout and `sized`
    sized: tuple[Any, ...]  # bytes of the message, and whatever else the choice depends on
    template: tuple[str, ...] = ()  # template arguments of the kernel: element type and operator, if any
    arguments: bytes = b""  # members of the kernel's argument struct that follow `team`
    buffers: tuple[Buffer, ...] = ()  # the send buffer first, the receive buffer last
    signature: tuple[Any, ...] = ()  # values that kernels compare, since they must be equal on all ranks
    before: Callable[[Team, Any], None] | None = None  # enqueues work on a stream before the kernel
    after: Callable[[Team, Plan, Any], None] | None = None  # enqueues work on a stream after the kernel
    is_again: bool = False  # whether equal calls can use `before` and `after`, too, because these hold no arrays
    beside: tuple[str, ...] = ()  # other kernels of the same file that `before` and `after` launch
    root: int | None = None
    moves: bool = False  # whether `arguments` begin with addresses in the first and last buffer, and have no others
    of_mpi: bool = True  # whether MPI has this operation; if it also has operator and type, it can run the call
    load: Load | None = None  # loads a kernel whose source is not in a file of `sources.FILES`

    @property
    def may_be_known(self) -> bool:
        """Whether the launch can be cached and reused for a call with equal arguments."""
        return self.is_again or (self.before is None and self.after is None)

    @property
    def called(self) -> bytes:
        """The operation and signature, packed for the comparison by kernels."""
        return pack_call(describe(self.operation, self.signature))


def is_in_place(spec: Any) -> bool:
    """Return whether a send buffer is MPI.IN_PLACE, or None, which means the same."""
    return spec is None or spec is MPI.IN_PLACE


def plan_of(comm: Intracomm, team: Team, call: Call) -> Plan:
    """Return the plan of a call, which all calls of its kind share.

    Collective at the first use of a kernel.
    """
    kind = call.operation, call.template, call.sized
    plan = team.plans.get(kind)
    if plan is None:
        plan = team.plans[kind] = _make(comm, team, call)
    return plan


def is_ready(team: Team, call: Call) -> bool:
    """Return whether the kernels of a call are loaded, so that ranks need not meet.

    The result is the same on all ranks. Raises NotSupported if there is no kernel for the call.
    """
    choice = call.choose(bound_op.fitting(team.layout, call.template), *call.sized)
    if call.load is not None:
        return True
    check_records(call.operation, choice.kernel, call.template)
    return all((kernel, *call.template) in team.functions for kernel in (choice.kernel, *call.beside))


def is_planned(team: Team, call: Call) -> bool:
    """Return whether the plan of a call is cached."""
    return (call.operation, call.template, call.sized) in team.plans


def _make(comm: Intracomm, team: Team, call: Call) -> Plan:
    choice = call.choose(bound_op.fitting(team.layout, call.template), *call.sized)
    if call.load is None:
        check_records(call.operation, choice.kernel, call.template)
        names = choice.kernel, *call.beside
        function, *_ = kernels.get_several(comm, team, file_of(choice.kernel), names, call.template)
    else:
        function = call.load(comm, team, choice.kernel, call.template)
    threads = min(choice.threads or team.threads, team.threads)
    most_early = MOST_EARLY // team.layout.sharing * team.device.blocks_per_multiprocessor(function, threads)
    early = call.load is None and choice.grid <= most_early
    return Plan(call.operation, function, choice.grid, threads, early, choice.kernel)


def facts_of(buffers: Sequence[Buffer]) -> dict[str, Any]:
    """Return the fields of a flight recorder entry that describe a call's buffers."""
    last = buffers[-1] if buffers else None
    return {
        "count": last.count if last else 0,
        "nbytes": max((buffer.nbytes for buffer in buffers), default=0),
        "datatype": last.datatype.name if last else "",
    }
