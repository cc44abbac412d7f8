"""What a communicator has for its messages: its endpoint, from the first one on, and what probes have found."""

from __future__ import annotations

from typing import cast

from mpi4py import MPI

import mpi_bootstrap

from .. import backends
from ..team.base import Base
from ..team.state import state_of
from ..team.team import Team
from .endpoint import Endpoint
from .probe import ProbedMessage

_NAME = "messages"  # of the attachment


class Mail:
    """What its state carries for messages."""

    def __init__(self) -> None:
        self.endpoint: Endpoint | None = None
        self.held: list[ProbedMessage] = []  # messages that probes have found

    def join(self, team: Team) -> None:
        """Messages may come out of windows from now on."""
        if self.endpoint is not None:
            self.endpoint.team = team

    def drain(self) -> None:
        """Wait on the host for everything launched so far, and check it."""
        if self.endpoint is not None:
            self.endpoint.drain()

    def close(self) -> None:
        """Let go of the endpoint; messages that are on their way keep it."""
        if self.endpoint is not None:
            postbox, self.endpoint = self.endpoint.postbox, None
            postbox.reclaim()


class MessageBase(Base):
    """The base of the families that send and receive."""

    @property
    def mail(self) -> Mail:
        """What the communicator carries for messages."""
        attachments = state_of(self).attachments
        mail = attachments.get(_NAME) or attachments.setdefault(_NAME, Mail())
        return cast(Mail, mail)

    @property
    def endpoint(self) -> Endpoint:
        """This communicator's messages with device arrays, made at the first one. Not collective."""
        mail = self.mail
        if mail.endpoint is None:
            mpi_bootstrap.check_launch(cast(MPI.Intracomm, self))
            mail.endpoint = Endpoint(self, backends.select())
            mail.endpoint.team = state_of(self).team
        return mail.endpoint
