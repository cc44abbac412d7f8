"""A communicator's peers: which ones share memory, which are on other nodes.

There is no collective call that finds the ranks that have opened this process's bounce memory. Instead, MPI transfers
the first messages to a rank with their data, and they request an answer. The receiver opens the sender's bounce memory
and, if that works, sends a datagram to the sender's socket. From then on kernels fetch the data from the sender's
memory. A rank on another node, or in a container that cannot open the memory, never answers, and MPI transfers all
messages to it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Sequence

from mpi_bootstrap import Topology

from .envelope import Sender

_ANSWER = struct.Struct("=16sQ")  # token, number
_TOKEN_NBYTES = 16


class Peers:
    """How this process can exchange messages with each rank of a communicator.

    Either a rank has opened this process's bounce memory, or it is on another node, or this is not known yet.

    Parameters
    ----------
    serial : int
        Number of the communicator's endpoint in this process.
    processes : Readers
        Records which ranks of all communicators have opened the memory.
    world_ranks : sequence of int
        Rank of each peer in MPI.COMM_WORLD; negative if it has none.
    topology : callable
        Returns the communicator's topology; None if it is not known.

    Attributes
    ----------
    numbers : list of int
        Number of each peer in `processes`: its rank in MPI.COMM_WORLD. A peer without one has a number made from
        `serial` and its rank.
    readers : set of int
        Peers that are known to have opened this process's bounce memory.
    far : set of int
        Peers that have sent a message from another node.
    """

    def __init__(
        self, serial: int, processes: Readers, world_ranks: Sequence[int], topology: Callable[[], Topology | None]
    ) -> None:
        self._processes, self._topology = processes, topology
        self.numbers = [world if world >= 0 else (serial << 32) + rank for rank, world in enumerate(world_ranks)]
        self.readers: set[int] = set()
        self.far: set[int] = set()
        # Ranks to which this process has sent an envelope.
        self._introduced: set[int] = set()

    def is_reader(self, rank: int) -> bool:
        """Return whether a rank is known to have opened this process's bounce memory."""
        if rank in self.readers:
            return True
        if self.is_far(rank) or not self._processes.has(self.numbers[rank]):
            return False
        self.readers.add(rank)
        return True

    def introduce(self, rank: int) -> None:
        """Record that a rank was sent an envelope, which identifies this process's node."""
        self._introduced.add(rank)

    def is_far(self, rank: int) -> bool:
        """Return whether a rank is known to be on another node: then MPI moves the data."""
        return rank in self.far or self._is_apart(rank)

    def are_far(self, rank: int) -> bool:
        """Return whether both ranks know that they are on different nodes.

        If so, messages between them need no envelope.
        """
        return self._is_apart(rank) or (rank in self.far and rank in self._introduced)

    def _is_apart(self, rank: int) -> bool:
        topology = self._topology() if rank >= 0 else None
        if topology is None or topology.is_divided:
            return False
        return topology.nodes[rank] != topology.node


class Readers:
    """The ranks, by `Peers.numbers`, that have opened this process's bounce memory.

    Attributes
    ----------
    name : bytes
        Address of the socket that receives answers.
    token : bytes
        Random bytes at the beginning of a genuine answer.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        # Linux picks a free abstract name.
        self._socket.bind(b"")
        self.name: bytes = self._socket.getsockname()
        self.token = os.urandom(_TOKEN_NBYTES)
        self._numbers: set[int] = set()

    def add(self, number: int) -> None:
        """Add a rank that needs no answer, because it is this process."""
        self._numbers.add(number)

    def has(self, number: int) -> bool:
        """Return whether a rank is known to have opened the memory."""
        return number in self._numbers or (self._read_answers() and number in self._numbers)

    def _read_answers(self) -> bool:
        before = len(self._numbers)
        with contextlib.suppress(BlockingIOError):
            while True:
                answer = self._socket.recv(_ANSWER.size)
                if len(answer) == _ANSWER.size and answer.startswith(self.token):
                    self._numbers.add(_ANSWER.unpack(answer)[1])
        return len(self._numbers) > before

    def answer(self, sender: Sender, number: int) -> None:
        """Tell a sender that this process has opened its bounce memory.

        The sender then puts data there instead of sending it through MPI. If this datagram is lost, the sender's next
        message requests another one.
        """
        with contextlib.suppress(OSError):
            self._socket.sendto(_ANSWER.pack(sender.token, number), sender.socket)
