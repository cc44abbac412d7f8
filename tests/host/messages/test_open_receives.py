"""Receives that leave their streams: when they do, and when the monitor thread launches them."""

import itertools
import subprocess
import sys
import threading
import time
from collections import defaultdict
from threading import get_ident
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from pyncclx.backends import host
from pyncclx.derived.buffers import TypedBuffer
from pyncclx.messages import context as context_module
from pyncclx.messages.endpoint import Endpoint
from pyncclx.messages.envelope import EAGER, INLINE, OFFERED, WINDOW, Envelope, Sender
from pyncclx.messages.memory import opened as opened_memory
from pyncclx.messages.memory.bounce import CLOCK, words_of
from pyncclx.messages.partitioned.handshakes import PartitionedEnds
from pyncclx.messages.partitioned.send import OfferWait
from pyncclx.messages.plan import Plan
from pyncclx.messages.progress import monitor
from pyncclx.messages.progress import polling as progress
from pyncclx.messages.receive import Incoming
from pyncclx.requests import open_receives
from pyncclx.system import threads
from support.interruption import Interruption

OWN, SIDE, CURRENT = "own stream", "side stream", "current stream"
SENDER = Sender(b"u" * 16, b"node", b"handle", 4096, b"name", b"t" * 16)
BOUNCE = 1000  # address of the sender's bounce memory
READY, _ = words_of(BOUNCE, 0)
ASIDE = [("record", OWN), ("after event", SIDE), ("pull", SIDE), ("record", SIDE)]  # what a receive does that has left


class Device:
    """Keeps a list of the calls."""

    max_channels = threads = 8
    exports_are_copies, launches_at_once = False, True

    def __init__(self):
        self.done, self.word, self.over, self.free = [], 0, True, True

    def event(self):
        return SimpleNamespace(
            record=(record := lambda stream: self.done.append(("record", stream))),
            record_eager=record,
            order=(order := lambda stream: self.done.append(("after event", stream))),
            order_eager=order,
            is_over=lambda: self.over,
        )

    def can_leave(self, stream):
        return self.free

    def order(self, first, then):
        self.done.append((first, then))

    def peek(self, address, nbytes):
        assert (address, nbytes) == (READY, CLOCK.size)
        return CLOCK.pack(self.word)


class Opened:
    is_full, bounces = False, {SENDER.uid: BOUNCE}

    def bounce_address(self, sender):
        return BOUNCE

    def data_address(self, envelope):
        return 1 << 20

    def release(self, envelope):
        pass


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def endpoint(device):
    context = SimpleNamespace(
        opened=Opened(),
        side_stream=SIDE,
        bounce=SimpleNamespace(arrived=defaultdict(int), pulled={}),
        scratch=SimpleNamespace(drop=lambda message, copied: None),
        spare_events=[],
        receives=SimpleNamespace(pending_sends=SimpleNamespace(keep_for=lambda *_: None)),
    )
    launch = lambda operation, kernel, *rest: device.done.append((kernel, rest[-1]))  # noqa: E731
    nothing = {"team": None, "calls": None, "ring": None, "senders": {}, "broken": set(), "comm_failure": None}
    lives = {"timeout_s": 60.0, "failure_of": lambda rank, operation: None}
    return SimpleNamespace(device=device, context=context, launch=launch, **lives, **nothing)


class Typed(TypedBuffer):
    """A buffer with a packed copy."""

    nbytes = 64

    def __init__(self):
        self.address = 0

    def unpack(self, endpoint, stream, nbytes):
        endpoint.device.done.append(("unpack", stream))


def receive_of(endpoint, transport=OFFERED, buffer=None):
    """A receive on `OWN` whose message has come, with clock 5."""
    buffer = buffer or SimpleNamespace(nbytes=64, address=0)
    receive = Incoming()
    receive.begin(None, endpoint, Plan("Irecv", buffer, 1, 0, b""), None, OWN)
    receive.envelope = Envelope(SENDER, transport, clock=5, nbytes=64)
    receive._nbytes, receive._message, receive.has_arrived = 64, bytearray(64), True
    receive.status.Set_source(1)
    return receive


