"""Events: what they hold, for listeners that are in the list when the operation begins."""

import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import events
from support.arrays import xp


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[events.Event]:
    found: list[events.Event] = []
    monkeypatch.setattr(events, "listeners", [found.append])
    return found


def test_what_they_hold(seen: list[events.Event]) -> None:
    x, y = xp.ones(10), xp.zeros(10)
    with pyncclx.Communicator(MPI.COMM_SELF).Dup() as comm:
        before = events.now()
        comm.Allreduce(x, y)
        comm.Sendrecv(x, 0, 0, y, 0, 0)
        comm.Send(x, MPI.PROC_NULL)
        starts = [comm.Allreduce_init(x, y), comm.Bcast_init(x)]
        type(starts[0]).Startall(starts)
        pyncclx.Request.Waitall(starts)
        assert [event.operation for event in seen] == ["Allreduce", "Sendrecv", "Send", "Allreduce_init", "Bcast_init"]
        assert [event.nbytes for event in seen] == [80, 80, 0, 80, 80]
        assert [event.peer for event in seen] == [None, 0, MPI.PROC_NULL, None, None]
        assert [event.together for event in seen] == [1, 1, 1, 2, 2]
        assert all(event.comm is comm for event in seen[:3])
        times = [before, *(time for event in seen[:4] for time in (event.began, event.ended)), events.now()]
        assert times == sorted(times)


def test_objects_that_are_sent_and_received(seen: list[events.Event]) -> None:
    """Long ones: each side emits one event, with the other rank."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.sendrecv({"array": xp.ones(20_000)}, right, 1, None, left, 1)
    held = [(event.operation, event.nbytes, event.peer) for event in seen]
    assert held == [("send", 160_000, right), ("recv", 160_000, left)]
    assert all(event.began <= event.ended for event in seen)


def test_a_call_that_raises_emits_none(seen: list[events.Event]) -> None:
    with pytest.raises(ValueError, match="mismatch"):
        pyncclx.Communicator(MPI.COMM_SELF).Allreduce(xp.ones(10), xp.zeros(11))
    assert seen == []


def test_without_listeners_no_event_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "Event", None)
    x, y = xp.ones(10), xp.zeros(10)
    pyncclx.Communicator(MPI.COMM_SELF).Allreduce(x, y)
    assert events.listeners == []
