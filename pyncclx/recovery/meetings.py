"""The end of waits for ranks that will never come, where ranks meet on the host, and of MPI's own waits."""

from __future__ import annotations

import time

from mpi4py import MPI

import mpi_bootstrap

from ..errors import RankFailed, RanksMissing, Revoked
from ..recording.failures import noted
from ..system import settings
from ..system.process import PerProcess
from . import ulfm
from .detector import DETECTOR

MEETING = "a meeting of all ranks on the host"
_ENDED_S = 1.0  # that a rank waits for one whose program is over: what it has sent arrives within this time
_FOR_MPI_S = 0.5  # until MPI knows why it has failed: Open MPI's first error may be of class ERR_OTHER
_OF_FAILURES = {MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED, MPI.ERR_OTHER}


class Judge:
    """Decides for `mpi_bootstrap.waiting` by what the failure detector has found."""

    def seconds(self) -> float:
        """Return PYNCCLX_TIMEOUT."""
        return settings.TIMEOUT.get()

    def hopeless(self, comm: MPI.Comm, waited_s: float) -> Exception | None:
        """Return the failure of a rank of the communicator."""
        detector = DETECTOR.made
        if detector is None:
            return None
        loss = detector.loss_of(comm)
        if loss is not None:
            return noted(loss.exception(MEETING))
        if not (detector.has_failed or waited_s > _ENDED_S):
            return None
        reasons = detector.failed_among(ulfm.world_ranks(comm), with_ended=waited_s > _ENDED_S)
        return noted(_failed(comm, reasons)) if reasons else None

    def explain(self, comm: MPI.Comm, error: MPI.Exception) -> Exception:
        """Return RankFailed or Revoked for MPI's exceptions of these kinds."""
        return noted(explained(comm, error))

    def late(self, comm: MPI.Comm, ranks: list[int]) -> Exception:
        """Return the exception for ranks that have not come within PYNCCLX_TIMEOUT."""
        return noted(RanksMissing(comm.rank, tuple(ranks)))


def explained(comm: MPI.Comm, error: MPI.Exception, operation: str = "") -> Exception:
    """Return what to raise for an exception of MPI's: with the ranks that have failed, if it is about such."""
    if not ulfm.is_enabled() or error.Get_error_class() not in _OF_FAILURES:
        return error
    end = time.monotonic() + _FOR_MPI_S
    while time.monotonic() < end:
        ranks = ulfm.failed_ranks(comm)
        if ranks:
            detector = DETECTOR.made
            known = detector.failed_among(ulfm.world_ranks(comm)) if detector is not None else {}
            return _failed(comm, {**dict.fromkeys(ranks, "MPI has found that its process died"), **known}, operation)
        if ulfm.is_revoked(comm):
            return Revoked(f"{operation}{': ' * bool(operation)}the communicator was revoked; Shrink or Free it")
        time.sleep(0.01)
    return error


def _failed(comm: MPI.Comm, reasons: dict[int, str], operation: str = MEETING) -> RankFailed:
    ranks, worlds = tuple(sorted(reasons)), ulfm.world_ranks(comm)
    text = "; ".join(dict.fromkeys(reasons[rank] for rank in ranks))
    return RankFailed(ranks, tuple(worlds[rank] for rank in ranks), text, MPI.Get_processor_name(), operation)


#: Made with the first communicator.
JUDGE = PerProcess(lambda: mpi_bootstrap.judge_by(Judge()), lasting=True)
