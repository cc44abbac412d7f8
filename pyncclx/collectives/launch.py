"""What every operation does alike: choose a grid, compare notes if asked, find the stream, launch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from .. import kernels, user_op
from ..buffers import Buffer
from ..errors import CollectiveMismatch, MPIError
from ..keys import NoKey, key_of
from ..layout import PACK_NBYTES, ROW_PAYLOAD, Layout
from ..numba_kernels import compiled
from ..state import State, state_of
from ..team import OPERATIONS, Known, Plan, Producer, Team

if TYPE_CHECKING:
    from ..base import IntraBase as Intracomm

# Bytes a channel should have to move before one more channel pays.
WORTH_A_CHANNEL = 1024
MOST_THREADS = 256  # of a block that moves packets; kFoldThreads of cuda/layout.cuh
ONE_SHOT_NBYTES = 512 << 10  # of a block that is reduced for one rank: packets are twice the bytes
PACKETS_NBYTES = 1 << 10  # of a message: longer ones go as lines, where there are; kPacketsNbytes
BESIDE_WINDOWS_NBYTES = 2 << 20  # of a vector that is reduced: between windows longer ones are loaded where they are
WORTH_A_CHANNEL_OF_LINES = 2048  # of a longer one: more than kPacketsNbytes of cuda/layout.cuh, so that a block sees it
LINES_NBYTES = 48 << 10  # of a block's part, if parts go both ways: longer ones go as chunks; kLinesNbytes
STRAIGHT_NBYTES = 24 << 10  # or, where there are windows, straight; kStraightNbytes
MOST_EARLY_BLOCKS = 32  # of a kernel that is launched early; kMostEarlyBlocks of cuda/layout.cuh
LEGACY_DEFAULT_STREAM = 1  # its number in array interfaces; CuPy says 0
_NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}
MOST_PLANS = 1024  # of a communicator; a program with more different calls than that makes them anew


class Choice(NamedTuple):
    """How an operation runs. Every rank comes to the same choice from what all ranks know."""

    kernel: str
    grid: int
    threads: int | None  # of a block; None: as many as the device offers
    why: str


class Rung(NamedTuple):
    """A kernel for messages up to some length: the shorter the message, the lower the rung."""

    kernel: str
    chosen: int  # for messages of at most so many bytes, unless a lower rung is
    most: int  # the longest message that it can move, in bytes
    channel_most: int  # and the longest part of one that a channel can; 0: a pipeline, which takes all channels
    messages: int = 1  # different ones that a rank sends
    lines: bool = False  # goes as lines, not as packets
    chain: bool = False  # goes from rank to rank, not as chunks between all
    beside_windows: int = sys.maxsize  # the longest where there are windows, between which longer ones are not copied


def as_packets(layout: Layout, kernel: str, nbytes: int, messages: int = 1, channel_most: int | None = None) -> Choice:
    """Small: as few channels as hold the message, more where each still has something to do.

    A rank has `messages` different messages of `nbytes` to move, a channel at most `channel_most` bytes of one.
    """
    each = min(WORTH_A_CHANNEL, layout.slot_nbytes if channel_most is None else channel_most)
    grid = max(1, min(layout.channels, -(-nbytes // each)))
    warps = _warps(nbytes, grid, messages) + 1  # the last announces, while the others begin
    why = f"packets, which messages of up to {layout.packet_nbytes} bytes fit"
    return Choice(kernel, grid, min(32 * warps, MOST_THREADS), why)


def _warps(nbytes: int, grid: int, messages: int) -> int:
    """Of a block, as many as have a pack for each lane, of its part of each of `messages` messages of `nbytes`."""
    return -(-nbytes // (grid * 32 * PACK_NBYTES)) * messages


def as_lines(
    layout: Layout, kernel: str, nbytes: int, channel_most: int, worth_a_channel: int = WORTH_A_CHANNEL
) -> Choice:
    """Of medium length: as many channels as have something to do."""
    grid = max(1, min(layout.channels, -(-nbytes // min(worth_a_channel, channel_most))))
    return Choice(kernel, grid, None, "lines of 128 bytes with a flag in each")


def as_chunks(layout: Layout, kernel: str) -> Choice:
    """Large: all channels."""
    why = f"in place where the buffers are in windows, else chunks of {layout.chunk_nbytes} bytes through the heap"
    return Choice(kernel, layout.channels, None, why)


def as_announced(layout: Layout, kernel: str, nbytes: int) -> Choice:
    """Messages that bring their lengths: all channels, for no rank knows what the others send.

    Of a rank whose buffers hold `nbytes` at most, which is its own affair, as many threads as have something to do:
    each warp of a block takes its time for what all of them ask first.
    """
    warps = _warps(nbytes, layout.channels, layout.peers) + 2  # one copies what stays, the last announces
    is_short = nbytes <= WORTH_A_CHANNEL * layout.channels
    packets = f"packets for messages of at most {layout.packet_nbytes} bytes"
    why = f"{packets}, longer ones as lines, straight to a window or as chunks, decided on the device"
    return Choice(kernel, layout.channels, 32 * warps if is_short else None, why)


def most_of(buffers: Iterable[Buffer]) -> int:
    """No less than the bytes of the longest buffer: a power of two, so that there are few plans."""
    return 1 << max(buffer.nbytes for buffer in buffers).bit_length()


def as_spans(layout: Layout, kernel: str, nbytes: int, *, both_ways: bool = True) -> Choice:
    """Messages of at most `nbytes` to each rank: packets, lines or chunks; the kernel does all of them."""
    most = (STRAIGHT_NBYTES if layout.windows else LINES_NBYTES) if both_ways else sys.maxsize
    fits_lines = nbytes <= layout.channels * min(layout.line_nbytes, most)
    if nbytes <= layout.packet_nbytes and (nbytes <= PACKETS_NBYTES or not fits_lines):
        return as_packets(layout, kernel, nbytes, layout.size - 1)
    if not fits_lines:
        return as_chunks(layout, kernel)
    return as_lines(layout, kernel, nbytes, layout.line_nbytes, WORTH_A_CHANNEL_OF_LINES)


def by_length(
    layout: Layout, nbytes: int, small: str, large: str, algorithm: str | None, limit: int, messages: int = 1
) -> Choice:
    """`small` if a message of `nbytes` fits the packet slots and `limit`, else `large`; or as the caller wants."""
    rungs = (Rung(small, limit, layout.packet_nbytes, layout.slot_nbytes, messages), pipeline(large))
    return climb(layout, nbytes, rungs, algorithm)


def in_lines(layout: Layout, kernel: str, channel_most: int, beside_windows: int = sys.maxsize) -> Rung:
    """A rung for all messages of which a channel has at most so many bytes; where there are no lines, for none."""
    most = max(0, channel_most)
    return Rung(kernel, sys.maxsize, most * layout.channels, max(1, most), lines=True, beside_windows=beside_windows)


def half_of_lines(layout: Layout) -> int:
    """The longest shard of which a slot holds both a contribution and the result, as lines."""
    return layout.slot_rows // 2 * ROW_PAYLOAD


def pipeline(kernel: str) -> Rung:
    """The highest rung: messages of any length."""
    return Rung(kernel, sys.maxsize, sys.maxsize, 0)


def chain(kernel: str) -> Rung:
    """The same for pieces that go from rank to rank."""
    return pipeline(kernel)._replace(chain=True)


def climb(layout: Layout, nbytes: int, rungs: tuple[Rung, ...], algorithm: str | None) -> Choice:
    """The lowest rung that is meant for a message of `nbytes`, and can move it; or as the caller wants.

    Raises
    ------
    ValueError
        If there is no such algorithm, or it cannot move the message.
    """
    operation = rungs[0].kernel.removesuffix(f"_{_short(rungs[0].kernel)}")
    names = {rung.kernel.removeprefix(f"{operation}_"): rung for rung in rungs}
    if algorithm is not None and algorithm not in names:
        raise ValueError(
            f"{operation.capitalize()}: algorithm is {algorithm!r}; it can be {' or '.join(map(repr, names))}, "
            "or None to let the size decide"
        )
    tuned = dict(layout.limits)
    fitting = (r for r in rungs[:-1] if nbytes <= _limit(layout, r, tuned))
    rung = names[algorithm] if algorithm else next(fitting, rungs[-1])
    if nbytes > rung.most:
        raise ValueError(
            f"{operation.capitalize()}: algorithm={algorithm!r} moves at most {rung.most} bytes here, "
            f"not {nbytes}; leave the choice to the size"
        )
    if rung.lines:
        choice = as_lines(layout, rung.kernel, nbytes, rung.channel_most)
    elif rung.chain:
        choice = Choice(rung.kernel, layout.channels, None, "pieces from rank to rank, through the heap")
    elif rung.channel_most:
        choice = as_packets(layout, rung.kernel, nbytes, rung.messages, rung.channel_most)
    else:
        choice = as_chunks(layout, rung.kernel)
    return choice._replace(why=f"{choice.why}; {'as asked for' if algorithm else _cut(layout, rungs, rung, tuned)}")


def _limit(layout: Layout, rung: Rung, tuned: dict[str, int]) -> int:
    """The longest message that a rung is chosen for, unless a lower one is."""
    return min(tuned.get(rung.kernel, rung.chosen), rung.most, rung.beside_windows if layout.windows else sys.maxsize)


def _cut(layout: Layout, rungs: tuple[Rung, ...], chosen: Rung, tuned: dict[str, int]) -> str:
    """What decided for a rung: the longest message for it, or for the one below the highest, and who says so."""
    last = chosen if chosen.channel_most else rungs[-2]
    source = "the measured table" if last.kernel in tuned else "the built-in rule"
    return f"{source} has {last.kernel} up to {_limit(layout, last, tuned)} bytes"


def _short(kernel: str) -> str:
    return next(kernel[-len(end) :] for end in ("one_shot", "direct") if kernel.endswith(end))


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
    early = choice.grid <= MOST_EARLY_BLOCKS and not in_python
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


def check_root(comm: Intracomm, operation: str, root: int) -> None:
    """Raise MPI.Exception of class ERR_ROOT unless `root` is a rank."""
    if not 0 <= root < comm.size:
        raise MPIError(MPI.ERR_ROOT, f"{operation}: root is {root}, the communicator's ranks are 0 to {comm.size - 1}")


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
