"""Errors of kernels in a node, with ranks of the communicator over nodes."""

from __future__ import annotations

from dataclasses import replace

from ..errors import Aborted, PeerTimeout, RankFailed
from ..team.error_record import ErrorRecord
from .places import Places


def check(errors: ErrorRecord, places: Places) -> None:
    """Raise a node's recorded error with ranks of the communicator over nodes.

    Raises what `ErrorRecord.check` raises.
    """

    def rank_of(local: int) -> int:
        return places.ranks_of(places.node)[local] if local >= 0 else -1  # -1 means any rank

    try:
        errors.check()
    except PeerTimeout as error:
        rank, peer = rank_of(error.rank), rank_of(error.peer)
        raise PeerTimeout(error.operation, error.epoch, rank, peer, error.expected, error.seen) from None
    except Aborted:
        loss = errors.loss
        if loss is None or loss.note is None:
            raise
        note = loss.note._replace(rank=rank_of(loss.note.rank))
        raise replace(loss, note=note).exception() from None
    except RankFailed as error:
        ranks = tuple(map(rank_of, error.ranks))
        raise RankFailed(ranks, error.world_ranks, error.reason, error.host, error.operation, error.epoch) from None
