"""What every operation does alike: compare notes if asked, find the stream, launch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from .. import kernels, user_op
from ..buffers import Buffer
from ..errors import CollectiveMismatch, MPIError
from ..keys import NoKey, key_of
from ..messages.open_receives import make_way
from ..numba_kernels import compiled
from ..state import State, state_of
from ..team import OPERATIONS, Known, Plan, Producer, Team
from ..vectors import integer
from .choice import MOST_EARLY, Choice

if TYPE_CHECKING:
    from ..base import IntraBase as Intracomm

LEGACY_DEFAULT_STREAM = 1  # its number in array interfaces; CuPy says 0
_NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}
MOST_PLANS = 1024  # of a communicator; a program with more different calls than that makes them anew


class Call(NamedTuple):
    """A call on device arrays whose arguments are checked: all that its launch needs.

    Every operation is a function that makes one of its arguments, or None if they are host arrays, for mpi4py.
    """

    operation: str  # the method's name
    choose: Callable[..., Choice]  # of the operation: chooses by the layout and `sized`
    sized: tuple[Any, ...]  # bytes of the message, and what else the choice depends on
    template: tuple[str, ...]  # of the kernel: element type and operator, if it has any
    arguments: bytes  # the kernel's, after the Team
    buffers: tuple[Buffer, ...]  # the send buffer first, the receive buffer last
    signature: tuple[Any, ...]  # what must be equal on all ranks; PYNCCLX_CHECK=1 compares it
    empty: bool = False  # on all ranks: nothing has to be launched
    settle: Callable[[Team, Plan, Any], None] | None = None  # enqueues on a stream what follows the kernel
    ready: Callable[[Team, Any], None] | None = None  # and what comes before it


def by_kernel(comm: Intracomm, make: Callable[..., Call | None], *args: Any, **options: Any) -> bool:
    """Do an operation on the current stream by the kernel of the call that `make` makes; False if it makes none.

    The host waits if the communicator blocks. A call that came before, with arguments of the same keys, is only
    launched: `make` must have nothing to ask the other ranks.
    """
    state = state_of(comm)
    team, key = state.team, None
    if team is not None and not (state.checking or state.sm_free):
        try:
            key = make, *map(key_of, args), *map(key_of, options.values())
        except NoKey:
            pass
        else:
            known = team.known.get(key)
            if known is not None:
                _launch_again(state, team, known)
                return True
    call = make(comm, *args, **options)
    if call is None:
        return False
    run(comm, call)
    if key is not None and team is not None:
        _remember(team, key, call)
    return True


def _launch_again(state: State, team: Team, known: Known) -> None:
    team.check()
    team.launch_known(known, stream_for(team.device, known.producers))
    if state.blocking == "host":
        team.drain()


def _remember(team: Team, key: Hashable, call: Call) -> None:
    """Have a call known that is one launch and no more; the arrays are not held."""
    if call.empty or call.ready is not None or call.settle is not None:
        return
    plan = team.plans[call.operation, call.template, call.sized]
    producers = [Producer(each.stream, each.of_torch) for each in call.buffers if each.stream is not None]
    if len(team.known) >= MOST_PLANS:
        team.known.clear()
    team.known[key] = Known(plan, team.parameters(plan, call.buffers, call.arguments), tuple(producers))


def run(comm: Intracomm, call: Call) -> None:
    """Launch a call's kernel on the current stream; wait for it if the communicator blocks."""
    state = state_of(comm)
    team = enqueue(comm, state, call)
    if team is not None and state.blocking == "host":
        team.drain()


def enqueue(comm: Intracomm, state: State, call: Call) -> Team | None:
    """Launch a call's kernel on the current stream; returns the team it runs in, None if there was nothing to do."""
    if state.checking:
        compare(comm, call.operation, call.signature)
    if call.empty:
        return None
    team = comm.team
    plan = team.plans.get((call.operation, call.template, call.sized)) or prepare(comm, team, call)
    stream = stream_for(team.device, call.buffers)
    if call.ready is not None:
        call.ready(team, stream)
    team.launch(plan, call.buffers, call.arguments, stream)
    if call.settle is not None:
        call.settle(team, plan, stream)
    return team


