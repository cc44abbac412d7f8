"""The message context: state that all communicators of a process share.

It is created at the first message.
"""

from __future__ import annotations

import uuid
import weakref
from threading import get_ident
from typing import Any

from mpi4py import MPI

from mpi_bootstrap import node_identity

from .. import backends
from ..backends import Device, Event
from ..failures.detector import DETECTOR
from ..launch import kernels
from ..requests.open_receives import LOCK
from ..system.process import PerProcess
from .envelope import Sender
from .memory.arena import Arena
from .memory.bounce import NBYTES, PLACES, BounceMemory
from .memory.opened import OpenedMemory
from .memory.scratch import Scratch
from .peers import Readers
from .progress.polling import PROGRESS


class LamportClock:
    """Source of message clocks, each larger than all clocks sent or received before.

    Source: L. Lamport, "Time, Clocks, and the Ordering of Events", CACM 21, 1978.

    Receiving kernels are launched in the order of these clocks. Data to send can wait, on its sender's stream, only for
    messages with smaller clocks. So streams never wait for each other in a circle.

    Attributes
    ----------
    now : int
        The highest clock so far; it never decreases.
    """

    def __init__(self) -> None:
        self.now = 0

    def next(self) -> int:
        """Return the clock of a new message to send."""
        with LOCK:
            self.now += 1
            return self.now

    def observe(self, clock: int) -> None:
        """Raise the clock to that of an arrived message, so that later sends exceed it."""
        with LOCK:
            # Not by `max`: a signal handler may run after any call of a function, send, and raise the clock.
            if clock > self.now:  # noqa: PLR1730
                self.now = clock


class MessageContext:
    """Memory, kernels and progress of all messages of this process.

    Attributes
    ----------
    functions : dict of str to Function
        The kernels of cuda/messages/point_to_point.cu.
    bounce : BounceMemory
    sender : Sender
        Description of this process in its envelopes.
    readers : Readers
        The ranks that have opened `bounce`.
    opened : OpenedMemory
        Memory of other processes that is mapped here.
    clock : LamportClock
    arena : Arena
    inlets : mapping of (Sender, int) to object
        Receiving ends of channels that requests use, by the sender and the channel's number.
    receives : ReceiveProgress
    scratch, pinned_scratch : Scratch
    side_stream : stream
        Stream of receives that have left their own streams, which may wait for peers.
    host_array_stream : stream
        Stream that copies data to host arrays, message by message. On the host device, this stream and `side_stream`
        are None, which stands for the current stream.
    spare_events : list of Event
        Events that receives have used. A new event costs more than recording one.
    waits : dict of int to (int, int)
        For each place with a kernel that waits for the receiver: the clock of the place's last message, and the thread
        that launched the kernel.
    """

    def __init__(self, device: Device) -> None:
        self.receives = PROGRESS.get()
        kernels.load_for_any_time(device)
        self.functions = kernels.load_alone(device, "messages/point_to_point.cu")
        self.bounce = BounceMemory(device)
        uid, self.readers = uuid.uuid4().bytes, Readers()
        self.readers.add(MPI.COMM_WORLD.rank)
        self.opened = OpenedMemory(device, uid, self.bounce.address)
        self.sender = Sender(
            uid=uid,
            node=node_identity(),
            bounce_handle=self.bounce.handle,
            bounce_nbytes=NBYTES,
            socket=self.readers.name,
            token=self.readers.token,
        )
        self.arena = Arena(device)
        self.inlets: weakref.WeakValueDictionary[tuple[Sender, int], Any] = weakref.WeakValueDictionary()
        self.clock, self.spare_events = LamportClock(), list[Event]()
        self.waits: dict[int, tuple[int, int]] = {}
        sends = self.receives.pending_sends
        self.scratch, self.pinned_scratch = (Scratch(device, sends, is_pinned=pinned) for pinned in (False, True))
        self.side_stream: Any = None
        self.host_array_stream: Any = None
        # If exports are copies, they are closed after their kernels have ended, so such devices use the current stream.
        if not device.exports_are_copies:
            self.side_stream, self.host_array_stream = device.new_stream(), device.new_stream()

    def make_room(self) -> None:
        """Close least recently used memory of peers, unless that could deadlock.

        Closing waits for the device. Meanwhile peers may wait for an open receive of this rank, or, in an unfinished
        collective, for this rank's next call. The receiver of another thread's message may wait for this thread's next
        call.
        """
        detector = DETECTOR.made
        is_busy = detector is not None and detector.waits_in_collectives()
        if self.receives.idle and not is_busy and not self.another_thread_waits():
            self.opened.make_room()

    def another_thread_waits(self) -> bool:
        """Return whether a kernel launched by another thread waits for a receiver."""
        own = get_ident()
        others = [(place, clock) for place, (clock, thread) in list(self.waits.items()) if thread != own]
        done = self.bounce.done_words(0, PLACES) if others else ()
        # The next message of a place has a later clock.
        return any(done[place] < clock for place, clock in others)


CONTEXT = PerProcess(lambda: MessageContext(backends.select()))


def memory_held() -> int:
    """Return the bytes of bounce memory, and of channels and partitioned messages."""
    context = CONTEXT.made
    return 0 if context is None else NBYTES + context.arena.nbytes
