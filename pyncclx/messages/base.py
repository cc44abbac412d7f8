"""A communicator's state for messages: its endpoint, and probed messages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

from mpi4py import MPI

import mpi_bootstrap

from .. import backends
from ..backends import Device
from ..launch import kernels
from ..requests.open_receives import LOCK
from ..team.attachment import Attachment
from ..team.base import Base
from ..team.state import state_of
from ..team.team import Team
from .endpoint import Endpoint
from .partitioned.contacts import Contacts
from .partitioned.handshakes import Handshakes
from .probe import ProbedMessages
from .progress.polling import PROGRESS

_NAME = "messages"  # key in the communicator's attachments


class _Attachment(Attachment):
    """The part of the communicator's state that serves messages.

    Attributes
    ----------
    endpoint : Endpoint or None
        None before the first message, and after the communicator has been freed.
    prepared : Endpoint or None
        The endpoint for the first message, if created before it.
    probed : ProbedMessages
    contacts : Contacts or None
        None before the first partitioned request or receive with MPI.ANY_TAG.
    handshakes : Handshakes or None
        None before the first endpoint.
    late : Endpoint or None
        The endpoint of receives that are in progress when the communicator is freed. None before the first such
        receive.
    """

    is_of_messages = True

    def __init__(self) -> None:
        self.endpoint: Endpoint | None = None
        self.prepared: Endpoint | None = None
        self.probed = ProbedMessages()
        self.contacts: Contacts | None = None
        self.handshakes: Handshakes | None = None
        self.late: Endpoint | None = None

    @property
    def _made(self) -> Endpoint | None:
        return self.endpoint or self.prepared

    def join(self, team: Team) -> None:
        """Use the team's windows for messages from now on."""
        if self._made is not None:
            self._made.team = team

    def is_idle(self) -> bool:
        """Return whether the communicator has had no messages of device arrays."""
        return self.endpoint is None and not self.probed.are_held

    def reading(self) -> Callable[[], bool]:
        """Return a function that says whether messages may still read windows."""
        made = self._made
        return lambda: made is not None and (made.has_open_receives() or made.is_busy())

    def drain(self) -> None:
        """Wait on the host for all kernels launched so far; raise recorded errors."""
        if self.endpoint is not None:
            self.endpoint.drain()

    def check(self) -> None:
        """Raise an error that a kernel has recorded."""
        if self.endpoint is not None:
            self.endpoint.check()

    def close(self) -> None:
        """Release the endpoint, which lasts until its messages in flight have ended."""
        # Partitioned messages need the communicator until both ends have exchanged addresses.
        if self._made is not None:
            self._made.partitioned.meet()
        self._release()
        self._end_handshakes(Contacts.close)

    def _end_handshakes(self, end: Callable[[Contacts], None]) -> None:
        contacts = self.contacts
        if contacts is not None and not contacts.is_predefined:
            self.contacts = self.handshakes = None
            end(contacts)

    def _release(self) -> None:
        made, self.endpoint, self.prepared = self._made, None, None
        if made is not None:
            made.forget_comm()
            made.context.bounce.headers.reclaim()

    def abandon(self) -> None:
        """Release the endpoint without calling MPI.

        MPI may be deleting the communicator.
        """
        self._end_handshakes(Contacts.leave)
        self._release()


class MessageBase(Base):
    """Base class of communicators whose methods send and receive."""

    known: Any = None  # the cached `_Attachment`
    #: Sources for which receives and probes with MPI.ANY_TAG are prepared; see `guard`.
    guarded: Collection[int] = frozenset()

    @property
    def _messages(self) -> _Attachment:
        attachments = state_of(self).attachments
        own: Any = attachments.get(_NAME) or attachments.setdefault(_NAME, _Attachment())
        self.known = own
        return own  # type: ignore[no-any-return]

    @property
    def probed(self) -> ProbedMessages:
        """Messages that probes have found and no call has received yet."""
        return self._messages.probed

    @property
    def contacts(self) -> Contacts:
        """The object for the first messages of partitioned requests. Not collective."""
        own = self._messages
        with LOCK:
            if own.contacts is None:
                own.contacts = Contacts(self)
            return own.contacts

    def guard(self, source: int) -> None:
        """Keep later receives and probes with MPI.ANY_TAG from matching internal messages.

        Call it before each of them, unless `guarded` contains the source.
        """
        self.contacts.guard(source)
        self.guarded = self.contacts.guarded

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of this communicator, made at the first use. Not collective."""
        own: _Attachment | None = self.known
        if own is not None and own.endpoint is not None:
            return own.endpoint
        own = self._messages
        if own.endpoint is None:
            own.endpoint, own.prepared = own.prepared or self._new_endpoint(), None
        return own.endpoint

    @property
    def lasting_endpoint(self) -> Endpoint:
        """The endpoint for a receive in progress, even if the communicator has been freed."""
        own: _Attachment | None = self.known
        if own is not None and own.endpoint is not None:
            return own.endpoint
        if self and (self._state is None or self._state.current):
            return self.endpoint
        with LOCK:
            own = self.known = own or _Attachment()
            if own.late is None:
                # A receive needs no communicator of MPI any more, once its message is matched.
                own.late = Endpoint(MPI.COMM_SELF, backends.select())
            return own.late

    def _new_endpoint(self) -> Endpoint:
        mpi_bootstrap.check_launch(cast(MPI.Intracomm, self))
        state = state_of(self)
        topology = (lambda: None) if self.is_inter else (lambda: state.topology)
        endpoint, own = Endpoint(self, backends.select(), state.calls(self), topology), self._messages
        endpoint.team, endpoint.caller = state.team, state
        with LOCK:
            own.handshakes = own.handshakes or Handshakes(self.contacts, endpoint.context, endpoint.device, self.rank)
            endpoint.partitioned.handshakes = own.handshakes
        return endpoint

    def prepare_messages(self) -> None:
        """Create the endpoint before a collective whose kernel waits.

        On a device where loading kernels waits for running kernels, an endpoint that is created later would wait for
        the collective. In a capture this does nothing, because nothing can be allocated, and no kernel runs.
        """
        device, own = backends.select(), self._messages
        if device.loads_beside_kernels or own.endpoint or own.prepared or self.size == 1:
            return
        if not device.is_capturing(device.current_stream()):
            own.prepared = self._new_endpoint()

    def _device_of_team(self) -> Device:
        # The next kernel may wait for a peer. During the wait, MPI must make progress.
        PROGRESS.get()
        device = super()._device_of_team()
        if self.size > 1:
            kernels.load_for_any_time(device)
        return device
