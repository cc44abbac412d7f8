"""mpi_bootstrap on 1 to 8 ranks: nodes, exchange of bytes, agreement, file descriptors."""

import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap import mailbox, waiting
from support.everywhere import assert_everywhere, raises_everywhere

T = TypeVar("T")


@pytest.fixture(scope="module", params=["world", "halves", "reversed"])
def plain(request: pytest.FixtureRequest) -> Iterator[MPI.Intracomm]:
    """A communicator of mpi4py's own."""
    world = MPI.COMM_WORLD
    split = {"world": (0, 0), "halves": (world.rank * 2 // world.size, 0), "reversed": (0, -world.rank)}
    comm = world.Split(*split[request.param])
    yield comm
    comm.Free()


@pytest.fixture
def fd(plain: MPI.Intracomm) -> Iterator[int]:
    """A file that contains this rank's number; no descriptor is left over after the test."""
    before = set(os.listdir("/proc/self/fd"))
    descriptor = os.memfd_create("test")
    os.write(descriptor, f"rank {plain.rank}".encode())
    yield descriptor
    os.close(descriptor)
    assert set(os.listdir("/proc/self/fd")) <= before  # what was garbage before may be gone


def sources(received: dict[int, int]) -> dict[int, str]:
    """What the received files contain; closes them."""
    contents = {rank: os.pread(descriptor, 100, 0).decode() for rank, descriptor in received.items()}
    mailbox.close_all(received.values())
    return contents


# ---- places --------------------------------------------------------------------------------------------


def test_topology_of_one_node(plain: MPI.Intracomm) -> None:
    found = mpi_bootstrap.topology(plain)
    assert (found.rank, found.size) == (plain.rank, plain.size)
    assert found.nodes[plain.rank] == found.node == 0
    assert found.local_ranks[found.local_rank] == plain.rank
    assert len(found.local_ranks) == found.local_size
    assert found.hostname == MPI.Get_processor_name()


def test_topology_numbers_nodes_by_their_lowest_rank(
    plain: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if even and odd ranks were on two nodes."""
    monkeypatch.setenv("PYNCCLX_NODE", f"node {plain.rank % 2}")
    found = mpi_bootstrap.topology(plain)
    assert found.nodes == tuple(rank % 2 for rank in range(plain.size))
    assert found.local_ranks == tuple(range(plain.rank % 2, plain.size, 2))
    assert (found.local_rank, found.local_size) == (plain.rank // 2, len(found.local_ranks))
    assert not found.is_divided
    assert mpi_bootstrap.topology(plain, pretended=False).nodes == (0,) * plain.size


def test_a_node_of_too_many_ranks_is_divided(plain: MPI.Intracomm) -> None:
    found = mpi_bootstrap.topology(plain, most=2)
    parts = -(-plain.size // 2)
    assert found.nodes == tuple(rank * parts // plain.size for rank in range(plain.size))
    assert (found.node_count, found.is_divided) == (parts, parts > 1)
    assert max(map(found.nodes.count, found.nodes)) <= 2
    assert found.local_size == found.nodes.count(found.node)


def test_ranks_of_one_node_can_be_taken_apart(plain: MPI.Intracomm) -> None:
    found = mpi_bootstrap.topology(plain, apart=bytes([plain.rank % 2]))
    assert found.nodes == tuple(rank % 2 for rank in range(plain.size))


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_a_launch_is_accepted_unless_the_process_is_alone(plain: MPI.Intracomm, name: str) -> None:
    """A communicator of one rank is accepted if the world has more."""
    mpi_bootstrap.check_launch(plain)
    alone = MPI.COMM_WORLD.size == 1
    for comm in (plain, MPI.COMM_SELF):
        with pytest.raises(mpi_bootstrap.LaunchError, match=name) if alone else nullcontext():
            mpi_bootstrap.check_launch(comm, {name: "8"})


# ---- bytes ---------------------------------------------------------------------------------------------


def test_allgather_bytes_of_different_lengths(plain: MPI.Intracomm) -> None:
    blocks = mpi_bootstrap.allgather_bytes(plain, bytes([plain.rank]) * (plain.rank * 1000))
    assert blocks == [bytes([rank]) * (rank * 1000) for rank in range(plain.size)]


@pytest.mark.parametrize("at_once", [64, 0])
@pytest.mark.parametrize("longest", [1, 1016, 1017, 5000])
def test_allgather_bytes_where_one_rank_has_most(
    plain: MPI.Intracomm, longest: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi_bootstrap.agreement, "_MOST_AT_ONCE", at_once)
    lengths = [longest if rank == plain.size - 1 else rank for rank in range(plain.size)]
    blocks = mpi_bootstrap.allgather_bytes(plain, bytes([plain.rank + 1]) * lengths[plain.rank])
    assert blocks == [bytes([rank + 1]) * length for rank, length in enumerate(lengths)]


def test_allgather_bytes_of_nothing(plain: MPI.Intracomm) -> None:
    assert mpi_bootstrap.allgather_bytes(plain, b"") == [b""] * plain.size


@pytest.mark.parametrize("givers", ["none", "last", "all", "all but the first"])
def test_first_bytes_are_those_of_the_lowest_rank_that_has_any(plain: MPI.Intracomm, givers: str) -> None:
    first = {"none": plain.size, "last": plain.size - 1, "all": 0, "all but the first": 1}[givers]
    own = b"of rank %d" % plain.rank * 1000 if plain.rank >= first else b""
    expected = None if first >= plain.size else (first, b"of rank %d" % first * 1000)
    assert mpi_bootstrap.first_bytes(plain, own) == expected


# ---- agreement -----------------------------------------------------------------------------------------


def exchanged(comm: MPI.Intracomm, operation: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """`exchange` in the form of `agree`."""
    own: list[T] = []

    def make() -> None:
        own.append(operation())

    mpi_bootstrap.exchange(comm, make, None if undo is None else lambda: undo(own[0]))
    return own[0]


BOTH = pytest.mark.parametrize("together", [mpi_bootstrap.agree, exchanged])


def test_exchange_gives_the_results_of_all_ranks(plain: MPI.Intracomm) -> None:
    found = mpi_bootstrap.exchange(plain, lambda: ("x" * 900 * plain.rank, plain.rank))
    assert found == [("x" * 900 * rank, rank) for rank in range(plain.size)]


def test_exchange_of_what_no_rank_can_send(plain: MPI.Intracomm) -> None:
    """All raise; then they go on."""
    with raises_everywhere(plain, (AttributeError, pickle.PicklingError), match=f"failed on rank {plain.size - 1} of"):
        mpi_bootstrap.exchange(plain, lambda: (lambda: 0) if plain.rank == plain.size - 1 else 0)
    assert mpi_bootstrap.exchange(plain, lambda: plain.rank) == list(range(plain.size))


def test_agree_gives_each_rank_its_result(plain: MPI.Intracomm) -> None:
    assert mpi_bootstrap.agree(plain, lambda: plain.rank**2) == plain.rank**2


def test_agree_names_ranks_in_every_byte_of_its_table(plain: MPI.Intracomm) -> None:
    def operation() -> None:
        if plain.rank % 3 == 1:
            raise ValueError(f"rank {plain.rank}")

    failing = list(range(1, plain.size, 3))
    if not failing:
        mpi_bootstrap.agree(plain, operation)
        return
    where = f"rank{'s' * (len(failing) > 1)} {', '.join(map(str, failing))} of {plain.size}"
    with raises_everywhere(plain, ValueError, match=f"rank 1 .failed on {where}"):
        mpi_bootstrap.agree(plain, operation)


@BOTH
@pytest.mark.parametrize("error", [ValueError("seven"), OSError(12, "no memory"), RuntimeError("a", 1)])
def test_agree_raises_the_lowest_failing_ranks_error(plain: MPI.Intracomm, error: Exception, together: Any) -> None:
    last = plain.size - 1
    undone: list[int] = []

    def operation() -> int:
        if plain.rank == last:
            raise error
        return plain.rank

    with raises_everywhere(plain, type(error)) as raised:
        together(plain, operation, undo=undone.append)
    assert f"[failed on rank {last} of {plain.size}]" in str(raised.value)
    assert undone == ([] if plain.rank == last else [plain.rank])
    assert raised.value.__cause__ is (error if plain.rank == last else None)


@BOTH
@pytest.mark.ranks(2)
@pytest.mark.parametrize("parts", [1, 2])
def test_agree_among_all_after_some(plain: MPI.Intracomm, parts: int, together: Any) -> None:
    """The ranks of a part that agree on a failure go on with it: the rank where it was is named, and named once."""
    last, undone = plain.size - 1, list[str]()
    part = plain.Split(plain.rank % parts, plain.rank)
    own = OSError(12, "no memory") if parts == 1 else ValueError("seven")
    failing = last % parts == plain.rank % parts

    def operation() -> None:
        if plain.rank == last:
            raise own

    def operations() -> str:
        mpi_bootstrap.agree(part, operation)
        return "done"

    with raises_everywhere(plain, type(own)) as raised:
        together(plain, operations, undo=undone.append)
    part.Free()
    where = f"[failed on rank {last} of {plain.size}]"
    assert_everywhere(plain, str(raised.value).count("failed on") == 1 and where in str(raised.value))
    assert undone == ([] if failing else ["done"])
    assert raised.value.__cause__ is (own if plain.rank == last else None)


def test_agree_among_all_after_others(plain: MPI.Intracomm) -> None:
    """A failure that was agreed on before, on ranks that do not take part, counts where it is raised."""
    with pytest.raises(ValueError, match="failed on rank 0 of 1") as before:
        mpi_bootstrap.agree(MPI.COMM_SELF, lambda: int("no number"))
    before.value.__dict__["_agreed"] = before.value.__dict__["_agreed"]._replace(failed_here=False)

    def operation() -> None:
        if plain.rank == plain.size - 1:
            raise before.value

    with raises_everywhere(plain, ValueError, match=f"no number' .failed on rank {plain.size - 1} of {plain.size}.$"):
        mpi_bootstrap.agree(plain, operation)


@BOTH
def test_agree_names_all_failing_ranks(plain: MPI.Intracomm, together: Any) -> None:
    def operation() -> None:
        raise KeyError(plain.rank)

    with raises_everywhere(plain, KeyError) as raised:
        together(plain, operation)
    ranks = ", ".join(map(str, range(plain.size)))
    assert raised.value.args == (0,)  # rank 0's, on every rank
    assert raised.value.__notes__ == [f"[failed on rank{'s' * (plain.size > 1)} {ranks} of {plain.size}]"]


def test_agree_keeps_the_class_of_an_mpi_error(plain: MPI.Intracomm) -> None:
    def operation() -> None:
        raise MPI.Exception(MPI.ERR_OP)

    with raises_everywhere(plain, MPI.Exception) as raised:
        mpi_bootstrap.agree(plain, operation)
    assert raised.value.Get_error_class() == MPI.ERR_OP


def test_agree_replaces_an_error_that_cannot_travel(plain: MPI.Intracomm) -> None:
    class Local(Exception):
        """Defined inside of a function: pickle cannot find it."""

    def operation() -> None:
        raise Local("only here")

    with raises_everywhere(plain, RuntimeError, match="Local: only here"):
        mpi_bootstrap.agree(plain, operation)


class Unspeakable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def test_agree_reports_an_error_without_a_text(plain: MPI.Intracomm) -> None:
    def operation() -> None:
        raise Unspeakable

    with raises_everywhere(plain, RuntimeError, match="Unspeakable"):
        mpi_bootstrap.agree(plain, operation)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_agree_reports_what_ends_a_program(plain: MPI.Intracomm, kind: type[BaseException]) -> None:
    """The rank that is interrupted raises that, the others an error that names it."""
    last, own = plain.size - 1, kind()

    def operation() -> None:
        if plain.rank == last:
            raise own

    with pytest.raises(kind if plain.rank == last else RuntimeError) as raised:
        mpi_bootstrap.agree(plain, operation)
    text = f"{kind.__name__} [failed on rank {last} of {plain.size}]"
    assert_everywhere(plain, raised.value is own if plain.rank == last else str(raised.value) == text)


def test_ctrl_c_between_two_meetings(plain: MPI.Intracomm) -> None:
    """It is raised at the end, on this rank only, as after a call of MPI's."""
    last, seen = plain.size - 1, []

    @mpi_bootstrap.interrupts_deferred()
    def meet_twice() -> None:
        mpi_bootstrap.allgather_bytes(plain, b"")
        if plain.rank == last:
            signal.raise_signal(signal.SIGINT)
        seen.append(mpi_bootstrap.allgather_bytes(plain, b"1"))
        mpi_bootstrap.agree(plain, lambda: None)

    for calls in (1, 2):
        with pytest.raises(KeyboardInterrupt) if plain.rank == last else nullcontext():
            meet_twice()
        assert_everywhere(plain, len(seen) == calls)
    assert_everywhere(plain, len(seen) == 2 and signal.getsignal(signal.SIGINT) is signal.default_int_handler)


# ---- file descriptors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("offsets", [(), (0,), (1,), (0, -1), tuple(range(8))])
def test_descriptors_of_the_wanted_ranks(plain: MPI.Intracomm, fd: int, offsets: tuple[int, ...]) -> None:
    wanted = {(plain.rank + offset) % plain.size for offset in offsets}
    received = mpi_bootstrap.allgather_fds(plain, fd, wanted)
    assert fd not in received.values()
    assert not any(os.get_inheritable(descriptor) for descriptor in received.values())
    assert sources(received) == {rank: f"rank {rank}" for rank in sorted(wanted)}


def test_ranks_may_want_differently(plain: MPI.Intracomm, fd: int) -> None:
    wanted = range(plain.size) if plain.rank == 0 else ()
    received = mpi_bootstrap.allgather_fds(plain, fd, wanted)
    assert list(received) == list(wanted)
    sources(received)


def test_exchanges_follow_each_other(plain: MPI.Intracomm, fd: int) -> None:
    for _ in range(20):
        assert len(sources(mpi_bootstrap.allgather_fds(plain, fd, range(plain.size)))) == plain.size


def test_a_rank_that_is_not_there(plain: MPI.Intracomm, fd: int) -> None:
    wanted = [plain.size] if plain.rank == plain.size - 1 else []
    with raises_everywhere(
        plain, ValueError, match=f"rank {plain.size - 1} wants .* of rank {plain.size}, but"
    ):
        mpi_bootstrap.allgather_fds(plain, fd, wanted)


@pytest.mark.ranks(4)
def test_a_rank_on_another_node(plain: MPI.Intracomm, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if plain.rank == 1:
        monkeypatch.setenv("PYNCCLX_NODE", "elsewhere")
    with raises_everywhere(plain, ValueError, match=r"rank 0 wants .* of rank 1, .* different nodes"):
        mpi_bootstrap.allgather_fds(plain, fd, range(plain.size))
    own = mpi_bootstrap.allgather_fds(plain, fd, [plain.rank])  # no rank wants one of the other node
    assert sources(own) == {plain.rank: f"rank {plain.rank}"}


def test_a_descriptor_that_is_not_open(plain: MPI.Intracomm, fd: int) -> None:
    began = time.monotonic()
    with raises_everywhere(plain, OSError, match="failed on rank 0 of"):
        mpi_bootstrap.allgather_fds(plain, fd if plain.rank else 1_000_000, range(plain.size))
    assert time.monotonic() - began < 10


@pytest.mark.ranks(4)
def test_a_rank_that_does_not_deliver(plain: MPI.Intracomm, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if plain.rank == 1:
        monkeypatch.setattr(mailbox.Mailbox, "post", lambda *args: False)
    with raises_everywhere(plain, TimeoutError, match=r"nothing came from ranks \[(0, )?1\b"):
        mpi_bootstrap.allgather_fds(plain, fd, range(plain.size), timeout=0.5)


@pytest.mark.ranks(2)
def test_descriptors_take_no_longer_than_ranks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_policies", [Impatient()])
    world = MPI.COMM_WORLD
    if world.rank == 1:
        monkeypatch.setattr(mailbox.Mailbox, "post", lambda *args: False)
    with open("/dev/null") as file, raises_everywhere(world, TimeoutError, match=r"not finished after 1 s"):
        mpi_bootstrap.allgather_fds(world, file.fileno(), range(world.size))


class Impatient(waiting.WaitPolicy):
    """Waits for a second."""

    def seconds(self) -> float:
        return 1.0


@pytest.mark.ranks(2)
@pytest.mark.parametrize("late", [0, -1], ids=["first", "last"])
def test_a_meeting_names_the_ranks_that_are_late(monkeypatch: pytest.MonkeyPatch, late: int) -> None:
    monkeypatch.setattr(waiting, "_policies", [Impatient()])
    world = MPI.COMM_WORLD
    comm, missing, text = world.Dup(), late % world.size, ""
    if comm.rank != missing:
        with pytest.raises(TimeoutError) as raised:
            mpi_bootstrap.allgather_bytes(comm, b"here")
        text = str(raised.value)
    world.Barrier()
    assert_everywhere(world, comm.rank == missing or f"timed out waiting for ranks [{missing}]" in text, text)


def test_queues_of_ten_letters_suffice_for_many_senders(plain: MPI.Intracomm, fd: int) -> None:
    """What happens with more ranks than a socket's queue holds, between two mailboxes of one process."""
    ours, theirs = mailbox.Mailbox(fd), mailbox.Mailbox(fd)
    posted = sum(ours.post(sender, theirs.address) for sender in range(1000))
    assert 0 < posted < 1000
    collected = [theirs.collect() for _ in range(posted)]
    assert [letter[0] for letter in collected if letter] == list(range(posted))
    assert theirs.collect() is None
    assert ours.post(7, theirs.address)
    mailbox.close_all(letter[1] for letter in collected if letter)
    ours.close()
    theirs.close()


def test_letters_of_strangers_are_dropped(plain: MPI.Intracomm, fd: int) -> None:
    ours, theirs = mailbox.Mailbox(fd), mailbox.Mailbox(fd)
    ours.post(3, theirs.address._replace(token=b"?" * 16))
    ours._socket.sendto(b"noise", theirs.address.name)
    ours.post(4, theirs.address)
    letter = theirs.collect()
    assert letter is not None
    os.close(letter[1])
    assert letter[0] == 4
    assert theirs.collect() is None
    ours.close()
    theirs.close()
    assert_everywhere(plain, True)


def test_strangers_do_not_fill_the_queue(plain: MPI.Intracomm, fd: int) -> None:
    ours, theirs = mailbox.Mailbox(fd), mailbox.Mailbox(fd)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger, suppress(BlockingIOError):
        stranger.setblocking(False)
        for _ in range(1000):
            stranger.sendto(b"noise", theirs.address.name)
    assert ours.post(4, theirs.address)
    letter = theirs.collect()
    assert letter is not None
    os.close(letter[1])
    assert letter[0] == 4
    assert theirs.strangers == 0
    ours.close()
    theirs.close()


def test_a_flood_does_not_delay_the_timeout(
    plain: MPI.Intracomm, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel has no filter for sockets."""
    flooded = SimpleNamespace(recvmsg=lambda *_: (b"noise", [], 0, None))

    def collect(self: mailbox.Mailbox) -> None:
        with monkeypatch.context() as context:
            context.setattr(self, "_socket", flooded)
            assert unpatched(self) is None

    unpatched = mailbox.Mailbox.collect
    monkeypatch.setattr(mailbox.Mailbox, "collect", collect)
    wanted = {(plain.rank + 1) % plain.size} - {plain.rank}
    began = time.monotonic()
    if plain.size == 1:
        assert not mpi_bootstrap.allgather_fds(plain, fd, wanted)
    else:
        with raises_everywhere(plain, TimeoutError, match=r"; \d+ letters of processes that are no ranks"):
            mpi_bootstrap.allgather_fds(plain, fd, wanted, timeout=0.3)
    assert time.monotonic() - began < 10
