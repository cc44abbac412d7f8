"""What a communicator has for its messages: its endpoint, from the first one on, and what probes have found."""

from __future__ import annotations

from typing import Any, cast

from mpi4py import MPI

import mpi_bootstrap

from .. import backends
from ..backends import Device
from ..launch import kernels
from ..team.base import Base
from ..team.state import Attachment, state_of
from ..team.team import Team
from .endpoint import Endpoint
from .probe import ProbedMessages
from .progress import PROGRESS

_NAME = "messages"  # of the attachment


class _Attachment(Attachment):
    """What the communicator's state carries for messages."""

    is_of_messages = True

    def __init__(self) -> None:
        self.endpoint: Endpoint | None = None
        self.probed = ProbedMessages()

    def join(self, team: Team) -> None:
        """Let messages come out of windows from now on."""
        if self.endpoint is not None:
            self.endpoint.team = team

    def drain(self) -> None:
        """Wait on the host for everything launched so far, and check it."""
        if self.endpoint is not None:
            self.endpoint.drain()

    def check(self) -> None:
        """Raise what kernels have recorded."""
        if self.endpoint is not None:
            self.endpoint.check()

    def close(self) -> None:
        """Drop the endpoint; messages that are on their way keep it."""
        if self.endpoint is not None:
            self.endpoint.forget_comm()
            postbox, self.endpoint = self.endpoint.postbox, None
            postbox.bounce.headers.reclaim()


class MessageBase(Base):
    """The base of the classes whose methods send and receive."""

    known: Any = None  # the `_Attachment`, once it has been looked up

    @property
    def _messages(self) -> _Attachment:
        attachments = state_of(self).attachments
        own: Any = attachments.get(_NAME) or attachments.setdefault(_NAME, _Attachment())
        self.known = own
        return own  # type: ignore[no-any-return]

    @property
    def probed(self) -> ProbedMessages:
        """The messages that probes have found and no call has received."""
        return self._messages.probed

    @property
    def endpoint(self) -> Endpoint:
        """This communicator's messages with device arrays, made at the first one. Not collective."""
        own: _Attachment | None = self.known
        if own is not None and own.endpoint is not None:  # None once the communicator has been freed
            return own.endpoint
        own = self._messages
        if own.endpoint is None:
            mpi_bootstrap.check_launch(cast(MPI.Intracomm, self))
            state = state_of(self)
            topology = (lambda: None) if self.is_inter else (lambda: state.topology)
            own.endpoint = Endpoint(self, backends.select(), state.calls(self), topology)
            own.endpoint.team, own.endpoint.caller = state.team, state
        return own.endpoint

    def prepare_messages(self) -> None:
        """Make the endpoint before a collective begins to wait, if what it loads and allocates would wait for that.

        A stream that is being captured allows no allocation; what it captures does not run now.
        """
        device = backends.select()
        if device.loads_beside_kernels or self._messages.endpoint is not None or self.size == 1:
            return
        if not device.is_capturing(device.current_stream()):
            _ = self.endpoint

    def _device_of_team(self) -> Device:
        PROGRESS.get()  # kernels that wait come next: MPI goes on meanwhile
        device = super()._device_of_team()
        if self.size > 1:
            kernels.load_for_any_time(device)
        return device
