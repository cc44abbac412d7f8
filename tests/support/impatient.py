"""Communicators whose kernels do not wait long, in tests of what happens to a wait that is too long."""

from dataclasses import replace

import pyncclx


def impatient(comm: pyncclx.Communicator, seconds: float) -> None:
    """Let the kernels of a communicator wait so long from now on; its ranks meet as patiently as before."""
    team = comm.team
    team.members = [replace(member, timeout_s=seconds) for member in team.members]
    team.forget_structs()
