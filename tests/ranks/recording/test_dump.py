"""Dumps and hooks: by the program, after failures, and what they hold."""

import json
import threading

import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.recording import dump, failures
from support.arrays import xp


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PYNCCLX_DUMP", str(tmp_path))
    return tmp_path


@pytest.fixture
def seen():
    events = []
    remove = pyncclx.on_event(events.append, slow_s=0.5)
    yield events
    remove()


def test_it_says_where_the_rank_is(comm, folder):
    comm.Allreduce(xp.ones(4), xp.zeros(4))
    comm.synchronize()
    path = pyncclx.dump("a test")
    assert path == folder / f"rank-{MPI.COMM_WORLD.rank}.json"
    assert [each.name for each in folder.iterdir()] == [path.name]  # whole, and nothing beside
    record = json.loads(path.read_text())
    assert (record["reason"], record["process"]["rank"], record["state"]) == ("a test", MPI.COMM_WORLD.rank, "running")
    assert "Allreduce" in {entry["operation"] for entry in record["entries"]}
    main = next(stack for stack in record["stacks"] if stack["main"])
    assert any("test_dump.py" in frame for frame in main["frames"])
    place = str(comm.state.calls(comm).reference)
    progress = record["progress"][place]
    numbers = [entry["number"] for entry in record["entries"] if str(entry["comm"]) == place]
    assert progress["epoch"] <= max(numbers, default=0) - progress["skipped"] + 1


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert pyncclx.dump(to=tmp_path / "file" / "folder") is None


def test_failures_dump_once(folder, monkeypatch, seen):
    monkeypatch.setattr(failures, "_REPORTER", failures.PerProcess(failures._Reporter))
    written = []
    monkeypatch.setattr(dump, "write", lambda own, reason, to: written.append(reason))
    pyncclx.Communicator(MPI.COMM_WORLD)
    error = pyncclx.PeerTimeout("Allreduce", 7, 0, 1, 7, 6)
    for each in (error, error, pyncclx.PeerTimeout("Bcast", 8, 0, 1, 8, 6)):
        assert failures.noted(each) is each
    assert [reason.partition(" (")[0] for reason in written] == [
        "PeerTimeout: Allreduce: rank 0 timed out waiting for rank 1"
    ]
    failures.noted(pyncclx.CollectiveMismatch("ranks disagree"))
    assert [event.kind for event in seen] == ["failure"] * 3 + ["mismatch"]
    assert (seen[0].operation, seen[0].error) == ("Allreduce", error)


def test_hooks_see_starts_and_ends(comm, seen):
    x, y = xp.ones(4), xp.zeros(4)
    for _ in range(2):
        comm.Allreduce(x, y)
    peer = (comm.rank + 1) % comm.size
    comm.Sendrecv(x, peer, 3, y, (comm.rank - 1) % comm.size, 3)
    comm.Iallreduce(x, y).Wait()
    request = comm.Allreduce_init(x, y)
    request.Start()
    request.Wait()
    names = ["Allreduce", "Allreduce", "Sendrecv", "Iallreduce", "Allreduce_init"]
    assert [(e.kind, e.operation) for e in seen if e.kind != "slow"] == [
        (kind, name) for name in names for kind in ("start", "end")
    ]


def test_a_hook_that_raises_harms_nobody(comm, caplog):
    def hook(event):
        raise RuntimeError("my mistake")

    remove = pyncclx.on_event(hook)
    y = xp.zeros(4)
    comm.Allreduce(xp.ones(4), y)
    remove()
    remove()
    comm.synchronize()
    assert float(y[0]) == comm.size
    assert "a hook of pyncclx.on_event has raised" in caplog.text


def test_a_hook_that_removes_itself_hides_nothing_from_the_next(comm, seen):
    def once(event):
        remove()

    later = []
    remove, remove_later = pyncclx.on_event(once), pyncclx.on_event(later.append)
    comm.Allreduce(xp.ones(4), xp.zeros(4))
    remove_later()
    assert [(e.kind, e.operation) for e in later] == [("start", "Allreduce"), ("end", "Allreduce")]


def test_what_is_no_hook():
    with pytest.raises(TypeError, match="expecting a function"):
        pyncclx.on_event(7)


def test_stacks_name_all_threads():
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="mine")
    thread.start()
    found = {stack["thread"]: stack for stack in dump.stacks()}
    over.set()
    thread.join()
    assert found["MainThread"]["main"]
    assert not found["mine"]["main"]
