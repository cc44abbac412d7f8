"""Tracks, which let ranks start persistent collectives in any order, as in MPI.

The kernels of one Team match in the order of their launches. But MPI matches persistent collectives in the order of
their `_init` calls, and each rank may start them in any order. So each request has a *track*: a Team with its own
lease, epochs and stream. On a track, the n-th start of a rank matches the n-th start of all other ranks. When no rank
has a request on a track any more, a new request may use the track.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, cast

from mpi4py import MPI

import mpi_bootstrap

from ..errors import NotSupported
from ..recording.dump import PROGRESSING
from .attachment import Attachment
from .base import IntraBase
from .state import State, state_of
from .team import Team
from .windows import TeamWindows

_NAME = "tracks"  # name of the attachment
MOST_TRACKS = 16  # tracks of a communicator, if the heap has room
_NONE_LEFT = (
    f"a communicator has memory for {MOST_TRACKS} persistent collectives that ranks start in any order; Free some, or "
    "set ordered_starts"
)


class TrackTeam(Team):
    """The Team of a track. The communicator's own Team owns the windows."""

    is_beside = True

    def __init__(self, comm: MPI.Intracomm, main: Team) -> None:
        self._main, self._seen = main, main.generation
        super().__init__(comm, main.device, main.heap)
        self.caller = main.caller
        main.tracks.add(self)
        self.windows = main.windows
        self.layout = replace(self.layout, windows=main.layout.windows)

    def refresh(self) -> None:
        """Drop cached parameters if windows have changed; all ranks do so together."""
        if self._seen != self._main.generation:
            self._seen = self._main.generation
            self.layout = replace(self.layout, windows=self._main.layout.windows)
            self.plans.clear()
            self.forget_structs()

    def is_idle(self) -> bool:
        """Return whether no launch runs and nothing has failed; windows do not matter."""
        return not self.errors.has_failed and self.order.is_over()

    def _close_own(self) -> None:
        self.windows = TeamWindows(self.device)
        super()._close_own()


class Track:
    """A track, and the request that uses it.

    Attributes
    ----------
    comm : Intracomm
        A twin of the communicator, with a state of its own: requests prepared for the twin run on the track.
    """

    def __init__(self, comm: IntraBase) -> None:
        self.comm = comm
        self._user: Callable[[], Any] = lambda: None  # weak reference to the work of the request

    @property
    def is_free(self) -> bool:
        """Whether no request of this rank uses the track."""
        return self._user() is None

    def give_to(self, work: Any) -> None:
        """Reserve the track for a request for as long as the request's work exists."""
        self._user = weakref.ref(work)


class Tracks(Attachment):
    """The tracks of one communicator.

    Attributes
    ----------
    made : int
        Number of persistent collectives prepared so far, which is the next one's number; the same on all ranks.
    """

    def __init__(self) -> None:
        self._tracks: list[Track] = []
        self.made = 0

    def take(self, comm: IntraBase, span: Callable[[IntraBase], object] | None) -> Track | None:
        """Return a track that no rank uses, or None. Collective.

        None if the communicator has one rank, or some rank has set `ordered_starts`.

        `span` makes the state over nodes of a track's communicator; None if the ranks are on one node.

        Raises
        ------
        NotSupported
            On all ranks, if no track is left.
        """
        self.made += 1
        state, intracomm = state_of(comm), cast(MPI.Intracomm, comm)
        if comm.size == 1:
            return None
        if span is None:
            _ = comm.team  # make the Team now on all ranks: those that pack their data have made it before
        state.meet(intracomm)
        own = [number for number, track in enumerate(self._tracks) if track.is_free]
        of_ranks = mpi_bootstrap.allgather_objects(intracomm, None if state.ordered_starts else own)
        free = [set(each) for each in of_ranks if each is not None]
        if len(free) < comm.size:
            return None
        common = set.intersection(*free)
        if common:
            return self._again(self._tracks[min(common)], state)
        if len(self._tracks) == MOST_TRACKS:
            raise NotSupported(_NONE_LEFT)
        return self._another(comm, state, span)

    def _again(self, track: Track, state: State) -> Track:
        own = track.comm.state
        own.take_options(state)
        if isinstance(own.team, TrackTeam):
            own.team.refresh()
        return track

    @mpi_bootstrap.interrupts_deferred()
    def _another(self, comm: IntraBase, state: State, span: Callable[[IntraBase], object] | None) -> Track:
        twin = _twin(comm, state)
        if span is None:
            _make_team(twin, comm.team)
        else:
            span(twin)
        self._tracks.append(Track(twin))
        return self._tracks[-1]

    @property
    def teams(self) -> list[Team]:
        """The tracks' Teams; tracks of a communicator over several nodes have none."""
        return [track.comm.state.team for track in self._tracks if track.comm.state.team is not None]

    def is_idle(self) -> bool:
        """Return whether nothing runs or may run on any track."""
        return len(self.teams) == len(self._tracks) and all(team.is_idle() for team in self.teams)

    def drain(self) -> None:
        """Wait on the host for all launches on the tracks, and raise their errors."""
        for track in self._tracks:
            track.comm.state.drain()

    def close(self) -> None:
        """Release all tracks. Collective."""
        for track in self._tracks:
            track.comm.state.close()

    def abandon(self) -> None:
        """Release all tracks without the other ranks."""
        for track in self._tracks:
            track.comm.state.abandon()

    def abandon_device(self, failed: Collection[int]) -> bool:
        """Release all tracks after ranks of MPI.COMM_WORLD have failed."""
        for track in self._tracks:
            track.comm.state.abandon_device(failed)
        return True


def tracks_of(comm: IntraBase) -> Tracks:
    """Return the tracks of a communicator."""
    attachments = state_of(comm).attachments
    if _NAME not in attachments:
        attachments[_NAME] = Tracks()
    return cast(Tracks, attachments[_NAME])


def _make_team(twin: IntraBase, main: Team) -> None:
    team = twin.state.team = TrackTeam(cast(MPI.Intracomm, twin), main)
    if (calls := twin.state.calls(twin)) is not None:
        PROGRESSING[team] = calls


def _twin(comm: IntraBase, state: State) -> IntraBase:
    """Return an object with a communicator's handle and a state of its own."""
    twin: IntraBase = type(comm)(comm)
    own = twin._state = State(state, state.identity and state.identity.another())
    own.topology = state.topology
    twin._hold = own.hold()
    return twin
