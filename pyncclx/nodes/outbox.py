"""Short messages sent by MPI: each is kept until MPI has sent it."""

from __future__ import annotations

from collections import deque

from mpi4py import MPI


class Outbox:
    """Messages that this rank has begun to send with one tag."""

    def __init__(self, tag: int) -> None:
        self._tag = tag
        self._sent: deque[tuple[MPI.Request, int, bytes]] = deque()  # request, receiver, bytes

    def send(self, comm: MPI.Intracomm, message: bytes, rank: int) -> None:
        """Begin to send a message to a rank."""
        self._sent.append((comm.Isend([message, MPI.BYTE], rank, self._tag), rank, message))

    def is_empty(self) -> bool:
        """Return whether MPI has sent all messages."""
        while self._sent and self._sent[0][0].Test():
            self._sent.popleft()
        return not self._sent

    def receivers(self) -> set[int]:
        """Return the ranks to which a message has not been sent yet."""
        return {rank for request, rank, _ in self._sent if not request.Test()}
