"""Gather, Gatherv, Scatter and Scatterv over nodes."""

from __future__ import annotations

from functools import partial

from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...nodes.places import Places
from ...nodes.program import SpanningCall
from ...team.base import IntraBase as Intracomm
from ..rooted import Rooted
from .movement import HOW, exchange


def gather(comm: Intracomm, given: Rooted) -> SpanningCall:
    """Lower Gather, Gatherv, Scatter and Scatterv."""
    root, own, each = given.root, Transfer(given.root, given.address, given.nbytes), []
    if given.blocks is not None:
        # Root's own block may be shorter than the place for it.
        own = own._replace(nbytes=min(given.nbytes, given.blocks.nbytes[root]))
        each = [Transfer(rank, given.blocks.address(rank), nbytes) for rank, nbytes in enumerate(given.blocks.nbytes)]
        each[root] = each[root]._replace(nbytes=own.nbytes)
    sends, receives = ([own], each) if given.gathers else (each, [own])
    return SpanningCall(
        operation=given.operation,
        compose=partial(_compose, sends=sends, receives=receives),
        buffers=given.buffers,
        signature=(given.nbytes, root) if given.equal else (root,),
    )


gatherv = scatter = scatterv = gather


def explain(places: Places, nbytes: int) -> str:
    """Describe how these operations run, for `Comm.explain`."""
    return HOW


def _compose(composition: Composition, *, sends: list[Transfer], receives: list[Transfer]) -> None:
    rank = composition.places.rank
    stays = {each for each in sends if each.peer == rank} & {each for each in receives if each.peer == rank}
    leaving, coming = ([each for each in side if each not in stays] for side in (sends, receives))
    exchange(composition, "exchange with root", leaving, coming)
