"""Mailboxes for file descriptors: Unix datagram sockets within a node.

Descriptors are sent as SCM_RIGHTS, which needs no privilege. The alternative, pidfd_getfd, takes a descriptor from
another process. It needs a privilege that ordinary container profiles refuse.
"""

import array
import ctypes
import errno
import os
import select
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

# Errors after which to retry: the receiver's queue, the socket memory or the table of descriptors in flight is full.
_BUSY = {errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS}
_TOKEN_NBYTES = 16
_SENDER = struct.Struct("<i")
_FD_NBYTES = array.array("i").itemsize
_LETTER_NBYTES = _TOKEN_NBYTES + _SENDER.size
_STRANGERS_AT_ONCE = 32  # most datagrams without the token that one `collect` reads

# A filter in Linux's packet language (linux/filter.h), which compares the words of a datagram with those of the token.
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_INSTRUCTION = struct.Struct("=HBBI")  # code, instructions to skip if equal, to skip if not, operand
_WHOLE_LETTER, _NOTHING = 0xFFFFFFFF, 0


class Address(NamedTuple):
    """Name of a mailbox's socket, and the random token that its datagrams must carry."""

    name: bytes
    token: bytes


class Mailbox:
    """A socket that receives descriptors, and the one descriptor that it sends.

    Every process in the network namespace can write to an abstract socket. So a datagram carries the receiver's token,
    which only the ranks of the communicator have. A filter in Linux drops other datagrams before they occupy the queue.
    Where filters are not available, `collect` reads and drops them.

    Attributes
    ----------
    strangers : int
        Number of datagrams that `collect` has dropped.
    """

    def __init__(self, fd: int) -> None:
        # A descriptor that is not open must fail here, not as a timeout on another rank.
        os.fstat(fd)
        self.fd = fd
        self.strangers = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            token = os.urandom(_TOKEN_NBYTES)
            _let_pass(self._socket, token)
            self._socket.bind(b"")  # a free abstract name
            self.address = Address(self._socket.getsockname(), token)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket. The caller still owns the descriptor that it sends."""
        self._socket.close()

    def post(self, sender: int, to: Address) -> bool:
        """Send the descriptor to another mailbox; return False if a queue is full now."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self.fd]))]
        try:
            self._socket.sendmsg([to.token, _SENDER.pack(sender)], rights, 0, to.name)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    def collect(self) -> tuple[int, int] | None:
        """Return sender and descriptor of the next datagram with this mailbox's token.

        Return None if the queue is empty, or if the next few datagrams all lack the token.
        """
        for _ in range(_STRANGERS_AT_ONCE):
            try:  # not socket.recv_fds, which ignores its flags in some Python versions
                letter, ancillary, flags, _ = self._socket.recvmsg(
                    _LETTER_NBYTES + 1, socket.CMSG_LEN(_FD_NBYTES), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return None
            fds = array.array("i", b"".join(data[:_FD_NBYTES] for _, _, data in ancillary))
            if len(letter) != _LETTER_NBYTES or letter[:_TOKEN_NBYTES] != self.address.token:
                close_all(fds)
                self.strangers += 1
                continue
            if flags & socket.MSG_CTRUNC or not fds:
                close_all(fds)
                raise OSError(errno.EMFILE, "no room for another file descriptor (see `ulimit -n`)")
            return _SENDER.unpack(letter[_TOKEN_NBYTES:])[0], fds[0]
        return None

    def wait(self, seconds: float) -> None:
        """Sleep until a datagram has arrived, at most `seconds`."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)


def _let_pass(receiver: socket.socket, token: bytes) -> None:
    """Make Linux drop datagrams that do not begin with the token, if it can."""
    words = struct.unpack(f">{_TOKEN_NBYTES // 4}I", token)
    # Each unequal word jumps to the last instruction, which drops the datagram.
    code = b"".join(
        _INSTRUCTION.pack(_LOAD_WORD, 0, 0, 4 * place)
        + _INSTRUCTION.pack(_JUMP_IF_EQUAL, 0, 2 * (len(words) - place) - 1, word)
        for place, word in enumerate(words)
    )
    code += _INSTRUCTION.pack(_RETURN, 0, 0, _WHOLE_LETTER) + _INSTRUCTION.pack(_RETURN, 0, 0, _NOTHING)
    memory = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // _INSTRUCTION.size, ctypes.addressof(memory))
    # Sandboxes that imitate Linux may have no filters.
    with suppress(OSError):
        receiver.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


def close_all(fds: Iterable[int]) -> None:
    """Close every descriptor."""
    for fd in fds:
        os.close(fd)
