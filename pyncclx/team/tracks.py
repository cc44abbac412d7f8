"""Tracks: what lets the ranks start persistent collectives in different orders, as MPI allows.

Kernels of one Team meet in the order of their launches. MPI matches persistent collectives by their `_init` calls, and
each rank may start them in an order of its own. So each request has a track: a Team with a lease, epochs and a stream
of its own, where the n-th start of one rank meets the n-th start of all others. A track goes to the next request when
no rank has a request on it any more.
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
from .base import IntraBase
from .state import Attachment, State, state_of
from .team import Team
from .windows import TeamWindows

_NAME = "tracks"  # of the attachment
MOST_TRACKS = 16  # of a communicator, if there is room in the heap
_NONE_LEFT = (
    f"a communicator has memory for {MOST_TRACKS} persistent collectives that ranks start in any order; Free some, or "
    "set ordered_starts"
)


class TrackTeam(Team):
    """A Team beside the communicator's own, which has the windows."""

    is_beside = True

    def __init__(self, comm: MPI.Intracomm, main: Team) -> None:
        self._main, self._seen = main, main.generation
        super().__init__(comm, main.device, main.heap)
        self.caller = main.caller
        main.tracks.add(self)
        self.windows = main.windows
        self.layout = replace(self.layout, windows=main.layout.windows)

    def refresh(self) -> None:
        """Forget what was packed before the windows changed; ranks that prepare a call do so together."""
        if self._seen != self._main.generation:
            self._seen = self._main.generation
            self.layout = replace(self.layout, windows=self._main.layout.windows)
            self.plans.clear()
            self.forget_structs()

    def is_idle(self) -> bool:
        """As `Team.is_idle`; the windows are another one's."""
        return not self.errors.has_failed and self.order.is_over()

    def _close_own(self) -> None:
        self.windows = TeamWindows(self.device)
        super()._close_own()


class Track:
    """A track, and the request that it is for.

    Attributes
    ----------
    comm : Intracomm
        The communicator with another state: what is prepared for it runs on the track.
    """

    def __init__(self, comm: IntraBase) -> None:
        self.comm = comm
        self._user: Callable[[], Any] = lambda: None  # a weak reference

    @property
    def is_free(self) -> bool:
        """Whether this rank has no request on it."""
        return self._user() is None

    def give_to(self, work: Any) -> None:
        """Keep the track for a request until that is gone."""
        self._user = weakref.ref(work)


class Tracks(Attachment):
    """The tracks of one communicator.

    Attributes
    ----------
    made : int
        How many persistent collectives were prepared: the number of the next one, the same on all ranks.
    """

    def __init__(self) -> None:
        self._tracks: list[Track] = []
        self.made = 0

    def take(self, comm: IntraBase, span: Callable[[IntraBase], object] | None) -> Track | None:
        """Return a track on which no rank has a request; None if a rank wants none. Collective.

        `span` makes what a communicator over nodes has, for a track; None: its ranks are on one node.

        Raises
        ------
        NotSupported
            On all ranks: there is none left.
        """
        self.made += 1
        state, intracomm = state_of(comm), cast(MPI.Intracomm, comm)
        if comm.size == 1:
            return None
        if span is None:
            _ = comm.team  # as a rank has made it already that packs its data
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
        """The tracks' Teams; over nodes there are none here."""
        return [track.comm.state.team for track in self._tracks if track.comm.state.team is not None]

    def is_idle(self) -> bool:
        """As `Attachment.is_idle`."""
        return len(self.teams) == len(self._tracks) and all(team.is_idle() for team in self.teams)

    def drain(self) -> None:
        """As `Attachment.drain`."""
        for track in self._tracks:
            track.comm.state.drain()

    def close(self) -> None:
        """As `Attachment.close`."""
        for track in self._tracks:
            track.comm.state.close()

    def abandon(self) -> None:
        """As `Attachment.abandon`."""
        for track in self._tracks:
            track.comm.state.abandon()

    def abandon_device(self, failed: Collection[int]) -> bool:
        """As `Attachment.abandon_device`."""
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
    """Return an object with the handle of a communicator, and a state of its own."""
    twin: IntraBase = type(comm)(comm)
    own = twin._state = State(state, state.identity and state.identity.another())
    own.topology = state.topology
    twin._hold = own.hold()
    return twin
