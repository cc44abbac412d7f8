"""Threads that use different communicators at once share heap, message context and opened memory without harm."""

import threading
import time
from types import SimpleNamespace

import pytest

import launch
import mpi_bootstrap
from pyncclx import backends
from pyncclx.backends import Exported
from pyncclx.memory import heap
from pyncclx.messages import context
from pyncclx.messages.envelope import OFFERED, Envelope, Sender
from pyncclx.messages.memory.bounce import CLOCK, SlotPool
from pyncclx.messages.memory.opened import MAX_OPEN, OpenedMemory, is_ready
from pyncclx.messages.progress.polling import ReceiveProgress

SENDER = Sender(b"u" * 16, mpi_bootstrap.node_identity(), b"handle", 4096, b"name", b"t" * 16)
CLOCK_OF_READY = 5  # of the message whose data can be read


def in_two_threads(work):
    """What `work` returns in each, for 0 and for 1, begun at the same time."""
    together, results = threading.Barrier(2), {}

    def run(number):
        together.wait()
        results[number] = work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(2)]  # a KeyError if one has raised


def test_a_place_holds_one_message():
    """Other threads run while the done words are read, and while an export is closed."""
    done, clocks = [0] * 8, [0] * 8
    closing = SimpleNamespace(close=lambda: time.sleep(1e-4))

    def done_words(first, number):
        words = tuple(done)
        time.sleep(1e-4)
        return words

    def work(number):
        for clock in range(number + 1, 400, 2):
            exported = Exported(0, 0, b"", memory=closing)
            while (place := places.take(clock, 0, exported)) is None:
                pass
            assert done[place] == clocks[place]
            clocks[place] = clock
            done[place] = clock
        return True

    places = SlotPool(0, 8, done_words)
    assert in_two_threads(work) == [True, True]


class Slow:
    """What takes its time to be made."""

    def __init__(self, device):
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("module", "name", "value"), [(heap, "Heap", heap.HEAP), (context, "MessageContext", context.CONTEXT)]
)
def test_a_process_has_one(monkeypatch, module, name, value):
    monkeypatch.setattr(module, name, Slow)
    monkeypatch.setattr(backends, "select", lambda: None)
    value.reset()
    first, second = in_two_threads(lambda number: value.get())
    value.reset()
    assert isinstance(first, Slow)
    assert first is second


class Memory:
    """Memory of another process."""

    def __init__(self, device):
        self.address = device.opened = device.opened + 1000
        self.is_open = True
        device.memories[self.address] = self

    def close(self):
        self.is_open = False


class Device:
    """It opens everything, slowly."""

    def __init__(self, *, copies):
        self.exports_are_copies, self.opened, self.memories, self.waits = copies, 0, {}, 0

    def open_exported(self, handle, nbytes):
        time.sleep(0.01)
        return Memory(self)

    def synchronize(self):
        self.waits += 1

    def peek(self, address, nbytes):
        return CLOCK.pack(CLOCK_OF_READY)

    def are_open(self):
        return [memory.is_open for memory in self.memories.values()]


def offered(clock, allocation=1 << 20, identity=7):
    return Envelope(
        SENDER,
        OFFERED,
        clock,
        nbytes=4,
        offset=8,
        allocation=allocation,
        identity=identity,
        allocation_nbytes=4096,
        handle=b"x",
    )


def test_a_bounce_memory_is_opened_once():
    opened = OpenedMemory(Device(copies=False), b"me", 0)
    assert in_two_threads(lambda number: opened.bounce_address(SENDER)) == [1000, 1000]


def test_the_next_copy_at_an_address_is_another():
    """A sender whose first copy is over may send it before this process has closed the first."""
    device = Device(copies=True)
    opened = OpenedMemory(device, b"me", 0)
    first, second = opened.data_address(offered(1)), opened.data_address(offered(2))
    assert first != second
    opened.release(offered(1))
    assert [memory.is_open for memory in device.memories.values()] == [False, True]
    opened.release(offered(2))
    assert [memory.is_open for memory in device.memories.values()] == [False, False]