@pytest.mark.parametrize(
    ("idle", "busy", "waits", "closes"),
    [
        (True, False, {}, True),
        (False, False, {}, False),
        (True, True, {}, False),
        (True, False, {1: (7, get_ident() + 1)}, False),
        (True, False, {1: (7, get_ident())}, True),  # the thread's own: MPI lets its call wait for the receiver
        (True, False, {0: (7, get_ident() + 1)}, True),  # it has been received
        (True, False, {0: (6, get_ident() + 1)}, True),  # and its place has been used again
    ],
)
def test_memory_is_closed_where_no_peer_can_be_waited_for(monkeypatch, idle, busy, waits, closes):
    """To close it waits for the device: for an open receive's sender, a collective's ranks, or a message's receiver."""
    closed = []
    detector = SimpleNamespace(made=SimpleNamespace(waits_in_collectives=lambda: busy))
    monkeypatch.setattr(context_module, "DETECTOR", detector)
    context = SimpleNamespace(
        receives=SimpleNamespace(idle=idle),
        opened=SimpleNamespace(make_room=lambda: closed.append(1)),
        bounce=SimpleNamespace(done_words=lambda first, number: (7, 6, *[0] * (number - 2))),
        waits=waits,
    )
    context.another_thread_waits = lambda: context_module.MessageContext.another_thread_waits(context)
    context_module.MessageContext.make_room(context)
    assert bool(closed) == closes


class End:
    """An end of a partitioned message."""

    peer, active = 1, False


def test_partitions_may_wait_for_a_peer_that_has_to_hear_from_this_rank_first():
    """So memory is not closed while the kernel of an `Endpoint` runs that sends partitions."""
    ends, end = PartitionedEnds(), End()
    ends.add(end)
    endpoint = SimpleNamespace(partitioned=ends)
    assert Endpoint.is_of_messages.fget(endpoint)
    end.active = True
    assert not Endpoint.is_of_messages.fget(endpoint)


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_receive_that_no_call_waits_for_leaves_its_stream(monkeypatch, endpoint, device, is_awaited):
    receive, receives = receive_of(endpoint), progress.ReceiveProgress(device)
    monkeypatch.setattr(progress, "OPEN_RECEIVES", [receive])
    receive.is_awaited = is_awaited
    receives.launch_arrived()
    assert receives.idle
    assert device.done == ([("pull", OWN)] if is_awaited else ASIDE)


@pytest.mark.parametrize("is_awaited", [False, True])
@pytest.mark.parametrize("until", ["data", "failure", "timeout"])
def test_a_launch_that_waits_is_held_back(monkeypatch, endpoint, device, is_awaited, until):
    """Where a launch returns when its kernel has ended, and locks are held meanwhile, as on the host device."""
    device.launches_at_once = False
    receive, receives = receive_of(endpoint), progress.ReceiveProgress(device)
    monkeypatch.setattr(progress, "OPEN_RECEIVES", [receive])
    receive.stream, receive.is_awaited = None, is_awaited
    receives.launch_arrived()
    assert not receive.launched
    if until == "data":
        device.word = 5
    elif until == "failure":
        failure = RuntimeError("the sender has failed")
        endpoint.comm_failure, endpoint.failure_of = "a loss", lambda rank, operation: failure
    else:
        endpoint.timeout_s = 0.0
    receives.launch_arrived()
    assert receive.launched
    pulls = [each for each in device.done if each[0] == "pull"]
    assert len(pulls) == (until != "failure")
    if until == "failure":
        with pytest.raises(RuntimeError, match="has failed"):
            receive.finish(CURRENT)


def test_a_launch_waits_for_no_stream_either(monkeypatch, endpoint, device):
    """Of a receive that has left its stream, on the host device."""
    device.launches_at_once, device.word, device.over = False, 5, False
    receive, receives = receive_of(endpoint), progress.ReceiveProgress(device)
    monkeypatch.setattr(progress, "OPEN_RECEIVES", [receive])
    receives.launch_arrived()
    assert not receive.launched
    device.over = True
    receives.launch_arrived()
    assert receive.launched


@pytest.mark.parametrize("kind", ["of two endpoints", "of handshakes"])
def test_many_receives_that_no_launch_does_together(monkeypatch, endpoint, device, kind):
    """More than Python has frames."""
    number = 2 * sys.getrecursionlimit()
    end = LetterEnd()
    if kind == "of handshakes":
        open_ones = [OfferWait(end, None) for _ in range(number)]
    else:
        ends = endpoint, SimpleNamespace(**vars(endpoint))
        open_ones = [receive_of(ends[index % 2]) for index in range(number)]
    for each in open_ones:
        each.has_arrived = each.is_awaited = True
    monkeypatch.setattr(progress, "OPEN_RECEIVES", open_ones[:])
    receives = progress.ReceiveProgress(device)
    receives.launch_arrived()
    assert receives.idle
    assert all(each.launched and not getattr(each, "_error", None) for each in open_ones)
    assert device.done == ([] if kind == "of handshakes" else [("pull", OWN)] * number)


class LetterEnd:
    """The sender's end of a partitioned message, for which no handshake has arrived."""

    endpoint = SimpleNamespace(partitioned=SimpleNamespace(handshakes=None))


