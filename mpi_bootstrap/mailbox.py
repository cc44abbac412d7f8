"""A mailbox for file descriptors: a Unix datagram socket that sends and receives them between processes of one node.

Descriptors travel as SCM_RIGHTS. That needs no privilege; to take them from another process with pidfd_getfd does,
and ordinary container profiles refuse it.
"""

import array
import errno
import os
import select
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

# Try again later: the receiver's queue, the socket memory or the table of descriptors in flight is full.
_BUSY = {errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS}
_TOKEN_NBYTES = 16
_SENDER = struct.Struct("<i")
_FD_NBYTES = array.array("i").itemsize
_LETTER_NBYTES = _TOKEN_NBYTES + _SENDER.size


class Address(NamedTuple):
    """The name of a mailbox's socket, and the random token that its letters must carry."""

    name: bytes
    token: bytes


class Mailbox:
    """A socket that receives descriptors, and the one descriptor that it sends.

    Every process in the network namespace can write to an abstract socket. So a letter carries the receiver's token,
    which only the ranks of the communicator have; other letters are dropped.
    """

    def __init__(self, fd: int) -> None:
        os.fstat(fd)  # a descriptor that is not open must fail here, not as a timeout on another rank
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
        """Stop receiving. The descriptor that it sends stays the caller's."""
        self._socket.close()

    def post(self, sender: int, to: Address) -> bool:
        """Send the descriptor to another mailbox; False if the queue is full at the moment."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self.fd]))]
        try:
            self._socket.sendmsg([to.token, _SENDER.pack(sender)], rights, 0, to.name)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    def collect(self) -> tuple[int, int] | None:
        """Sender and descriptor of the next letter with this mailbox's token; None if there is none yet."""
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


def close_all(fds: Iterable[int]) -> None:
    """Close every descriptor."""
    for fd in fds:
        os.close(fd)