def test_what_is_not_launched_stays_open():
    """However much other threads open meanwhile."""
    device = Device(copies=False)
    opened = OpenedMemory(device, b"me", 0)
    address = opened.data_address(offered(1)) - 8
    for clock in range(2, MAX_OPEN + 5):
        opened.data_address(offered(clock, clock << 20))
        opened.release(offered(clock, clock << 20))
    opened.make_room()
    assert device.memories[address].is_open
    assert sum(device.are_open()) == MAX_OPEN
    opened.release(offered(1))
    opened.data_address(offered(100, 100 << 20))
    opened.make_room()
    assert not device.memories[address].is_open


def test_to_open_memory_waits_for_nothing():
    """A sender may wait for a receive that this process cannot wait for: its device does what the sender waits for."""
    device = Device(copies=False)
    opened = OpenedMemory(device, b"me", 0)
    endpoint = SimpleNamespace(device=device, context=SimpleNamespace(opened=opened))
    for number in range(2 * MAX_OPEN):
        envelope = offered(CLOCK_OF_READY, number << 20)
        assert is_ready(endpoint, envelope), f"message {number}"
        opened.data_address(envelope)
        opened.release(envelope)
    assert device.are_open().count(False) == 0
    assert device.waits == 0
    assert opened.is_full
    opened.make_room()
    assert not opened.is_full
    assert device.waits == 1


def test_other_memory_at_an_address():
    """The sender has freed what was there, and has allocated again: a kernel may still read the first."""
    device = Device(copies=False)
    opened = OpenedMemory(device, b"me", 0)
    endpoint = SimpleNamespace(device=device, context=SimpleNamespace(opened=opened))
    first = opened.data_address(offered(1))
    assert is_ready(endpoint, offered(CLOCK_OF_READY, identity=8))
    second = opened.data_address(offered(2, identity=8))
    assert first != second
    assert device.are_open().count(False) == 0
    assert opened.data_address(offered(3, identity=8)) == second


def test_a_receive_that_another_thread_has_launched():
    """Its message is not waited for in MPI, or looked for again."""
    receives = ReceiveProgress(backends.select())
    assert not receives.claim(SimpleNamespace(launched=True))
    assert receives.idle
    assert receives.claim(SimpleNamespace(launched=False))


# Receives of long device arrays into host arrays, while a call of the receiver waits for the other rank.
WITHOUT_A_THREAD = """
import array, sys
import mpi4py
mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI
import numpy as np
import pyncclx

comm = pyncclx.Communicator(MPI.COMM_WORLD)
comm.blocking = "host"
peer, x, y = 1 - comm.rank, np.full(20000, comm.rank + 1.0), np.zeros(20000)
host = array.array("d", [0.0]) * 20100
lasting, send = comm.Recv_init(host, peer, tag=0), comm.Send_init(x, peer)
calls = {
    "Send": lambda: comm.Send(x, peer),
    "Isend": lambda: comm.Isend(x, peer).Wait(),
    "Start": lambda: (send.Start(), send.Wait()),
    "Recv": lambda: (comm.Isend(x, peer), comm.Recv(y, 0, 1)) if comm.rank else (comm.Send(x, 1), comm.Send(x, 1, 1)),
}
for step in range(3):
    for name, call in calls.items():
        host[:20000] = array.array("d", [0.0]) * 20000
        request = lasting if name == "Start" else comm.Irecv(host, peer, tag=0)
        if name == "Start":
            request.Start()
        call()
        request.Wait()
        assert host[0] == host[19999] == peer + 1, (step, name)
lasting.Free()
"""


def test_host_receives_make_progress_without_a_thread():
    """Where MPI lets no other thread call it, calls on device arrays fetch the data of open host receives."""
    done = launch.job(2, "-m", "mpi4py", "-c", WITHOUT_A_THREAD, PYNCCLX_TIMEOUT="10")
    assert done.returncode == 0, done.stderr
