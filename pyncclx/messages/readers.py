"""Ranks that have opened this process's bounce memory: found by answers to messages, not by a collective call.

The first messages to a rank carry their data through MPI and request an answer. The receiver opens the sender's bounce
memory and, if that works, sends a datagram to the sender's socket. From then on the sender leaves data where it is. A
rank on another node, or in a container that cannot open the memory, never answers, and its messages go on through MPI.
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
    """The ranks that have opened this process's bounce memory, by numbers that this process gives them.

    Attributes
    ----------
    name : bytes
        Address of the socket that receives answers.
    token : bytes
        What a genuine answer begins with.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(b"")  # the kernel picks a free abstract name
        self.name: bytes = self._socket.getsockname()
        self.token = os.urandom(_TOKEN_NBYTES)
        self._numbers: set[int] = set()

    def add(self, number: int) -> None:
        """Add a rank that needs no answer: this process itself."""
        self._numbers.add(number)

    def has(self, number: int) -> bool:
        """Whether a rank is known to have opened the memory by now."""
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
        """Answer a sender whose bounce memory is open here. If the answer is lost, the next message requests one."""
        with contextlib.suppress(OSError):
            self._socket.sendto(_ANSWER.pack(sender.token, number), sender.socket)
