"""NCCL through nccl4py: whether this process has it, which version, and what must be set before its first use."""

from __future__ import annotations

import os
from typing import Any

from ..system import settings
from ..system.process import cached

OLDEST = 22800  # NCCL 2.28.0, as NCCL writes versions
_HOST_ID = "NCCL_HOSTID"


@cached
def bindings() -> Any:
    """Return the functions of NCCL, which take addresses and streams as integers.

    Raises
    ------
    ImportError
        nccl4py is not installed, or finds no NCCL.
    """
    _set_variables()
    from nccl.bindings import nccl  # noqa: PLC0415  an optional dependency

    return nccl


def refusal() -> str | None:
    """Return why this process has no NCCL for use between nodes; None if it has."""
    try:
        version = int(bindings().get_version())
    except Exception as error:  # of the import, and of loading NCCL: what it raises there is nccl4py's own
        return f"{type(error).__name__}: {error}"
    return None if version >= OLDEST else f"NCCL {version // 10000}.{version // 100 % 100} is older than 2.28"


def version_text() -> str:
    """Return the version of NCCL as people write it."""
    version = int(bindings().get_version())
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _set_variables() -> None:
    """Set what NCCL reads once. Pretend nodes are hosts of their own for NCCL, too."""
    node = settings.NODE.get()
    if node:
        settings.set_foreign(_HOST_ID, f"{os.uname().nodename} {node}")
    # A rail has one GPU of a node: by itself NCCL may give two rails the same network interface.
    settings.set_foreign("NCCL_NETDEVS_POLICY", "MAX:1")
    # All of a communicator's collectives are connected when it is made: see `nccl_engine.py`.
    settings.set_foreign("NCCL_RUNTIME_CONNECT", "0")
    # Messages as long as those of NCCL's collectives: through sockets sends and receives take up to a third less.
    settings.set_foreign("NCCL_P2P_NET_CHUNKSIZE", str(512 << 10))
