"""Ranks that have opened this process's bounce memory.

This needs no collective call. MPI transfers the first messages to a rank with their data, and they request an answer.
The receiver opens the sender's bounce memory and, if that works, sends a datagram to the sender's socket. From then on
kernels fetch the data from the sender's memory. A rank on another node, or in a container that cannot open the memory,
never answers, and MPI transfers all its messages.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from .envelope import Sender

_ANSWER = struct.Struct("=16sQ")  # token, number
_TOKEN_NBYTES = 16


class Readers:
    """The ranks that have opened this process's bounce memory (numbers: see `Peers`).

    Attributes
    ----------
    name : bytes
        Address of the socket that receives answers.
    token : bytes
        Random bytes with which a genuine answer begins.
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
        """Add a rank that needs no answer: this process itself."""
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
        """Answer a sender whose bounce memory is open here.

        If the answer is lost, the sender's next message requests another one.
        """
        with contextlib.suppress(OSError):
            self._socket.sendto(_ANSWER.pack(sender.token, number), sender.socket)
