"""File descriptors between the processes of one node: a socket that receives them, and the exchange.

Descriptors travel over Unix datagram sockets (SCM_RIGHTS). That needs no privilege; reaching into another
process with pidfd_getfd does, and ordinary container profiles refuse it.
"""

import array
import errno
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

# A letter cannot be delivered yet: the receiver's queue, socket memory or descriptors in flight are full.
_BUSY = {errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS}
_TOKEN_NBYTES = 16
_SENDER = struct.Struct("<i")
_FD_NBYTES = array.array("i").itemsize
_LETTER_NBYTES = _TOKEN_NBYTES + _SENDER.size


class Address(NamedTuple):
    """Where a mailbox receives letters, and the random token that makes a letter genuine."""

    name: bytes
    token: bytes


class Mailbox:
    """A socket that receives descriptors, and the descriptor that its owner hands out.

    Anybody in the network namespace can write to an abstract socket, so a letter carries the receiver's
    token, which only the ranks of the communicator know. Other letters are dropped.
    """

    def __init__(self, fd: int) -> None:
        os.fstat(fd)  # a descriptor that is not open must fail here, not as somebody else's timeout
        self.fd = fd
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(b"")  # the kernel picks a free abstract name
            self.address = Address(self._socket.getsockname(), os.urandom(_TOKEN_NBYTES))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Stop receiving. The descriptor stays the caller's."""
        self._socket.close()

    def post(self, sender: int, to: Address) -> bool:
        """Send the descriptor to another mailbox; False if that is not possible just now."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self.fd]))]
        try:
            self._socket.sendmsg([to.token, _SENDER.pack(sender)], rights, 0, to.name)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    def collect(self) -> tuple[int, int] | None:
        """Sender and descriptor of the next genuine letter; None if there is none yet."""
        while True:
            try:  # not socket.recv_fds: it forgets its flags in some Python versions
                letter, ancillary, flags, _ = self._socket.recvmsg(
                    _LETTER_NBYTES + 1, socket.CMSG_LEN(_FD_NBYTES), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return None
            fds = array.array("i", b"".join(data[:_FD_NBYTES] for _, _, data in ancillary))
            if len(letter) != _LETTER_NBYTES or letter[:_TOKEN_NBYTES] != self.address.token:
                close_all(fds)
                continue
            if flags & socket.MSG_CTRUNC or not fds:
                close_all(fds)
                raise OSError(errno.EMFILE, "no room for another file descriptor (see `ulimit -n`)")
            return _SENDER.unpack(letter[_TOKEN_NBYTES:])[0], fds[0]

    def wait(self, seconds: float) -> None:
        """Sleep until there is a letter, at most `seconds`."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)


def deliver(
    mailbox: Mailbox, rank: int, takers: Mapping[int, Address], wanted: set[int], timeout: float
) -> dict[int, int]:
    """Post to all takers and collect from all wanted ranks, in whatever order the queues allow.

    A socket's queue holds about ten letters: ranks that sent everything before they received anything would
    block each other once there are more of them than that.
    """
    received: dict[int, int] = {}
    outgoing = deque(taker for taker in takers if taker != rank)
    deadline = time.monotonic() + timeout
    try:
        if rank in wanted:
            received[rank] = os.dup(mailbox.fd)
        while True:
            outgoing = deque(taker for taker in outgoing if not mailbox.post(rank, takers[taker]))
            while (letter := mailbox.collect()) is not None:
                received[letter[0]] = letter[1]
            if not outgoing and received.keys() == wanted:
                return received
            if time.monotonic() > deadline:
                raise TimeoutError(_undelivered(timeout, wanted - received.keys(), outgoing))
            mailbox.wait(0.001 if outgoing else deadline - time.monotonic())
    except BaseException:
        close_all(received.values())
        raise


def close_all(fds: Iterable[int]) -> None:
    """Close every descriptor."""
    for fd in fds:
        os.close(fd)


def _undelivered(timeout: float, missing: Iterable[int], outgoing: Iterable[int]) -> str:
    return (
        f"exchange of file descriptors: not finished after {timeout:g} s; nothing came from ranks "
        f"{sorted(missing)}, ranks {sorted(outgoing)} did not take this rank's"
    )
