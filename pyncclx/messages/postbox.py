"""What a process has for the messages of all its communicators, made at the first one."""

from __future__ import annotations

import uuid
import weakref
from typing import Any

from mpi4py import MPI

from mpi_bootstrap import node_identity

from .. import backends
from ..backends import Device
from ..launch import kernels
from ..recovery.detector import DETECTOR
from ..system.process import PerProcess
from .arena import Arena
from .bounce import NBYTES, BounceMemory
from .channel_memory import ChannelMemory
from .clock import LamportClock
from .envelope import Sender
from .opened_memory import OpenedMemory
from .progress import PROGRESS
from .readers import Readers
from .rescue import Rescue
from .scratch import Scratch


class Postbox:
    """The process's part of sending and receiving.

    Attributes
    ----------
    functions : dict of str to Function
        The kernels of cuda/messages/point_to_point.cu.
    bounce : BounceMemory
    sender : Sender
        This process, as its envelopes describe it.
    readers : Readers
        The ranks that have opened `bounce`.
    opened : OpenedMemory
        Other processes' memory.
    clock : LamportClock
    arena : Arena
    channel_memory : ChannelMemory
    inlets : mapping of (bytes, int) to object
        The receiver's ends of channels, by the uid of the sender and the channel's number, while requests have them.
    rescue : Rescue
        For kernels that wait for ranks that have failed.
    receives : ReceiveProgress
    scratch, pinned_scratch : Scratch
    side_stream : stream
        Of receives that have left their own streams, which may wait for peers.
    host_array_stream : stream
        Moves data to host arrays, one message after the other. On the host device these are the current stream.
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
        self.channel_memory = ChannelMemory(device, self.bounce.address, self.arena)
        self.inlets: weakref.WeakValueDictionary[tuple[bytes, int], Any] = weakref.WeakValueDictionary()
        self.clock = LamportClock()
        self.rescue = Rescue(device, self.bounce)
        unsent = self.receives.unsent
        self.scratch, self.pinned_scratch = (Scratch(device, unsent, is_pinned=pinned) for pinned in (False, True))
        self.side_stream: Any = None
        self.host_array_stream: Any = None
        if not device.exports_are_copies:  # each of which is closed after its launch, which must then be over
            self.side_stream, self.host_array_stream = device.new_stream(), device.new_stream()


    def make_room(self) -> None:
        """Close other processes' memory that was used longest ago, unless the wait for that may be one for peers.

        They may wait for an open receive, or in a collective that is under way here for what this rank does next.
        """
        detector = DETECTOR.made
        if self.receives.idle and not (detector is not None and detector.waits_in_collectives()):
            self.opened.make_room()


POSTBOX = PerProcess(lambda: Postbox(backends.select()))


def memory_held() -> int:
    """Return the bytes of bounce memory, and of the memory for slots and ends of messages."""
    postbox = POSTBOX.made
    return 0 if postbox is None else NBYTES + postbox.arena.nbytes