def test_a_receive_leaves_once(endpoint, device):
    receive = receive_of(endpoint)
    receive.leave_stream()
    receive.leave_stream()
    receive.launch()
    receive.finish(CURRENT)
    assert device.done == [*ASIDE, ("after event", CURRENT)]


def test_a_receive_is_over_when_its_data_is_there(endpoint, device):
    """The waiting thread then goes on behind it, with what the sender may be waiting for."""
    receive, own = receive_of(endpoint), receive_of(endpoint)
    assert not receive.is_over()
    receive.leave_stream()
    device.over = False
    receive.launch()
    own.launch()
    assert (receive.is_over(), own.is_over()) == (False, True)
    device.over = True
    assert receive.is_over()


def test_a_receive_may_have_to_stay_on_its_stream(endpoint, device):
    """Where its stream is being captured."""
    captured, device.word, device.free = receive_of(endpoint), 5, False
    captured.leave_stream()
    assert not captured.is_due()
    captured.launch()
    captured.finish(OWN)
    assert device.done == [("pull", OWN)]


@pytest.mark.parametrize("transport", [EAGER, OFFERED])
def test_a_receive_that_no_call_will_finish(endpoint, device, transport):
    """It is due when its data can be read, however short it is; it stays on its stream, and unpacks the data there."""
    receive, device.word = receive_of(endpoint, transport, Typed()), 4
    receive.is_abandoned = True
    receive.leave_stream()
    assert receive.is_held_back
    assert not receive.is_due()
    device.word, device.free = 5, False
    assert not receive.is_held_back
    assert not receive.is_due()
    device.free = True
    assert receive.is_due()
    receive.launch()
    assert device.done == [("pull", OWN), ("unpack", OWN)]


def test_a_derived_datatype_is_unpacked_by_the_call_that_waits(endpoint, device):
    receive = receive_of(endpoint, buffer=Typed())
    receive.leave_stream()
    receive.launch()
    assert device.done == ASIDE
    receive.finish(CURRENT)
    assert device.done[4:] == [(SIDE, OWN), ("unpack", OWN), (OWN, CURRENT)]


def test_a_receive_is_due_when_its_kernel_would_wait_for_nothing(endpoint, device):
    receive = receive_of(endpoint)
    assert not receive.is_due()  # the sender's stream has not come that far
    assert device.done == []
    device.word, device.over = 5, False
    assert not receive.is_due()  # nor its own
    device.over = True
    assert receive.is_due()
    assert device.done == [("record", OWN)]


def test_a_window_that_is_being_made(endpoint, device):
    device.word = 5
    receive = receive_of(endpoint, WINDOW)
    assert not receive.is_due()
    windows = {}
    endpoint.team = SimpleNamespace(windows=SimpleNamespace(by_number=windows))
    assert not receive.is_due()
    windows[receive.envelope.allocation] = "the one"
    assert receive.is_due()


@pytest.mark.parametrize("transport", [EAGER, INLINE])
def test_a_short_message_keeps_no_sender_waiting(endpoint, device, transport):
    device.word = 5
    assert not opened_memory.is_ready(endpoint, receive_of(endpoint, transport).envelope)


def test_let_receives_leave(monkeypatch, endpoint, device):
    receives = [receive_of(endpoint), receive_of(endpoint)]
    monkeypatch.setattr(open_receives, "OPEN_RECEIVES", receives)
    open_receives.let_receives_leave()
    open_receives.let_receives_leave()
    assert device.done == [("record", OWN)] * 2


# The thread


class Receives:
    """Counts calls of `go_on`, and readings of `turn`, which changes while the program is busy."""

    def __init__(self):
        self.device, self.at_rest, self.busy, self.error = host.Device(), False, False, None
        self.may_have_more = False
        self.looks = self.readings = 0

    @property
    def turn(self):
        self.readings += 1
        return self.readings if self.busy else 0

    def go_on(self):
        self.looks += 1
        if self.error:
            raise self.error


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(1e-3)


@pytest.fixture
def watching(monkeypatch):
    monkeypatch.setattr(monitor, "QUIET", 3)
    receives = Receives()
    thread = monitor.MessageMonitor(receives)
    if not thread.asleep:
        pytest.skip("only one thread may call MPI")
    thread.wake()
    yield receives, thread
    thread._end()
    assert not thread._thread.is_alive()


def test_the_monitor_sleeps_and_wakes(watching):
    receives, thread = watching
    until(lambda: receives.looks > 2)
    receives.at_rest = True
    until(lambda: thread.asleep)
    before = receives.looks
    receives.at_rest = False
    thread.wake()
    until(lambda: receives.looks > before)
    assert not thread.asleep


