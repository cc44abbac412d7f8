"""NCCL through nccl4py: its presence, its version, and settings for its first use."""

from __future__ import annotations

import os
from typing import Any

from ..system import settings
from ..system.process import cached

OLDEST = 22800  # NCCL 2.28.0, in NCCL's own notation
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
    # nccl4py raises errors of its own when it loads NCCL.
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None if version >= OLDEST else f"NCCL {version // 10000}.{version // 100 % 100} is older than 2.28"


def version_text() -> str:
    """Return the version of NCCL as text, such as 2.28.3."""
    version = int(bindings().get_version())
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _set_variables() -> None:
    """Set the environment variables that NCCL reads once."""
    node = settings.NODE.get()
    if node:
        settings.set_foreign(_HOST_ID, f"{os.uname().nodename} {node}")
    # A rail has one GPU of a node. Without this, NCCL may give two rails the same network interface.
    settings.set_foreign("NCCL_NETDEVS_POLICY", "MAX:1")
    # Connect the ranks for all collectives when the communicator is made: see `nccl_engine.py`.
    settings.set_foreign("NCCL_RUNTIME_CONNECT", "0")
    # Make messages as long as those of NCCL's collectives: sends and receives through sockets take up to a third less.
    settings.set_foreign("NCCL_P2P_NET_CHUNKSIZE", str(512 << 10))
