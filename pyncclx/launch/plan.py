"""The plan of a call: its loaded kernel and launch configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..operators import bound_op
from ..team.plans import Plan
from ..team.team import Team
from . import kernels
from .call import Call
from .choice import MOST_EARLY
from .sources import check_records, file_of

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm


def plan_of(comm: Intracomm, team: Team, call: Call) -> Plan:
    """Return the plan of a call, shared by all calls of its kind.

    Collective at the first use of a kernel.
    """
    kind = call.operation, call.template, call.sized
    plan = team.plans.get(kind)
    if plan is None:
        plan = team.plans[kind] = _make(comm, team, call)
    return plan


def is_planned(team: Team, call: Call) -> bool:
    """Return whether the plan of a call is cached."""
    return (call.operation, call.template, call.sized) in team.plans


def _make(comm: Intracomm, team: Team, call: Call) -> Plan:
    choice = call.choose(bound_op.fitting(team.layout, call.template), *call.sized)
    if call.load is None:
        check_records(call.operation, choice.kernel, call.template)
        names = choice.kernel, *call.beside
        function, *_ = kernels.get_several(comm, team, file_of(choice.kernel), names, call.template)
    else:
        function = call.load(comm, team, choice.kernel, call.template)
    threads = min(choice.threads or team.threads, team.threads)
    most_early = MOST_EARLY // team.layout.sharing * team.device.blocks_per_multiprocessor(function, threads)
    early = call.load is None and choice.grid <= most_early
    return Plan(call.operation, function, choice.grid, threads, early, choice.kernel)