def test_an_interrupt_lets_the_next_call_wake_the_monitor(watching):
    """Wherever Python runs a signal handler, in the library of Python too."""
    receives, thread = watching
    files = [monitor.__file__, threads.__file__, threading.__file__]
    for point in itertools.count(1):
        receives.at_rest = True
        until(lambda: thread.asleep)
        interruption, before = Interruption(point, *files), receives.looks
        interruption.end(thread.wake)
        receives.at_rest = False
        thread.wake()
        until(lambda before=before: receives.looks > before)
        if interruption.is_past:
            break
    assert point > 3


def test_the_monitor_looks_seldom_while_the_program_does(watching):
    """The program's looks do a part only of what others may wait for: once in the longest pause the thread does it."""
    receives, _ = watching
    until(lambda: receives.looks > 0)
    receives.busy = True
    until(lambda begun=receives.readings: receives.readings > begun + 6)
    looks, begun, began_s = receives.looks, receives.readings, time.monotonic()
    until(lambda: receives.readings > begun + 5)
    assert 0 < receives.looks - looks <= receives.readings - begun + 1
    assert time.monotonic() - began_s > 4 * monitor.LONGEST_PAUSE_S


@pytest.mark.parametrize("may_have_more", [False, True])
def test_the_monitor_looks_at_rest_where_mpi_may_have_more(watching, may_have_more):
    """No request may stand for what MPI has left to do."""
    receives, thread = watching
    receives.at_rest = True
    until(lambda: thread.asleep)
    looks, receives.may_have_more = receives.looks, may_have_more
    thread.wake()
    until(lambda: thread.asleep)
    if may_have_more:
        until(lambda: receives.looks > looks + 2)
    assert may_have_more or receives.looks == looks


@pytest.mark.parametrize("error", [MPI.Exception(MPI.ERR_OTHER), SystemExit("no more")])
def test_an_error_of_the_monitor_is_raised_by_the_next_call(watching, capfd, error):
    receives, thread = watching
    receives.error = error
    until(lambda: thread.failure is not None)
    assert not thread.asleep  # nothing tries to wake it
    receives.error = None
    with pytest.raises(type(error)) as raised:
        thread.raise_failure()
    assert raised.value is error
    before = receives.looks
    until(lambda: receives.looks > before + 2)  # another thread goes on
    assert thread.failure is None
    assert capfd.readouterr() == ("", "")


FINALIZES = """
import threading, time
from mpi4py import MPI
from pyncclx.backends import host
from pyncclx.messages.progress.monitor import MessageMonitor

class Receives:
    device, at_rest, turn = host.Device(), False, 0
    looking, finalized = threading.Event(), []

    def go_on(self):
        self.looking.set()
        end = time.monotonic() + 0.5
        while not MPI.Is_finalized() and time.monotonic() < end:
            time.sleep(1e-3)
        self.finalized.append(MPI.Is_finalized())

monitor = MessageMonitor(Receives())
if monitor.asleep:
    monitor.wake()
    Receives.looking.wait()
MPI.Finalize()
assert monitor._thread is None or not monitor._thread.is_alive(), "the thread goes on"
assert not any(Receives.finalized), "the thread was at work"
print("ended")
"""


def test_the_monitor_ends_before_mpi():
    """MPI.Finalize waits for a look to end, after which the thread does not call MPI."""
    command = [sys.executable, "-c", FINALIZES]
    program = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (program.stdout, program.returncode) == ("ended\n", 0), program.stderr


def test_calls_check_the_monitor(monkeypatch):
    monkeypatch.setattr(open_receives, "OPEN_RECEIVES", [])
    receives = progress.ReceiveProgress(host.Device())
    for call in (receives.check, receives.launch_arrived, lambda: receives.wait_until(lambda: False)):
        receives.monitor.failure = OSError("no device")
        with pytest.raises(OSError, match="no device"):
            call()
    receives.check()


def test_a_call_that_waits_for_several_receives_sees_the_monitor_fail(monkeypatch):
    receives = progress.ReceiveProgress(host.Device())

    class Silent:
        """Its message never comes; the monitor fails at the third look."""

        clock, looks = 0, 0
        has_arrived = is_polled = launched = is_awaited = False

        def poll(self):
            self.looks += 1
            if self.looks == 3:
                receives.monitor.failure = OSError("no device")
            assert self.looks < 1000, "the call goes on"
            return False

    silent = Silent()
    monkeypatch.setattr(progress, "OPEN_RECEIVES", [silent])
    with pytest.raises(OSError, match="no device"):
        receives.launch_all([silent])
