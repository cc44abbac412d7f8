"""Nonblocking calls over nodes, of which some are enqueued at once and others by a thread: none overtakes another."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from pyncclx.nodes import requests
from pyncclx.team.background import StepThread


class Device:
    """Of GPUs: programs whose steps wait for the host go to the thread."""

    name = "gpu"
    capturing = False

    def attached(self):
        return nullcontext()

    def is_capturing(self, stream):
        return self.capturing

    def event(self):
        return SimpleNamespace(record=lambda stream: None)


@pytest.fixture
def spanning(monkeypatch):
    """What programs are given to; `enqueued` has them in their order."""
    monkeypatch.setattr(requests, "stream_for", lambda *arguments: "stream")
    monkeypatch.setattr(requests, "state_of", lambda comm: SimpleNamespace(hold=lambda: None))
    device, made = Device(), SimpleNamespace(closed=False, enqueued=[], may_go_on=threading.Event())

    def enqueue(program, stream, *, capturing):
        # The thread may come to the program that it enqueues only when this one captures already.
        assert capturing == (device.capturing and program.follows_streams)
        if not program.follows_streams:
            assert made.may_go_on.wait(30)
        made.enqueued.append(program.label)

    made.enqueue, made.thread = enqueue, StepThread(device)
    made.team = SimpleNamespace(device=device, order=SimpleNamespace(aside=lambda stream: stream))
    made.look = made.enter_graph = lambda *arguments, **options: None
    made.entering = lambda operation: nullcontext()
    made.comparison = SimpleNamespace(add=lambda *arguments, **options: None)
    return made


def begun(spanning, label, *, follows_streams):
    """The work of a call that has begun."""
    program = SimpleNamespace(
        operation="Iallgather", follows_streams=follows_streams, label=label, producers=(), of_current=False
    )
    return requests.launched_again(None, spanning, program, ())


def test_a_program_comes_after_one_that_the_thread_enqueues(spanning):
    works = [begun(spanning, "counts", follows_streams=False)]
    works += [begun(spanning, f"kernels {number}", follows_streams=True) for number in range(2)]
    assert spanning.enqueued == []
    spanning.may_go_on.set()
    for work in works:
        work._thread.result()
    assert spanning.enqueued == ["counts", "kernels 0", "kernels 1"]
    begun(spanning, "at once", follows_streams=True)
    assert spanning.enqueued[-1] == "at once"


def test_a_capture_waits_for_the_thread(spanning):
    """The thread cannot enqueue on a stream that this one captures."""
    begun(spanning, "counts", follows_streams=False)
    threading.Timer(0.1, spanning.may_go_on.set).start()
    spanning.team.device.capturing = True
    work = begun(spanning, "captured", follows_streams=True)
    assert work._thread is None
    assert spanning.enqueued == ["counts", "captured"]
