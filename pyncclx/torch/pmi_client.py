"""The connections of a process to `pmi_server`, under torchrun.

Rank 0 starts the server, and puts its address into PyTorch's store.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from mpi4py import MPI

from ..system import process, settings, threads

__all__ = ["join"]

LOCALHOST = "127.0.0.1"
GRACE_S = 10.0  # seconds that a rank waits longer than the server, whose message names the late ranks
SERVER = Path(__file__).with_name("pmi_server.py")


def join(store: Any, rank: int, size: int) -> dict[str, str]:
    """Connect to the job's server, and wait until all ranks have. Collective.

    Parameters
    ----------
    store : torch.distributed.Store
        A store of all ranks.
    rank, size : int
        This process's rank, and the number of ranks.

    Returns
    -------
    dict of str to str
        The environment variables that MPICH needs in MPI_Init.

    Raises
    ------
    RuntimeError
        If a rank does not come within `PYNCCLX_TIMEOUT`, or ends.
    """
    seconds = settings.TIMEOUT.get()
    host, port, token = _address(store, rank, size, seconds).split()

    def connect(purpose: str) -> socket.socket:
        connection = socket.create_connection((host, int(port)), seconds)
        connection.sendall(f"{token} {rank} {purpose}\n".encode())
        return connection

    try:
        threads.start("pyncclx-abort", _end_after_abort, connect("abort"))
        with connect(settings.foreign("GROUP_RANK") or "0") as connection:
            connection.settimeout(seconds + GRACE_S)
            answer = connection.recv(4096).decode().strip()
            if answer != "go":
                raise RuntimeError(f"MPI cannot be initialized: {answer or 'its server, beside rank 0, has ended'}")
            connection.settimeout(None)
            _connections.append(connection.detach())
    except OSError as error:
        raise RuntimeError(f"MPI's server, at {host}:{port} beside rank 0, does not answer: {error}") from error
    return {"PMI_FD": str(_connections[-1]), "PMI_RANK": str(rank), "PMI_SIZE": str(size)}


def _end_after_abort(connection: socket.socket) -> None:
    """End the process when it has called MPI_Abort, which returns under PMI-1.

    torchrun then ends the other ranks.
    """
    connection.settimeout(None)
    with suppress(OSError), connection:
        if code := connection.recv(16):
            os._exit(int(code) % 256 or 1)  # the exit status has 8 bits


def _address(store: Any, rank: int, size: int, seconds: float) -> str:
    """Return host, port and token of the job's server, which rank 0 starts."""
    key = f"pyncclx/mpi/{settings.foreign('TORCHELASTIC_RESTART_COUNT')}"
    if rank == 0:
        store.set(key, _serve(size, seconds))
    try:
        store.wait([key], timedelta(seconds=seconds))
    except RuntimeError as error:
        raise RuntimeError(f"rank 0 has not started MPI's server within {seconds:g} s (PYNCCLX_TIMEOUT)") from error
    return str(store.get(key).decode())


def _serve(size: int, seconds: float) -> str:
    """Start the server; return its host, port and token."""
    host = LOCALHOST if settings.foreign("LOCAL_WORLD_SIZE") == str(size) else _own_host()
    token = secrets.token_hex()
    with _listener(size, is_local=host == LOCALHOST) as listener:
        command = [sys.executable, "-I", str(SERVER), str(listener.fileno()), str(size), str(seconds)]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
        port = listener.getsockname()[1]
    assert server.stdin is not None
    with server.stdin as pipe:
        pipe.write(f"{token}\n".encode())
    _servers.append(server)
    return f"{host} {port} {token}"


def _listener(size: int, *, is_local: bool) -> socket.socket:
    """Return a listening socket for the server, on all networks or only on this node."""
    if is_local:
        return socket.create_server((LOCALHOST, 0), backlog=2 * size)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=2 * size)
    return socket.create_server(("", 0), backlog=2 * size)


def _own_host() -> str:
    """Return a name or an address of this node that the other nodes can use.

    This is torchrun's MASTER_ADDR, or if that is another node, the address from which this node reaches it.
    """
    master = settings.foreign("MASTER_ADDR") or LOCALHOST
    family, _, _, _, address = socket.getaddrinfo(master, settings.foreign("MASTER_PORT"), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect(address)
        own = str(probe.getsockname()[0])
    return master if own == address[0] else own


_servers: list[subprocess.Popen[bytes]] = []
_connections: list[int] = []  # the descriptor of the connection that MPICH uses


def _begin_child() -> None:
    """Close MPICH's connection in a forked child.

    The server notices the end of the parent only if no child has the connection.
    """
    while _connections:
        descriptor = _connections.pop()
        if not MPI.Is_finalized():
            os.close(descriptor)


process.in_children(_begin_child)
