"""Each operation leaves an entry that says what was called; collective ones are numbered alike on all ranks."""

import mmap

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.recording import calls, layout
from pyncclx.recording.layout import Reading
from pyncclx.recording.ring import Ring
from pyncclx.system.process import PerProcess
from support.arrays import xp

HERE = "test_entries.py:"


@pytest.fixture
def since(monkeypatch):
    """Returns the entries since the test began, which are in a ring of its own."""
    own = Ring(mmap.mmap(-1, layout.NBYTES))
    monkeypatch.setattr(calls, "RING", PerProcess(lambda: own))

    def entries():
        reading = Reading(bytes(own.memory))
        found = reading.entries()
        comms = reading.comms(found)
        return [entry | {"comm": comms[entry["comm"]]} for entry in found]

    return entries


@pytest.fixture
def own(comm, since):
    """A communicator that has recorded nothing yet."""
    with comm.Dup() as own:
        yield own


def test_a_group_of_some_ranks_leaves_numbers_equal(own):
    """Open MPI copies the parent's attributes to what `Create_group` makes, on the ranks that call it."""
    if own.rank > 0:
        MPI.Intracomm.Create_group(own, own.group.Excl([0])).Free()
    with own.Dup() as other:
        assert len(set(MPI.Comm.allgather(own, other.state.identity))) == 1


def shortened(entry):
    names = "kind", "operation", "elements", "nbytes", "datatype", "operator", "peer"
    return tuple(entry[name] for name in names)


def test_collectives(own, since):
    world = MPI.Comm.allgather(own, MPI.COMM_WORLD.rank)
    last = own.size - 1
    x, y = xp.ones(10), xp.zeros(10)
    wide = xp.zeros(10 * own.size)
    for _ in range(3):
        own.Allreduce(x, y)
        own.Reduce(x, y, MPI.MAX, root=last)
        own.Bcast(x, root=last)
        own.Allgather(x, wide)
        own.Gather(x, wide, root=0)
        own.Barrier()
    entries = since()
    expected = [
        ("collective", "Allreduce", 10, 80, "float64", "SUM", -1),
        ("collective", "Reduce", 10, 80, "float64", "MAX", world[last]),
        ("collective", "Bcast", 10, 80, "float64", "", world[last]),
        ("collective", "Allgather", 10, 80, "float64", "", -1),
        ("collective", "Gather", 10, 80, "float64", "", world[0]),
        ("host", "Barrier", 0, 0, "", "", -1),
    ]
    assert list(map(shortened, entries)) == expected * 3
    assert all(HERE in entry["site"] and entry["site"].endswith("in test_collectives") for entry in entries)
    assert all(entry["algorithm"] for entry in entries if entry["kind"] == "collective")
    assert {tuple(entry["comm"]["world"]) for entry in entries} == {tuple(world)}
    assert entries[0]["flags"] == []
    assert entries[12]["flags"] == ["repeated"]
    times = [entry["began_ns"] for entry in entries]
    assert times == sorted(times)
    equal = [(e["comm"]["number"], e["number"], e["operation"], e["signature"]) for e in entries]
    assert MPI.Comm.allgather(own, equal) == [equal] * own.size
    numbers = [entry["number"] for entry in entries]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.ranks(2)
def test_collectives_over_nodes(since, monkeypatch):
    """Equal calls have entries of their own; a call with wrong arguments is over, and has no number."""
    monkeypatch.setenv("PYNCCLX_NODE", str(MPI.COMM_WORLD.rank % 2))
    x, y = xp.ones(10), xp.zeros(10)
    with pyncclx.Communicator().Dup() as own:
        for _ in range(3):
            own.Allreduce(x, y)
            own.Bcast(x, own.size - 1)
        with pytest.raises(ValueError, match="mismatch in send count 10"):
            own.Allreduce(x, y[:5])
        own.Allreduce(x, y)
    *entries, wrong, last, _ = since()  # Free, too
    expected = [("collective", operation, 10, 80, "float64", "", -1) for operation in ("Allreduce", "Bcast")]
    assert list(map(shortened, [*entries, last])) == [*expected * 3, expected[0]]
    assert [entry["number"] for entry in [*entries, last]] == [1, 2, 3, 4, 5, 6, 7]
    assert [entry["flags"] for entry in [*entries, last]] == [[], [], *[["repeated"]] * 5]
    assert all(entry["began_ns"] <= entry["ended_ns"] for entry in [*entries, wrong, last])
    assert all(entry["site"].endswith("in test_collectives_over_nodes") for entry in entries)
    assert wrong["number"] == 0
    assert len({entry["signature"] for entry in entries}) == 2


def test_the_signature_shows_what_differs(own, since):
    own.Allreduce(xp.ones(10), xp.zeros(10))
    own.Allreduce(xp.ones(10), xp.zeros(10), MPI.MAX)
    own.Allreduce(xp.ones(10, "f4"), xp.zeros(10, "f4"))
    own.Allreduce(xp.ones(11), xp.zeros(11))
    assert len({entry["signature"] for entry in since()}) == 4


