"""Identity of a node, whose processes can map each other's memory."""

import functools
import hashlib
import os
import socket
from pathlib import Path

# This variable simulates several nodes on one: processes with different values never share memory.
VARIABLE = "PYNCCLX_NODE"
IDENTITY_NBYTES = 16


def node_identity(*, pretended: bool = True) -> bytes:
    """Return 16 bytes, equal in two processes exactly if they are on one node.

    Not collective.

    Parameters
    ----------
    pretended : bool
        Whether different values of the environment variable PYNCCLX_NODE make different nodes.

    Notes
    -----
    A node is a running system with one host name and one network namespace. Memory is shared by file descriptors, which
    are sent through sockets of one such namespace. Containers with different host names are different nodes.

    Examples
    --------
    >>> len(node_identity())
    16
    """
    parts = (_running_system(), _network_namespace(), socket.gethostname())
    text = os.environ.get(VARIABLE, "").strip() if pretended else ""
    return hashlib.blake2b(repr((*parts, text)).encode(), digest_size=IDENTITY_NBYTES).digest()


@functools.cache
def _running_system() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # /proc may be hidden. Then only the host name distinguishes systems.
        return ""


def _network_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0
