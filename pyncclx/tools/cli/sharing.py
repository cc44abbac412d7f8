"""Check whether ranks can share memory, by file descriptors and paths in /proc.

Every device sends file descriptors over abstract Unix sockets, which needs a common network namespace and no privilege.
The host device also opens memory as /proc/PID/fd/N, for messages and comm.Register. That needs the same user, PID
namespace and user namespace. Neither needs ptrace, but the MPI library may need it for its own copies between ranks.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap.mailbox import Mailbox, close_all

PROC = Path("/proc")
_SECONDS = 10.0
_OPEN = "import os, sys; os.open(sys.argv[1], os.O_RDWR); print(os.readlink(sys.argv[1]))"
_TRACE_BY_ADMINISTRATORS = 2  # value of kernel.yama.ptrace_scope

Facts = dict[str, Any]


def gather(place: mpi_bootstrap.Topology) -> Facts:
    """Return the results of all ranks on rank 0 (collective over MPI.COMM_WORLD)."""
    world = MPI.COMM_WORLD
    node = MPI.Intracomm(world.Split(place.node, place.rank))
    every = world.gather(of_rank(node))
    node.Free()
    return combined(every, place.nodes) if every is not None else {}


def of_rank(node: MPI.Intracomm) -> Facts:
    """Return the results of this rank's trials with its node's ranks (collective)."""
    name = secrets.token_hex(8)
    fd = os.memfd_create(name)
    try:
        return {
            "descriptors": _descriptors(node, fd),
            "proc": _paths(node, fd, name),
            "pid_namespace": namespace("pid"),
            "user_namespace": namespace("user"),
            "ptrace_scope": ptrace_scope(),
        }
    finally:
        os.close(fd)


def _descriptors(node: MPI.Intracomm, fd: int) -> str | None:
    """Return why descriptors do not arrive; None if they do."""
    try:
        received = mpi_bootstrap.allgather_fds(node, fd, range(node.size), timeout=_SECONDS)
        close_all(received.values())
        if node.size == 1:
            _send_to_itself(fd)
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _send_to_itself(fd: int) -> None:
    with closing(Mailbox(fd)) as mailbox:
        mailbox.post(0, mailbox.address)
        mailbox.wait(_SECONDS)
        letter = mailbox.collect()
    if letter is None:
        raise TimeoutError("a descriptor that was sent has not arrived")
    os.close(letter[1])


def _paths(node: MPI.Intracomm, fd: int, name: str) -> str | None:
    """Return why this rank cannot open the next rank's memory; None if it can."""
    others = node.allgather((f"{PROC}/{os.getpid()}/fd/{fd}", name))
    refusal = in_a_child(*others[0]) if node.size == 1 else opened(*others[(node.rank + 1) % node.size])
    node.Barrier()
    return refusal


def opened(path: str, name: str) -> str | None:
    """Return why a path in /proc does not open memory with a name; None if it does."""
    try:
        os.close(os.open(path, os.O_RDWR))
        return None if name in os.readlink(path) else f"{path} is another process's"
    except OSError as error:
        return str(error)


def in_a_child(path: str, name: str) -> str | None:
    """Return the result of `opened` in a process that is no rank."""
    child = subprocess.run([sys.executable, "-c", _OPEN, path], capture_output=True, text=True, check=False)
    if child.returncode == 0 and name in child.stdout:
        return None
    return (child.stderr.strip().splitlines() or [f"{path} is another process's"])[-1]


def namespace(kind: str) -> int:
    """Return the number of this process's namespace of a kind, such as "pid".

    It is 0 if /proc does not show it.
    """
    with suppress(OSError):
        return os.stat(PROC / "self/ns" / kind).st_ino
    return 0


def ptrace_scope(proc: Path = PROC) -> int | None:
    """Return kernel.yama.ptrace_scope; None on systems without Yama.

    0 is Unix's usual permission; 3 allows no process to trace.
    """
    try:
        return int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return None


def combined(ranks: list[Facts], nodes: tuple[int, ...]) -> Facts:
    """Combine the results of ranks to those of the job.

    The result has the first refusals, the largest number of namespaces on a node, and the strictest scope.
    """
    scopes = [each["ptrace_scope"] for each in ranks if each["ptrace_scope"] is not None]
    return {
        "descriptors_refused": _first_refusal(ranks, "descriptors"),
        "proc_refused": _first_refusal(ranks, "proc"),
        "pid_namespaces": _most(ranks, nodes, "pid_namespace"),
        "user_namespaces": _most(ranks, nodes, "user_namespace"),
        "ptrace_scope": max(scopes, default=None),
    }


def _first_refusal(ranks: list[Facts], what: str) -> str | None:
    return next((f"rank {rank}: {each[what]}" for rank, each in enumerate(ranks) if each[what]), None)


def _most(ranks: list[Facts], nodes: tuple[int, ...], what: str) -> int:
    return max(len({each[what] for each, its in zip(ranks, nodes, strict=True) if its == node}) for node in set(nodes))


def line(facts: Facts) -> str:
    """Return the results as a line of text."""
    sent = "are refused" if facts["descriptors_refused"] else "can be sent"
    opens = "does not open" if facts["proc_refused"] else "opens"
    spaces = f"PID namespaces on a node: {facts['pid_namespaces']}, user namespaces: {facts['user_namespaces']}"
    scope = "none" if facts["ptrace_scope"] is None else facts["ptrace_scope"]
    return f"descriptors {sent}; memory {opens} by /proc; {spaces}; ptrace_scope: {scope}"


def problems(facts: Facts) -> Iterator[str]:
    """Yield a sentence for each problem that keeps programs from running."""
    descriptors = facts["descriptors_refused"]
    if descriptors:
        yield (
            f"Ranks cannot send file descriptors to each other, and so cannot share memory ({descriptors}): start "
            "all ranks of a node in one container, or in one network namespace"
        )


def advice(facts: Facts, *, on_host: bool) -> Iterator[str]:
    """Yield a sentence for each system setting that costs time or hides something."""
    paths = facts["proc_refused"]
    if paths and on_host:
        yield (
            f"Memory of other ranks does not open ({paths}): messages on the host device go through MPI, and "
            "comm.Register raises; start all ranks of a node as one user, in one PID namespace and one user namespace"
        )
    if facts["pid_namespaces"] > 1:
        yield (
            "The ranks of a node are in several PID namespaces: `python -m pyncclx status` finds processes by their "
            "number, and will not find all"
        )
    if (facts["ptrace_scope"] or 0) >= _TRACE_BY_ADMINISTRATORS:
        yield (
            f"kernel.yama.ptrace_scope is {facts['ptrace_scope']}: MPI may copy messages between host arrays twice; "
            "pyncclx itself needs no ptrace"
        )