def test_nonblocking_and_persistent(own, since):
    x, y = xp.ones(10), xp.zeros(10)
    own.Iallreduce(x, y).Wait()
    request = own.Allreduce_init(x, y)
    for _ in range(2):
        request.Start()
        request.Wait()
    type(request).Startall([request])
    request.Wait()
    entries = since()
    assert [(entry["operation"], entry["kind"]) for entry in entries] == [
        ("Allreduce", "collective"),
        ("Allreduce_init", "meeting"),
        *[("Allreduce", "collective")] * 3,
    ]
    assert entries[0]["flags"] == ["nonblocking"]
    assert all("persistent" in entry["flags"] for entry in entries[2:])


@pytest.mark.ranks(2)
def test_messages(own, since):
    world = MPI.Comm.allgather(own, MPI.COMM_WORLD.rank)
    x, y = xp.ones(10), xp.zeros(10)
    to, source = (own.rank + 1) % own.size, (own.rank - 1) % own.size
    own.Sendrecv(x, to, 3, y, source, 3)
    request = own.Irecv(y, MPI.ANY_SOURCE, 4)
    before = since()
    own.Send(x, to, 4)
    request.Wait()
    entries = [(e["kind"], e["operation"], e["nbytes"], e["peer"], e["tag"], bool(e["ended_ns"])) for e in since()]
    assert sorted(entries) == sorted(
        [
            ("message", "Sendrecv", 80, world[source], 3, True),
            ("message", "Sendrecv", 80, world[to], 3, True),
            ("message", "Irecv", 80, world[source], 4, True),  # once it has arrived
            ("message", "Send", 80, world[to], 4, True),
        ]
    )
    if own.size > 1:
        assert (before[-1]["operation"], before[-1]["peer"], before[-1]["ended_ns"]) == ("Irecv", -1, None)


def test_wrong_arguments_have_no_number(own, since):
    """So that the numbers of this rank remain those of the others."""
    x, y = xp.ones(10), xp.zeros(10)
    own.Allreduce(x, y)
    if own.rank == 0:
        with pytest.raises(ValueError, match="mismatch"):
            own.Allreduce(x, xp.zeros(11))
    own.Allreduce(x, y)
    numbers = [entry["number"] for entry in since() if entry["number"]]
    assert MPI.Comm.allgather(own, numbers) == [numbers] * own.size
    assert len(numbers) == 2
    assert all(entry["ended_ns"] for entry in since() if not entry["number"])  # it is not under way


def test_meetings_and_windows(own, since):
    world = MPI.Comm.allgather(own, MPI.COMM_WORLD.rank)
    memory = own.Alloc(10, "f8")
    win = pyncclx.Win.Create(memory, 8, comm=own)
    win.Fence()
    win.Put(xp.ones(2), 0)
    win.Fence()
    win.Lock(0)
    win.Unlock(0)
    win.Free()
    operations = [(e["kind"], e["operation"], e["peer"], e["comm"]["kind"], bool(e["ended_ns"])) for e in since()]
    assert operations == [
        ("meeting", "Alloc", -1, "comm", True),
        ("meeting", "Win.Create", -1, "comm", True),
        ("meeting", "Fence", -1, "win", True),
        ("access", "Put", world[0], "win", False),
        ("meeting", "Fence", -1, "win", True),
        ("access", "Lock", world[0], "win", True),
        ("access", "Unlock", world[0], "win", True),
        ("meeting", "Win.Free", -1, "win", True),
    ]


def test_token_shuffles(own, since):
    experts = 2 * own.size
    with own.Create_token_shuffle(experts, capacity=64, hidden=16, dtype="f4", k=2, max_tokens=8) as s:
        ids = xp.asarray(np.stack([np.arange(4), np.arange(4) + 1], 1) % experts)
        for _ in range(2):
            rows, handle = s.dispatch(xp.ones((4, 16), "f4"), ids)
            s.combine(rows.data, handle)
    operations = [(entry["kind"], entry["operation"], entry["number"] > 0) for entry in since()]
    assert operations == [
        ("meeting", "Create_token_shuffle", True),
        *[("shuffle", "dispatch", True), ("shuffle", "combine", True)] * 2,
    ]


@pytest.mark.ranks(2)
def test_communicators_of_the_same_ranks_differ(own, since):
    """By a number that does not depend on which is used first."""
    first, second = own.Dup(), own.Dup()
    first.Set_name("first")
    second.Set_name("second")
    x = xp.ones(1)
    requests = [each.Iallreduce(x, xp.zeros(1)) for each in (first, second)]
    for request in requests:
        request.Wait()
    named = {entry["comm"]["name"]: entry["comm"]["number"] for entry in since()}
    assert named["second"] == named["first"] + 1
    assert MPI.Comm.allgather(own, named) == [named] * own.size
    first.Free()
    second.Free()
