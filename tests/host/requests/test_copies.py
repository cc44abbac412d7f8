"""Copies of requests by the library's classes, where completion needs more than MPI's."""

import itertools
from contextlib import nullcontext
from pathlib import Path

import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.staging import completion, stage
from pyncclx.staging.arguments import GivenCall
from pyncclx.staging.requests import Prequest, Request
from support.arrays import get
from support.interruption import Interruption


@pytest.mark.parametrize("kind", [pyncclx.Request, Request, MPI.Request])
def test_a_copy_of_a_staged_request(monkeypatch, kind):
    """Its completion copies the data back, though the program keeps the request."""
    copied = []
    monkeypatch.setattr(completion, "copy_back", copied.append)
    staged = completion.copy_back_on_completion(MPI.COMM_SELF.Ibarrier(), ["the copy"])
    copy = kind(staged)
    assert copied == []
    copy.Wait()
    assert copied == [["the copy"]]
    staged.Wait()
    del staged
    assert not completion._abandoned


def test_a_dropped_staged_request(monkeypatch):
    """MPI's request is not the program's, so nothing that the program does with its handle makes it invalid."""
    copied = []
    monkeypatch.setattr(completion, "copy_back", copied.append)
    staged = completion.copy_back_on_completion(MPI.COMM_SELF.Irecv(bytearray(8), 0, 5), ["the copy"])
    copy = MPI.Request(staged)
    del staged
    completion.look_after_abandoned()
    assert (len(completion._abandoned), copied) == (1, [])
    MPI.COMM_SELF.Send(bytearray(8), 0, 5)
    del copy
    completion.look_after_abandoned()
    assert (completion._abandoned, copied) == ([], [["the copy"]])


@pytest.mark.parametrize("kind", [pyncclx.Request, Request])
@pytest.mark.parametrize("wait", [lambda request: request.Wait(), lambda request: pyncclx.Request.Waitall([request])])
def test_a_copy_of_a_request_of_mpi(kind, wait):
    """MPI completes the copy, also in a list. It is no `pyncclx.Request`, since MPI has begun its operation."""
    request = MPI.COMM_SELF.Irecv(bytearray(8), 0)
    copy = kind(request)
    assert type(copy) is (MPI.Request if kind is pyncclx.Request else kind)
    assert copy == request
    MPI.COMM_SELF.Send(bytearray(8), 0)
    wait(copy)
    assert not copy
    assert not kind()


@pytest.mark.parametrize("kind", [pyncclx.Prequest, Prequest])
def test_a_copy_of_a_persistent_request(kind):
    """A copy starts and completes what the request does: a device array's, a host array's, and MPI's."""
    comm = pyncclx.Communicator(MPI.COMM_SELF)
    sent, received, host = comm.Alloc(3), comm.Alloc(3), bytearray(3)
    requests = [
        comm.Recv_init(received, 0, 1),
        comm.Send_init(sent, 0, 1),
        comm.Recv_init([host, MPI.BYTE], 0, 2),
        comm.Send_init([bytearray(b"abc"), MPI.BYTE], 0, 2),
    ]
    copies = [kind(each) for each in requests]
    assert all(copy is each for copy, each in zip(copies[:3], requests, strict=False))
    for number in range(2):
        sent[:] = number + 1
        for copy in copies:
            copy.Start()
        assert pyncclx.Request.Waitall(copies)
        comm.synchronize()
        assert (get(received).tolist(), host) == ([number + 1] * 3, b"abc")
        host[:] = b"   "
    for copy in copies:
        copy.Free()
    assert not any(copies)
    comm.free()


def test_an_interrupted_staged_call(monkeypatch):
    """Wherever the interrupt comes, MPI receives into memory that is kept, and then the data is copied back."""
    copied = []
    monkeypatch.setattr(completion, "copy_back", copied.append)
    monkeypatch.setattr(stage, "recorded_by_mpi", lambda *_: nullcontext())
    for point in itertools.count(1):
        kept, interruption = [], Interruption(point, str(Path(stage.__file__).parent))
        given = GivenCall("Irecv", (bytearray(8), 0), {"tag": point})
        arguments = MPI.COMM_SELF, given, MPI.COMM_SELF.Irecv, ["the copy"]
        interruption.end(lambda: kept.append(stage._begun(*arguments)))  # noqa: B023  it is called now
        copied.clear()
        MPI.COMM_SELF.Isend(bytearray(8), 0, point).Wait()
        left = MPI.COMM_SELF.Iprobe(0, point)
        if left:
            MPI.COMM_SELF.Recv(bytearray(8), 0, point)
        for request in kept:
            request.Wait()
        kept.clear()
        completion.look_after_abandoned()
        assert len(list(filter(None, copied))) == (0 if left else 1), f"{point}, {interruption.place}"
        assert not completion._abandoned
        if interruption.is_past:
            break
    assert point > 5


@pytest.mark.parametrize("name", ["Test", "Wait", "Get_status"])
def test_an_interrupted_completion_of_a_staged_call(monkeypatch, name):
    """A later call copies the data back, and has the status if the request is still active."""
    folder = Path(stage.__file__).parent.parent
    for point in itertools.count(1):
        copied, statuses = [], [MPI.Status(), MPI.Status()]
        monkeypatch.setattr(completion, "copy_back", copied.append)
        staged = completion.copy_back_on_completion(MPI.COMM_SELF.Irecv(bytearray(8), 0), ["the copy"])
        MPI.COMM_SELF.Isend(bytearray(8), 0, point).Wait()
        interruption = Interruption(point, str(folder / "staging"), str(folder / "requests"))
        interruption.end(getattr(staged, name), statuses[0])
        is_active = staged.is_active
        staged.Wait(statuses[1])
        seen = [(status.source, status.tag, status.Get_count(MPI.BYTE)) for status in statuses]
        assert copied, f"{point}, {interruption.place}"
        assert not is_active or (0, point, 8) in seen, f"{point}, {interruption.place}: {seen}"
        if interruption.is_past:
            break
    assert point > 5