def prepare(comm: Intracomm, team: Team, call: Call) -> Plan:
    """Choose how a call runs and get its kernel. Collective at the first use of a kernel."""
    choice = call.choose(user_op.fitting(team.layout, call.template), *call.sized)
    in_python = choice.kernel.startswith(compiled.PREFIX)
    if in_python:
        function = compiled.function_of(comm, team, choice.kernel, call.template)
    else:
        function = kernels.get(comm, team, kernels.file_of(choice.kernel), choice.kernel, *call.template)
    threads = min(choice.threads or team.threads, team.threads)
    most_early = MOST_EARLY // team.layout.sharing * team.device.blocks_each(function, threads)
    early = not in_python and choice.grid <= most_early
    plan = Plan(_NUMBERS[call.operation], function, choice.grid, threads, early)
    if len(team.plans) >= MOST_PLANS:
        team.plans.clear()
    team.plans[call.operation, call.template, call.sized] = plan
    return plan


def stream_for(device: Any, buffers: Iterable[Buffer | Producer]) -> Any:
    """The stream to enqueue on, made to wait for the producers of the buffers.

    It is CuPy's current stream; for PyTorch tensors it is PyTorch's, where their user goes on.
    """
    stream = device.current_stream()
    if stream is None:  # the host device has none
        return None
    for buffer in buffers:
        if buffer.stream is not None and buffer.stream != (stream.ptr or LEGACY_DEFAULT_STREAM):
            producer = device.external_stream(buffer.stream)
            if buffer.of_torch:
                stream = producer
            else:
                make_way()
                device.order(producer, stream)
    return stream


def compare(comm: Intracomm, operation: str, signature: tuple[Any, ...]) -> None:
    """Raise on all ranks if they called different operations, or with different arguments."""
    calls = MPI.Comm.allgather(comm, (operation, *signature))
    if any(call != calls[0] for call in calls):
        said = "; ".join(f"rank {rank}: {call[0]}{call[1:]}" for rank, call in enumerate(calls))
        raise CollectiveMismatch(f"ranks disagree about the call: {said}")


def is_in_place(spec: Any) -> bool:
    """As for mpi4py, None means MPI.IN_PLACE where a send buffer belongs."""
    return spec is None or spec is MPI.IN_PLACE


def check_root(comm: Intracomm, operation: str, root: Any) -> int:
    """Return `root` as an integer; raise MPI.Exception of class ERR_ROOT unless it is a rank."""
    rank = integer(root)
    if not 0 <= rank < comm.size:
        raise MPIError(MPI.ERR_ROOT, f"{operation}: root is {rank}, the communicator's ranks are 0 to {comm.size - 1}")
    return rank


def check_equal(operation: str, send: Buffer, recv: Buffer) -> None:
    """Raise ValueError, as mpi4py does, unless both buffers of a reduction hold the same elements."""
    if send.datatype is not recv.datatype:
        raise ValueError(
            f"{operation}: mismatch in datatypes: sendbuf has {send.datatype.name}, recvbuf {recv.datatype.name}; "
            "make them equal"
        )
    if send.count != recv.count:
        raise ValueError(
            f"{operation}: mismatch in send count {send.count} and receive count {recv.count}; make them equal"
        )


def check_fits(operation: str, send_nbytes: int, recv_nbytes: int) -> None:
    """Raise MPI.Exception of class ERR_TRUNCATE unless what a rank sends is as long as the block for it."""
    if send_nbytes != recv_nbytes:
        raise MPIError(
            MPI.ERR_TRUNCATE,
            f"{operation}: each rank sends {send_nbytes} bytes to a block of {recv_nbytes} bytes of recvbuf; "
            "make them equal",
        )
